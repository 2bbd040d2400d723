//! The outline of a model: metadata and tensor names, even if the data are missing.

use crate::absent::RequiredFiles;
use crate::checkpoint::{Checkpoint, CheckpointSource, GgufSource, display};
use crate::error::{FormatError, FourBitError};
use crate::folder::{self, HfSource, tensor_files};
use crate::four_bit::{FourBitSettings, HeaderTensor, VirtualTensor, find, replace};
use crate::fp8::Fp8Scales;
use crate::gguf::{self, GgufError};
use crate::map::FileBytes;
use crate::open::{shard_of, shard_path};
use crate::safetensors::{self, SafetensorsError};
use crate::spelling::{PublishedName, Spelling};
use crate::{json, limits, mistral, weight_format};
use latent_files::OpenFileGuard;
use latent_types::TensorType;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Metadata of a model, and its tensors without data.
///
/// It can be made of anything that [`Checkpoint`] opens, of a truncated GGUF or safetensors file
/// with a complete header, of a folder with config.json and without tensors, and of a config.json
/// alone. `latent check` uses it to judge a model before it is downloaded.
pub struct Outline {
    path: PathBuf,
    source: OutlineBacking,
    tensors: Vec<TensorHead>,
    by_name: HashMap<String, usize>,
    data: OutlineData,
    /// The reason why the model cannot be opened as a [`Checkpoint`].
    refusal: Option<FormatError>,
    /// Guards of the files, if no checkpoint holds them open.
    _in_use: Vec<OpenFileGuard>,
}

/// The available data of an outline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutlineData {
    Whole,
    /// The headers. Data of some tensors, or some files of a set, are missing.
    Header,
    /// A config.json alone, without tensor names.
    Config,
}

/// A tensor without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorHead {
    /// Its name in the file.
    pub name: String,
    /// Type of its elements.
    pub ty: TensorType,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    pub bytes: u64,
}

impl TensorHead {
    fn head(&self) -> HeaderTensor<'_> {
        HeaderTensor { name: &self.name, ty: self.ty, shape: &self.shape }
    }
}

enum OutlineBacking {
    Whole(Box<Checkpoint>),
    Parts(Box<CheckpointSource>),
}

impl Outline {
    /// Opens what [`Checkpoint::open`] does, a file or folder whose tensors' data are missing, or a
    /// config.json.
    pub fn open(path: &Path) -> Result<Outline, FormatError> {
        if path.extension().is_some_and(|end| end == "json") && path.is_file() {
            return config(path);
        }
        match Checkpoint::open(path) {
            Ok(checkpoint) => Ok(Outline::from(checkpoint)),
            Err(error) => refused(path, error),
        }
    }

    /// The reason why [`Checkpoint::open`] rejects the model: missing data or files, or an
    /// unsupported format. `None` for a model that can be opened, for a header without any data,
    /// and for a config.json without weights.
    pub fn refusal(&self) -> Option<&FormatError> {
        self.refusal.as_ref()
    }

    /// Metadata of the file.
    pub fn source(&self) -> &CheckpointSource {
        match &self.source {
            OutlineBacking::Whole(checkpoint) => checkpoint.source(),
            OutlineBacking::Parts(source) => source,
        }
    }

    /// Rows and columns of an FP8 matrix that share a scale.
    pub fn fp8_block(&self) -> Result<(usize, usize), FormatError> {
        self.source().fp8_block(&self.path)
    }

    /// The checkpoint, if all data are present.
    pub fn whole(&self) -> Option<&Checkpoint> {
        match &self.source {
            OutlineBacking::Whole(checkpoint) => Some(checkpoint),
            OutlineBacking::Parts(_) => None,
        }
    }

    /// The [`refusal`](Self::refusal), as an error.
    pub fn into_refusal(self) -> Option<FormatError> {
        self.refusal
    }

    /// Whether the names of all tensors are known.
    pub fn names_all_tensors(&self) -> bool {
        self.data != OutlineData::Config && !matches!(self.refusal, Some(FormatError::Incomplete { .. }))
    }

    pub fn data(&self) -> OutlineData {
        self.data
    }

    /// The path as text, for messages.
    pub fn display_name(&self) -> String {
        display(&self.path)
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorHead] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorHead> {
        self.by_name.get(name).map(|i| &self.tensors[*i])
    }

    fn new(
        path: &Path,
        source: OutlineBacking,
        tensors: Vec<TensorHead>,
        data: OutlineData,
        in_use: Vec<OpenFileGuard>,
    ) -> Outline {
        let by_name = tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Outline { path: path.to_owned(), source, tensors, by_name, data, refusal: None, _in_use: in_use }
    }
}

impl From<Checkpoint> for Outline {
    fn from(checkpoint: Checkpoint) -> Outline {
        let head = |t: &crate::TensorInfo| TensorHead {
            name: t.name.clone(),
            ty: t.ty,
            shape: t.shape.clone(),
            bytes: t.bytes as u64,
        };
        let tensors = checkpoint.tensors().iter().map(head).collect();
        let path = checkpoint.path().to_owned();
        Outline::new(
            &path,
            OutlineBacking::Whole(Box::new(checkpoint)),
            tensors,
            OutlineData::Whole,
            Vec::new(),
        )
    }
}

/// The outline of a config.json or params.json. With its usual name, it includes the tokenizer and
/// the chat template of its folder.
fn config(path: &Path) -> Result<Outline, FormatError> {
    // With another name, the file may be of another model than the rest of the folder.
    let has_name = |own: &str| path.file_name().is_some_and(|name| name == own);
    // `HfSource::read` prefers config.json to params.json.
    let folder = path.parent().filter(|folder| {
        has_name("config.json") || has_name("params.json") && !folder.join("config.json").exists()
    });
    let source = match folder {
        Some(folder) => HfSource::read(folder)?,
        None => match json::read(path)? {
            // A params.json with another name is recognized by its keys.
            Some(Value::Object(params)) if params.contains_key("dim") && params.contains_key("n_layers") => {
                HfSource { config: mistral::config(params), from_params: true, ..HfSource::default() }
            }
            Some(Value::Object(config)) => HfSource { config, ..HfSource::default() },
            _ => {
                let problem = "it must contain a JSON object".into();
                return Err(FormatError::Json { path: path.to_owned(), problem });
            }
        },
    };
    let source = CheckpointSource::HuggingFace(source);
    let in_use = OpenFileGuard::at(path).into_iter().collect();
    Ok(Outline::new(path, OutlineBacking::Parts(Box::new(source)), Vec::new(), OutlineData::Config, in_use))
}

/// The outline of a model that cannot be opened. Errors other than missing data are returned.
fn refused(path: &Path, error: FormatError) -> Result<Outline, FormatError> {
    // The parent of a bare file name is the empty path.
    let parent = || path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = if path.is_dir() { path } else { parent() };
    // The user learns the reason together with what config.json says.
    if error.is_unsupported() {
        return Ok(Outline { refusal: Some(error), ..of_config(folder)? });
    }
    if !error.is_incomplete() {
        return if folder_without_weights(path) { of_config(path) } else { Err(error) };
    }
    let is_safetensors = path.is_dir() || path.extension().is_some_and(|end| end == "safetensors");
    if is_safetensors { headers(folder, error) } else { gguf(path, error) }
}

/// Whether a folder contains config.json and no weight files.
fn folder_without_weights(path: &Path) -> bool {
    let has = |name: &str| path.join(name).is_file();
    path.is_dir() && (has("config.json") || has("params.json")) && folder::has_no_weights(path)
}

/// The outline of a folder's small files.
fn of_config(folder: &Path) -> Result<Outline, FormatError> {
    let source = OutlineBacking::Parts(Box::new(CheckpointSource::HuggingFace(HfSource::read(folder)?)));
    Ok(Outline::new(folder, source, Vec::new(), OutlineData::Config, folder::in_use(folder)))
}

/// The outline of the headers of a GGUF file and of the existing shards of its set. `refusal` is
/// the error of opening it.
fn gguf(path: &Path, refusal: FormatError) -> Result<Outline, FormatError> {
    let bytes = FileBytes::map(path)?;
    // A claimed length of i64::MAX, so that missing tensor data cause no error.
    let parse = |path: &Path, bytes: &[u8]| {
        let parsed = gguf::Header::parse(bytes, i64::MAX as u64).map_err(|error| match error {
            // `bytes` is the whole file, so the header itself is truncated.
            GgufError::NeedMore { what, have, need } => {
                GgufError::Truncated { what, claimed: need - have, at: have, len: have }
            }
            error => error,
        });
        let mut header = parsed.map_err(|error| FormatError::Gguf { path: path.to_owned(), error })?;
        header.metadata.name_file(display(path));
        Ok::<_, FormatError>(header)
    };
    let header = parse(path, bytes.get())?;
    let mut source = GgufSource {
        version: header.version,
        alignment: header.alignment,
        shards: 1,
        metadata: header.metadata,
    };
    // A file that ends with its header is meant to be a header (`write_header`, or the first bytes
    // of a download). One that ends later is damaged.
    let ends = bytes.get().len() as u64 <= header.data_start;
    let mut entries = header.tensors;
    let mut in_use = Vec::from_iter(OpenFileGuard::at(path));
    let shard = shard_of(path, &source.metadata)?;
    if let Some((number, count)) = shard {
        for other in (0..count).filter(|other| *other != number) {
            let shard = shard_path(path, other, count)?;
            // `refusal` already reports the missing shard.
            if !shard.is_file() {
                continue;
            }
            let header = parse(&shard, FileBytes::map(&shard)?.get())?;
            source.shards += 1;
            in_use.extend(OpenFileGuard::at(&shard));
            if other == 0 {
                // The first shard has the metadata of the set.
                source.metadata = header.metadata;
            }
            entries.extend(header.tensors);
            // The parser limits the tensors of one file only.
            if entries.len() as u64 > limits::MAX_TENSORS {
                let problem = format!("its files hold more than {} tensors", limits::MAX_TENSORS);
                return Err(FormatError::Set { path: path.to_owned(), problem });
            }
        }
    }
    let head =
        |t: gguf::GgufTensorEntry| TensorHead { name: t.name, ty: t.ty, shape: t.shape, bytes: t.bytes };
    let tensors = entries.into_iter().map(head).collect();
    let source = OutlineBacking::Parts(Box::new(CheckpointSource::Gguf(source)));
    let refusal = (!ends || shard.is_some()).then_some(refusal);
    Ok(Outline { refusal, ..Outline::new(path, source, tensors, OutlineData::Header, in_use) })
}

/// The outline of the headers of a folder's existing safetensors files. `refusal` is the error of
/// opening the folder.
fn headers(folder: &Path, refusal: FormatError) -> Result<Outline, FormatError> {
    let source = HfSource::read(folder)?;
    let mut in_use = folder::in_use(folder);
    // Fails if no file of the index exists. Then only config.json is known.
    let Ok((files, index)) = tensor_files(folder, RequiredFiles::Some) else { return of_config(folder) };
    // Files of a set are never meant to be headers only.
    let (mut tensors, mut ends) = (Vec::new(), files.len() == 1);
    for (number, path) in files.iter().enumerate().filter(|(_, path)| path.exists()) {
        let bytes = FileBytes::map(path)?;
        in_use.extend(OpenFileGuard::at(path));
        let failed = |error| FormatError::Safetensors { path: path.clone(), error };
        let header = match safetensors_header(bytes.get()).map_err(failed) {
            Ok(header) => header,
            Err(error) if error.is_unsupported() => {
                return Ok(Outline { refusal: Some(error), ..of_config(folder)? });
            }
            Err(error) => return Err(error),
        };
        ends &= bytes.get().len() as u64 <= header.data_start;
        // The same rule as in open/folder.rs.
        let renamed = mistral::names_tensors(path) || source.from_params && index.is_none();
        tensors.extend(header.tensors.into_iter().map(|t| {
            let name = mistral::plain_name(&t.name).filter(|_| renamed).unwrap_or(t.name);
            let head = TensorHead { name, ty: t.ty, shape: t.shape, bytes: t.bytes };
            (head, number as u32)
        }));
    }
    if let Some(index) = index {
        let is_here = |file: u32| files[file as usize].exists();
        index.remove_other_copies(&mut tensors, &|(head, file)| (head.name.as_str(), *file), &is_here);
    }
    let tensors = respelled(&source, tensors.into_iter().map(|(head, _)| head));
    match weights(folder, &source, tensors) {
        Ok(tensors) => {
            let source = OutlineBacking::Parts(Box::new(CheckpointSource::HuggingFace(source)));
            let refusal = (!ends).then_some(refusal);
            Ok(Outline { refusal, ..Outline::new(folder, source, tensors, OutlineData::Header, in_use) })
        }
        Err(error) if ends && !error.is_unsupported() => Err(error),
        // With missing files, the error may only be a consequence of that.
        Err(error) => {
            let refusal = if ends { error } else { refusal };
            Ok(Outline { refusal: Some(refusal), ..of_config(folder)? })
        }
    }
}

/// The tensors with their published names; see `spelling.rs`.
fn respelled(source: &HfSource, tensors: impl Iterator<Item = TensorHead>) -> Vec<TensorHead> {
    let Some(spelling) = Spelling::of(&source.config) else { return tensors.collect() };
    tensors
        .flat_map(|head| match spelling.published(&head.name, head.ty, &head.shape) {
            PublishedName::Whole(name) => vec![TensorHead { name, ..head }],
            PublishedName::Thirds(names) => {
                let third = |name| {
                    let mut shape = head.shape.clone();
                    shape[0] /= 3;
                    TensorHead { name, ty: head.ty, shape, bytes: head.bytes / 3 }
                };
                names.map(third).into()
            }
        })
        .collect()
}

/// The tensors of a folder as a checkpoint has them: 4-bit weights joined, FP8 scales renamed.
fn weights(
    folder: &Path,
    source: &HfSource,
    tensors: Vec<TensorHead>,
) -> Result<Vec<TensorHead>, FormatError> {
    let four_bit = |error| FormatError::FourBit { path: folder.to_owned(), error: Box::new(error) };
    let settings = FourBitSettings::of(source).map_err(four_bit)?;
    let tensors =
        join(tensors, settings.as_ref()).map_err(|error| weight_format::of_packed(folder, source, error))?;
    let by_name: HashMap<&str, HeaderTensor<'_>> =
        tensors.iter().map(|t| (t.name.as_str(), t.head())).collect();
    let find = |name: &str| by_name.get(name).copied();
    let scales = weight_format::fp8_scales(folder, source, tensors.iter().map(TensorHead::head), &find)?;
    let scales: HashMap<&str, &Fp8Scales> =
        scales.iter().map(|scales| (scales.stored.as_str(), scales)).collect();
    let mut shown = tensors.clone();
    for head in &mut shown {
        if let Some(scales) = scales.get(head.name.as_str()) {
            (head.name, head.shape) = (scales.shown.clone(), scales.shape.clone());
        // Each E5M2 code becomes an f16; see `TensorType::F8_E5M2`.
        } else if head.ty == TensorType::F8_E5M2 {
            (head.ty, head.bytes) = (TensorType::F16, head.bytes.saturating_mul(2));
        }
    }
    Ok(shown)
}

/// Replaces the tensors of each 4-bit weight by one tensor.
fn join(
    tensors: Vec<TensorHead>,
    settings: Option<&FourBitSettings>,
) -> Result<Vec<TensorHead>, FourBitError> {
    let heads: Vec<HeaderTensor<'_>> = tensors.iter().map(TensorHead::head).collect();
    // Without data, the order of inputs is unknown; see `Finder::reorder`.
    let all = find(&heads, settings, &|_| None)?;
    if all.is_empty() {
        return Ok(tensors);
    }
    let shown = |shown: VirtualTensor<'_>| TensorHead {
        name: shown.name,
        ty: shown.ty,
        shape: shown.shape.to_vec(),
        bytes: shown.bytes as u64,
    };
    Ok(replace(&tensors, &all, &|head: &TensorHead| head.ty, &shown))
}

/// Parses the header of a safetensors file whose data may be missing. The header itself tells the
/// length of the complete file.
fn safetensors_header(bytes: &[u8]) -> Result<safetensors::Header, SafetensorsError> {
    match safetensors::Header::parse(bytes, bytes.len() as u64) {
        Err(error @ SafetensorsError::PastEnd { .. }) => {
            safetensors::Header::parse(bytes, claimed_len(bytes).ok_or(error)?)
        }
        parsed => parsed,
    }
}

/// Length of the complete file, by the largest end of a tensor in the header.
fn claimed_len(bytes: &[u8]) -> Option<u64> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    let header = usize::try_from(u64::from_le_bytes(*len)).ok()?;
    let described: serde_json::Map<String, Value> = serde_json::from_slice(rest.get(..header)?).ok()?;
    // `__metadata__` has no offsets, and is skipped.
    let end = |tensor: &Value| tensor.get("data_offsets")?.get(1)?.as_u64();
    described.values().filter_map(end).max()?.checked_add(8 + header as u64)
}
