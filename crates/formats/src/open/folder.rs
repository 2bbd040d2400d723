//! Opening model folders of safetensors files.

use super::join::join;
use crate::builder::{Builder, Placed};
use crate::checkpoint::{Checkpoint, Source};
use crate::error::FormatError;
use crate::folder::{HfSource, in_use, tensor_files};
use crate::four_bit::Settings;
use crate::index::Index;
use crate::limits;
use crate::map::Bytes;
use crate::safetensors::{Header, SafetensorsError};
use crate::sniff::sniff;
use crate::tensor::Place;
use latent_types::TensorType;
use std::path::{Path, PathBuf};

/// Opens the model in `folder`.
pub(super) fn open(folder: &Path) -> Result<Checkpoint, FormatError> {
    let source = HfSource::read(folder)?;
    let (paths, index) = tensor_files(folder)?;
    let mut builder = Builder::new();
    builder.keep(in_use(folder));
    builder.note(serde_json::to_string(&source.config).unwrap_or_default().as_bytes());
    for path in &paths {
        let bytes = Bytes::map(path)?;
        let header = Header::parse(bytes.get(), bytes.get().len() as u64)
            .map_err(|error| refused(path, bytes.get(), error))?;
        builder.file(bytes, header.data_start, header.tensors.into_iter().map(Placed::from));
        if builder.tensors() > limits::MAX_FOLDER_TENSORS {
            let problem = format!("its files hold more than {} tensors", limits::MAX_FOLDER_TENSORS);
            return Err(FormatError::Set { path: folder.to_owned(), problem });
        }
    }
    let settings = Settings::of(&source);
    let mut checkpoint = builder.finish(folder.to_owned(), Source::HuggingFace(source))?;
    if let Some(index) = index {
        check_index(&checkpoint, &index, &paths)?;
    }
    let failed = |error| FormatError::FourBit { path: folder.to_owned(), error: Box::new(error) };
    settings.and_then(|settings| join(&mut checkpoint, settings.as_ref())).map_err(failed)?;
    for tensor in checkpoint.tensors().iter().filter(|tensor| tensor.ty == TensorType::F8_E4M3) {
        check_scales(&checkpoint, &tensor.name, &tensor.shape, checkpoint.fp8_block()?)?;
    }
    Ok(checkpoint)
}

impl From<crate::safetensors::TensorEntry> for Placed {
    fn from(t: crate::safetensors::TensorEntry) -> Placed {
        Placed { name: t.name, ty: t.ty, shape: t.shape, start: t.start, bytes: t.bytes, tile_rows: None }
    }
}

/// The error of a file that is not a safetensors file; if it is something else altogether, a guess of what it is.
fn refused(path: &Path, bytes: &[u8], error: SafetensorsError) -> FormatError {
    match error {
        SafetensorsError::HeaderLength { .. } => {
            FormatError::NotAModel { path: path.to_owned(), what: sniff(path, bytes) }
        }
        error => FormatError::Safetensors { path: path.to_owned(), error },
    }
}

/// Every tensor of the index must be in the file that it names.
fn check_index(checkpoint: &Checkpoint, index: &Index, paths: &[PathBuf]) -> Result<(), FormatError> {
    for (name, file) in &index.tensors {
        let held = checkpoint.info(name).and_then(|info| match info.place {
            Place::File { file, .. } => Some(file),
            Place::FourBit(_) | Place::Factor(_) | Place::Cut(_) => None,
        });
        if held == Some(*file as usize) {
            continue;
        }
        let path = &paths[*file as usize];
        let problem = match held {
            None => format!("it lacks tensor {name}, which the index says it holds; download both again"),
            Some(other) => {
                format!("the index says that it holds tensor {name}, which is in {}", paths[other].display())
            }
        };
        return Err(FormatError::Set { path: path.clone(), problem });
    }
    Ok(())
}

/// An FP8 matrix needs an F32 scale for each block of `block` elements.
fn check_scales(
    checkpoint: &Checkpoint,
    name: &str,
    shape: &[usize],
    block: (usize, usize),
) -> Result<(), FormatError> {
    let scale = format!("{name}_scale_inv");
    let problem = if let &[rows, cols] = shape {
        let expected = [rows.div_ceil(block.0), cols.div_ceil(block.1)];
        match checkpoint.info(&scale) {
            None => format!("FP8 tensor {name} lacks its scales {scale}"),
            Some(found) if found.ty != TensorType::F32 => {
                format!("the scales {scale} are {}, expected F32", found.ty)
            }
            Some(found) if found.shape != expected => {
                format!("{scale} has shape {:?}, expected {expected:?} for {name} of {shape:?}", found.shape)
            }
            Some(_) => return Ok(()),
        }
    } else {
        format!("FP8 tensor {name} has shape {shape:?}; only matrices can have scales for blocks of numbers")
    };
    Err(FormatError::Set { path: checkpoint.path().to_owned(), problem })
}
