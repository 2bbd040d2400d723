//! GGUF files: metadata, tensors, and decoding.

pub(crate) mod decode;
pub(crate) mod file;
pub(crate) mod metadata;
pub(crate) mod tensor;
