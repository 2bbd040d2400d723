//! Errors of packed files.

use super::GgufError;
use crate::identity::VERSION;

/// An error of a packed file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// Another version.
    #[error(
        "version {version} of packed files is not supported, version {VERSION} is; pack the model again with `latent pack`"
    )]
    Version { version: u32 },
    /// Numbers with the most significant byte first.
    #[error("its numbers are big-endian; pack the model again on this kind of machine")]
    BigEndian,
    /// Weights in another layout.
    #[error(
        "its weights are packed in the layout {layout:?}, which this version does not read; pack the model again with `latent pack`"
    )]
    Layout { layout: String },
    /// It has another length than its prelude says.
    #[error(
        "it has {found} bytes, but should have {expected}; the file is truncated or damaged: copy it again, or pack the model again"
    )]
    Length {
        /// The length in the prelude.
        expected: u64,
        /// The length of the file.
        found: u64,
    },
    /// The header is not as it was written.
    #[error(
        "its header is damaged (checksum {found:016x}, expected {expected:016x}): copy it again, or pack the model again"
    )]
    Checksum {
        /// What the prelude says.
        expected: u64,
        /// What the header has.
        found: u64,
    },
    /// The body is not a valid GGUF header.
    #[error("its header is malformed: {0}")]
    Gguf(GgufError),
    /// A key is missing, or not what it must be.
    #[error("{what}: {problem}; pack the model again")]
    Invalid {
        /// The key or tensor.
        what: String,
        problem: String,
    },
}
