//! Errors of packed files.

use super::GgufError;
use crate::identity::VERSION;

/// An error of a packed file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    #[error(
        "version {version} of packed files is not supported, expected {VERSION}; pack the model again with \
         `latent pack`"
    )]
    Version { version: u32 },
    #[error("it is big-endian; pack the model again on this machine")]
    BigEndian,
    #[error(
        "its weights are packed in the layout {layout:?}, which this version does not support; pack the \
         model again with `latent pack`"
    )]
    Layout { layout: String },
    #[error(
        "it has {found} bytes, expected {expected}; the file is truncated or damaged: copy it again, or pack \
         the model again"
    )]
    Length { expected: u64, found: u64 },
    #[error(
        "its header is damaged (checksum {found:016x}, expected {expected:016x}): copy it again, or pack the model again"
    )]
    Checksum { expected: u64, found: u64 },
    #[error("its header is malformed: {0}")]
    Gguf(GgufError),
    /// A missing or invalid key.
    #[error("{what}: {problem}; pack the model again")]
    Invalid { what: String, problem: String },
}
