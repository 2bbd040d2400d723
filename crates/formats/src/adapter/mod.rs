//! LoRA adapters: files with pairs of low-rank matrices for tensors of a base model, in llama.cpp's
//! form (GGUF) or in PEFT's (a folder).

mod file;
mod gguf;
mod peft;

pub use file::{AdapterFile, LowRankPair};
pub use peft::peft_module;

use crate::error::FormatError;
use std::path::Path;

impl AdapterFile {
    /// Opens a GGUF file or a PEFT folder.
    ///
    /// # Errors
    /// [`FormatError::Adapter`] for a file that is not an adapter or is not supported; errors of
    /// its header.
    pub fn open(path: &Path) -> Result<AdapterFile, FormatError> {
        if path.is_dir() { peft::open(path) } else { gguf::open(path) }
    }
}
