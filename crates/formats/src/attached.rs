//! Adapters that are attached to a checkpoint.

use std::path::PathBuf;

/// The naming of base tensors in an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterNaming {
    /// Names of GGUF files.
    Gguf,
    /// Names of Hugging Face folders.
    HuggingFace,
}

/// An adapter of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct AttachedAdapter {
    /// The file or folder.
    pub path: PathBuf,
    pub naming: AdapterNaming,
    /// The default scale of sequences.
    pub scale: f32,
    pub pairs: Vec<AttachedPair>,
}

/// A pair of matrices, by their names in the checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct AttachedPair {
    /// The name of the changed tensor, in the adapter's naming.
    pub target: String,
    pub a: String,
    pub b: String,
    /// Factor on B · A, in addition to a sequence's scale.
    pub factor: f64,
}
