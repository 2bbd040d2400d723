//! Adapters of a checkpoint, by the names of their matrices.

use std::path::PathBuf;

/// How an adapter names the tensors of its base model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterNaming {
    /// As GGUF files do.
    Gguf,
    /// As Hugging Face folders do.
    HuggingFace,
}

/// An adapter of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct AttachedAdapter {
    /// The file or folder.
    pub path: PathBuf,
    pub naming: AdapterNaming,
    /// The scale of sequences that say no other.
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
