//! Opening of model folders with safetensors files.

use super::join::{join, join_fp8};
use crate::absent::{MissingFiles, RequiredFiles};
use crate::builder::{Builder, PlacedTensor, by_name, name_of};
use crate::checkpoint::{Checkpoint, CheckpointSource};
use crate::error::FormatError;
use crate::folder::{HfSource, in_use, tensor_files};
use crate::four_bit::{FourBitSettings, HeaderTensor};
use crate::index::SafetensorsIndex;
use crate::limits;
use crate::map::FileBytes;
use crate::safetensors::{Header, SafetensorsError};
use crate::sniff::sniff;
use crate::spelling::respell;
use crate::tensor::{TensorInfo, TensorLocation};
use crate::{mistral, weight_format};
use std::path::{Path, PathBuf};

/// Opens the model in `folder`.
pub(super) fn open(folder: &Path, needed: RequiredFiles) -> Result<Checkpoint, FormatError> {
    let source = HfSource::read(folder)?;
    let failed = |error| FormatError::FourBit { path: folder.to_owned(), error: Box::new(error) };
    let settings = FourBitSettings::of(&source).map_err(failed)?;
    let (paths, index) = tensor_files(folder, needed)?;
    let from_params = source.from_params;
    let mut builder = Builder::new();
    builder.keep(in_use(folder));
    // Headers of safetensors files contain no hyperparameters, so config.json is part of the
    // fingerprint.
    builder.note(serde_json::to_string(&source.config).unwrap_or_default().as_bytes());
    let absent = absent(&paths, index.as_ref().filter(|_| needed == RequiredFiles::Some));
    // Numbers in the index of the files that are present.
    let here: Vec<usize> =
        (0..paths.len()).filter(|file| !absent.files.contains(&name_of(&paths[*file]))).collect();
    for path in here.iter().map(|file| &paths[*file]) {
        let bytes = FileBytes::map(path)?;
        let header = Header::parse(bytes.get(), bytes.get().len() as u64)
            .map_err(|error| refused(path, bytes.get(), error))?;
        // Mistral's folders have consolidated*.safetensors. A renamed file is recognized by the
        // params.json of its folder.
        let renamed = mistral::names_tensors(path) || from_params && index.is_none();
        let tensors = header.tensors.into_iter().map(|mut entry| {
            if let Some(plain) = mistral::plain_name(&entry.name).filter(|_| renamed) {
                entry.name = plain;
            }
            PlacedTensor::from(entry)
        });
        builder.file(path, bytes, header.data_start, tensors);
        if builder.tensors() > limits::MAX_FOLDER_TENSORS {
            let problem = format!("its files hold more than {} tensors", limits::MAX_FOLDER_TENSORS);
            return Err(FormatError::Set { path: folder.to_owned(), problem });
        }
    }
    if let Some(index) = &index {
        let is_here = |file: u32| here.contains(&(file as usize));
        builder.keep_copies(index, &|file| here[file] as u32, &is_here);
    }
    builder.lacks(absent);
    let mut checkpoint = builder.finish(folder.to_owned(), CheckpointSource::HuggingFace(source))?;
    // The order matters: the index has the names of the files, 4-bit weights are found by published
    // names, and FP8 scales are looked up among the joined tensors.
    if let Some(index) = index {
        check_index(&checkpoint, &index, (&paths, &here))?;
        checkpoint.forget_incomplete();
    }
    respell(&mut checkpoint);
    let joined = join(&mut checkpoint, settings.as_ref());
    let CheckpointSource::HuggingFace(source) = checkpoint.source() else { return Ok(checkpoint) };
    joined.map_err(|error| weight_format::of_packed(folder, source, error))?;
    let scales = {
        let find = |name: &str| checkpoint.info(name).map(head);
        weight_format::fp8_scales(folder, source, checkpoint.tensors().iter().map(head), &find)?
    };
    join_fp8(&mut checkpoint, &scales);
    Ok(checkpoint)
}

impl From<crate::safetensors::SafetensorsTensorEntry> for PlacedTensor {
    fn from(t: crate::safetensors::SafetensorsTensorEntry) -> PlacedTensor {
        PlacedTensor {
            name: t.name,
            ty: t.ty,
            shape: t.shape,
            start: t.start,
            bytes: t.bytes,
            tile_rows: None,
        }
    }
}

/// The error for a file whose header cannot be parsed, with a guess of its type.
fn refused(path: &Path, bytes: &[u8], error: SafetensorsError) -> FormatError {
    match error {
        // The first eight bytes of any other format are an implausible header length.
        SafetensorsError::HeaderLength { .. } => {
            FormatError::NotAModel { path: path.to_owned(), what: sniff(path, bytes) }
        }
        SafetensorsError::Hole { start, .. } if joined(bytes, start).is_some() => {
            let at = joined(bytes, start).unwrap_or(start);
            let problem = format!(
                "another safetensors file begins at byte {at}: shards were concatenated into one file; use \
                 the original shards with their model.safetensors.index.json"
            );
            FormatError::Set { path: path.to_owned(), problem }
        }
        error => FormatError::Safetensors { path: path.to_owned(), error },
    }
}

/// The position in the file of byte `start` of the data, if another safetensors file begins there.
/// Users concatenate shards with `cat`.
fn joined(bytes: &[u8], start: u64) -> Option<u64> {
    let length = |bytes: &[u8]| Some(u64::from_le_bytes(*bytes.first_chunk::<8>()?));
    let at = length(bytes)?.checked_add(8)?.checked_add(start)?;
    let other = bytes.get(usize::try_from(at).ok()?..)?;
    let fits = length(other)?.checked_add(8)? <= other.len() as u64 && other.get(8) == Some(&b'{');
    fits.then_some(at)
}

/// The missing files of the index, and the modules of their tensors.
fn absent(paths: &[PathBuf], index: Option<&SafetensorsIndex>) -> MissingFiles {
    let mut absent = MissingFiles::default();
    let Some(index) = index else { return absent };
    let mut places = vec![None; paths.len()];
    for (path, place) in paths.iter().zip(&mut places).filter(|(path, _)| !path.exists()) {
        *place = Some(absent.files.len());
        absent.files.push(name_of(path));
    }
    for (tensor, file) in &index.tensors {
        if let Some(place) = places[*file as usize] {
            absent.note(tensor, place);
        }
    }
    absent
}

impl Checkpoint {
    /// Removes tensors of modules of which another tensor is in a missing file: quants are useless
    /// without their scales.
    fn forget_incomplete(&mut self) {
        if self.absent.files.is_empty() {
            return;
        }
        let absent = &self.absent;
        self.tensors.retain(|info| absent.file_of(&info.name).is_none());
        self.by_name = by_name(&self.tensors);
    }
}

/// Checks that each file contains the tensors that the index assigns to it. A mismatch means that
/// the files are of different downloads.
fn check_index(
    checkpoint: &Checkpoint,
    index: &SafetensorsIndex,
    (paths, here): (&[PathBuf], &[usize]),
) -> Result<(), FormatError> {
    for (name, file) in index.tensors.iter().filter(|(_, file)| here.contains(&(*file as usize))) {
        let held = checkpoint.info(name).and_then(|info| match info.place {
            TensorLocation::File { file, .. } => Some(here[file]),
            TensorLocation::FourBit(_)
            | TensorLocation::Factor(_)
            | TensorLocation::Cut(_)
            | TensorLocation::Derived(_)
            | TensorLocation::Absent => None,
        });
        if held == Some(*file as usize) {
            continue;
        }
        let path = &paths[*file as usize];
        let problem = match held {
            None => format!(
                "tensor {name} is missing, but the index assigns it to this file; download both again"
            ),
            Some(other) => {
                format!(
                    "the index assigns tensor {name} to it, but the tensor is in {}",
                    paths[other].display()
                )
            }
        };
        return Err(FormatError::Set { path: path.clone(), problem });
    }
    Ok(())
}

fn head(info: &TensorInfo) -> HeaderTensor<'_> {
    HeaderTensor { name: &info.name, ty: info.ty, shape: &info.shape }
}
