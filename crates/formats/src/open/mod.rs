//! Opening of a model in any supported format.

mod folder;
mod gguf;
mod join;
mod packed;

pub(crate) use gguf::{shard_of, shard_path};

use crate::absent::RequiredFiles;
use crate::checkpoint::Checkpoint;
use crate::error::FormatError;
use crate::gguf::MAGIC;
use crate::map::FileBytes;
use crate::pack;
use crate::sniff::sniff;
use std::path::Path;

impl Checkpoint {
    /// Opens a GGUF file (any shard of a set), a model folder, a safetensors file of one, or a
    /// packed file.
    pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
        open(path, RequiredFiles::All)
    }

    /// Like [`open`](Self::open), for one of several ranks that share the model. Files without
    /// tensors of the rank may be missing: any shard but the first, which has the metadata, and any
    /// safetensors file of a folder. See [`absent_files`](Self::absent_files).
    pub fn open_for_rank(path: &Path) -> Result<Checkpoint, FormatError> {
        open(path, RequiredFiles::Some)
    }

    /// A GGUF file that is built into the program.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Checkpoint, FormatError> {
        gguf::in_memory(name, FileBytes::Static(bytes))
    }

    /// A GGUF file that the caller has read, for platforms without files (WebAssembly in a web
    /// page). `name` is for messages.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Checkpoint, FormatError> {
        if !bytes.starts_with(MAGIC) {
            return Err(FormatError::NotAModel { path: name.into(), what: sniff(Path::new(name), &bytes) });
        }
        gguf::in_memory(name, FileBytes::Owned(bytes))
    }
}

fn open(path: &Path, needed: RequiredFiles) -> Result<Checkpoint, FormatError> {
    let metadata =
        std::fs::metadata(path).map_err(|error| FormatError::Io { path: path.to_owned(), error })?;
    if metadata.is_dir() {
        return folder::open(path, needed);
    }
    // The first bytes decide. Only safetensors has no magic, and is recognized by its extension.
    let bytes = FileBytes::map(path)?;
    if bytes.get().starts_with(MAGIC) {
        return gguf::open(path, bytes, needed);
    }
    if bytes.get().starts_with(pack::MAGIC) {
        return packed::open(path, bytes);
    }
    // A safetensors file has no metadata of the model, so its whole folder is opened.
    if path.extension().is_some_and(|end| end == "safetensors") {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return folder::open(folder, needed);
    }
    Err(FormatError::NotAModel { path: path.to_owned(), what: sniff(path, bytes.get()) })
}
