//! The outline of a model: its metadata and the names of its tensors, whether or not their data are present.

use crate::absent::Needed;
use crate::checkpoint::{Checkpoint, GgufSource, Source, display};
use crate::error::{FormatError, FourBitError};
use crate::folder::{self, HfSource, tensor_files};
use crate::four_bit::{Head, Settings, Shown, find, replace};
use crate::gguf::{self, GgufError, MAGIC};
use crate::map::Bytes;
use crate::open::{shard_of, shard_path};
use crate::safetensors::{self, SafetensorsError};
use crate::{json, limits};
use latent_files::InUse;
use latent_types::TensorType;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A model seen from outside: metadata, and tensors without their data.
///
/// Whatever [`Checkpoint`] opens has one; so have the first bytes of a GGUF or safetensors file, as far as its header goes, a folder that
/// holds config.json and no tensors, and a config.json alone.
pub struct Outline {
    path: PathBuf,
    source: Kept,
    tensors: Vec<TensorHead>,
    by_name: HashMap<String, usize>,
    data: Data,
    /// Its files, where no checkpoint holds them open.
    _in_use: Vec<InUse>,
}

/// What an outline's data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// All there.
    Whole,
    /// The header is there; the data of some tensors, or some files of a set, are not.
    Header,
    /// A config.json alone: not even the names of tensors.
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
    /// Bytes.
    pub bytes: u64,
}

enum Kept {
    Whole(Box<Checkpoint>),
    Parts(Box<Source>),
}

impl Outline {
    /// Opens what [`Checkpoint::open`] does, a file or folder whose tensors' data are missing, or a config.json.
    ///
    /// # Errors
    /// What is wrong, where, and what to do.
    pub fn open(path: &Path) -> Result<Outline, FormatError> {
        if path.extension().is_some_and(|end| end == "json") && path.is_file() {
            return config(path);
        }
        match Checkpoint::open(path) {
            Ok(checkpoint) => Ok(Outline::from(checkpoint)),
            Err(error) => without_data(path, &error)?.ok_or(error),
        }
    }

    /// Metadata of the file.
    pub fn source(&self) -> &Source {
        match &self.source {
            Kept::Whole(checkpoint) => checkpoint.source(),
            Kept::Parts(source) => source,
        }
    }

    /// Rows and columns of an FP8 matrix that share a scale.
    ///
    /// # Errors
    /// A size in config.json that is not supported.
    pub fn fp8_block(&self) -> Result<(usize, usize), FormatError> {
        self.source().fp8_block(&self.path)
    }

    /// The file with all its data, where they are there.
    pub fn whole(&self) -> Option<&Checkpoint> {
        match &self.source {
            Kept::Whole(checkpoint) => Some(checkpoint),
            Kept::Parts(_) => None,
        }
    }

    /// Which data there are.
    pub fn data(&self) -> Data {
        self.data
    }

    /// The path as messages show it.
    pub fn display_name(&self) -> String {
        display(&self.path)
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorHead] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorHead> {
        self.by_name.get(name).map(|i| &self.tensors[*i])
    }

    fn new(path: &Path, source: Kept, tensors: Vec<TensorHead>, data: Data, in_use: Vec<InUse>) -> Outline {
        let by_name = tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Outline { path: path.to_owned(), source, tensors, by_name, data, _in_use: in_use }
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
        Outline::new(&path, Kept::Whole(Box::new(checkpoint)), tensors, Data::Whole, Vec::new())
    }
}

/// A config.json under any name. Under its own it has the tokenizer and the chat template of its folder.
fn config(path: &Path) -> Result<Outline, FormatError> {
    let own_name = path.file_name().is_some_and(|name| name == "config.json");
    let source = match path.parent().filter(|_| own_name) {
        Some(folder) => HfSource::read(folder)?,
        None => match json::read(path)? {
            Some(Value::Object(config)) => HfSource { config, ..HfSource::default() },
            _ => {
                let problem = "it holds no JSON object".into();
                return Err(FormatError::Json { path: path.to_owned(), problem });
            }
        },
    };
    let source = Source::HuggingFace(source);
    let in_use = InUse::at(path).into_iter().collect();
    Ok(Outline::new(path, Kept::Parts(Box::new(source)), Vec::new(), Data::Config, in_use))
}

/// The outline of a model that cannot be opened because data are missing; none where something else is wrong.
fn without_data(path: &Path, error: &FormatError) -> Result<Option<Outline>, FormatError> {
    if path.is_dir() {
        return if path.join("config.json").is_file() { folder(path).map(Some) } else { Ok(None) };
    }
    match error {
        FormatError::Gguf { error: GgufError::PastEnd { .. }, .. } | FormatError::Set { .. } => gguf(path),
        FormatError::Safetensors { .. } => {
            let folder_of = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            folder(folder_of).map(Some)
        }
        _ => Ok(None),
    }
}

/// The headers of a GGUF file, or of those files of its set that are there.
fn gguf(path: &Path) -> Result<Option<Outline>, FormatError> {
    let bytes = Bytes::map(path)?;
    if !bytes.get().starts_with(MAGIC) {
        return Ok(None);
    }
    // the places of tensors are of no interest: any file is long enough
    let parse = |path: &Path, bytes: &[u8]| {
        let parsed = gguf::Header::parse(bytes, i64::MAX as u64).map_err(|error| match error {
            // that long a file would go on; this one does not
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
    let mut entries = header.tensors;
    let mut in_use = Vec::from_iter(InUse::at(path));
    if let Some((number, count)) = shard_of(path, &source.metadata)? {
        for other in (0..count).filter(|other| *other != number) {
            let shard = shard_path(path, other, count)?;
            if !shard.is_file() {
                continue;
            }
            let header = parse(&shard, Bytes::map(&shard)?.get())?;
            source.shards += 1;
            in_use.extend(InUse::at(&shard));
            if other == 0 {
                // the first shard holds the metadata of all
                source.metadata = header.metadata;
            }
            entries.extend(header.tensors);
            if entries.len() as u64 > limits::MAX_TENSORS {
                let problem = format!("its files hold more than {} tensors", limits::MAX_TENSORS);
                return Err(FormatError::Set { path: path.to_owned(), problem });
            }
        }
    }
    let head = |t: gguf::TensorEntry| TensorHead { name: t.name, ty: t.ty, shape: t.shape, bytes: t.bytes };
    let tensors = entries.into_iter().map(head).collect();
    let source = Kept::Parts(Box::new(Source::Gguf(source)));
    Ok(Some(Outline::new(path, source, tensors, Data::Header, in_use)))
}

/// A folder with config.json: the headers of the safetensors files that are there.
fn folder(folder: &Path) -> Result<Outline, FormatError> {
    let source = HfSource::read(folder)?;
    let settings = Settings::of(&source);
    let source = Kept::Parts(Box::new(Source::HuggingFace(source)));
    let mut in_use = folder::in_use(folder);
    let files = match tensor_files(folder, Needed::All) {
        Ok((files, _)) => files,
        // nothing to read headers from: the config speaks alone
        Err(_) => return Ok(Outline::new(folder, source, Vec::new(), Data::Config, in_use)),
    };
    let mut tensors = Vec::new();
    for path in &files {
        let bytes = Bytes::map(path)?;
        in_use.extend(InUse::at(path));
        let failed = |error| FormatError::Safetensors { path: path.clone(), error };
        let entries = safetensors_header(bytes.get()).map_err(failed)?;
        tensors.extend(entries.into_iter().map(|t| TensorHead {
            name: t.name,
            ty: t.ty,
            shape: t.shape,
            bytes: t.bytes,
        }));
    }
    let failed = |error| FormatError::FourBit { path: folder.to_owned(), error: Box::new(error) };
    let tensors = settings.and_then(|settings| join(tensors, settings.as_ref())).map_err(failed)?;
    Ok(Outline::new(folder, source, tensors, Data::Header, in_use))
}

/// The tensors with each 4-bit weight in place of those that it consists of.
fn join(tensors: Vec<TensorHead>, settings: Option<&Settings>) -> Result<Vec<TensorHead>, FourBitError> {
    let heads: Vec<Head<'_>> =
        tensors.iter().map(|t| Head { name: &t.name, ty: t.ty, shape: &t.shape }).collect();
    let all = find(&heads, settings, &|_| None)?;
    if all.is_empty() {
        return Ok(tensors);
    }
    let shown = |shown: Shown<'_>| TensorHead {
        name: shown.name,
        ty: shown.ty,
        shape: shown.shape.to_vec(),
        bytes: shown.bytes as u64,
    };
    Ok(replace(&tensors, &all, &|head: &TensorHead| head.ty, &shown))
}

/// The tensors of a safetensors file whose data may be missing: the header itself says how long the file should be.
fn safetensors_header(bytes: &[u8]) -> Result<Vec<safetensors::TensorEntry>, SafetensorsError> {
    let len = bytes.len() as u64;
    let claimed = match safetensors::Header::parse(bytes, len) {
        Ok(header) => return Ok(header.tensors),
        Err(error @ SafetensorsError::PastEnd { .. }) => claimed_len(bytes).ok_or(error)?,
        Err(error) => return Err(error),
    };
    safetensors::Header::parse(bytes, claimed).map(|header| header.tensors)
}

/// Header and data together, by the largest end of a tensor that the header states.
fn claimed_len(bytes: &[u8]) -> Option<u64> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    let header = usize::try_from(u64::from_le_bytes(*len)).ok()?;
    let described: serde_json::Map<String, Value> = serde_json::from_slice(rest.get(..header)?).ok()?;
    let end = |tensor: &Value| tensor.get("data_offsets")?.get(1)?.as_u64();
    described.values().filter_map(end).max()?.checked_add(8 + header as u64)
}
