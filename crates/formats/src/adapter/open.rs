//! Opening an adapter by its form.

use super::file::AdapterFile;
use super::{gguf, peft};
use crate::error::FormatError;
use std::path::Path;

impl AdapterFile {
    /// Opens a GGUF file, or a folder of PEFT.
    ///
    /// # Errors
    /// [`FormatError::Adapter`] for a file that is not an adapter, or is one that is not supported; errors of its header.
    pub fn open(path: &Path) -> Result<AdapterFile, FormatError> {
        if path.is_dir() { peft::open(path) } else { gguf::open(path) }
    }
}
