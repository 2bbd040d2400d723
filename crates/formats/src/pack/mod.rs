//! Packed files: a model whose weights already lie as kernels read them, in one file that is mapped and used in place.
//!
//! The first [`PAGE`] bytes are the prelude: magic, version, lengths and a checksum. What follows has the form of a GGUF file, so that no second
//! parser is needed: its metadata carry what the source said beside its tensors and how each tensor lies; its tensors are plain bytes (`I8`). The
//! prelude keeps other programs from taking it for a GGUF file. docs/packed-files.md describes every field.

mod directory;
mod error;
mod source;
mod writer;

pub use directory::{Directory, PackedEntry};
pub use error::PackError;
pub use writer::{PackWriter, Tiles};

pub(crate) use source::packed_source;

/// The first eight bytes.
pub const MAGIC: &[u8; 8] = b"LATENTPK";

/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// Bytes of the prelude; tensors begin at multiples of it.
pub const PAGE: u64 = 4096;

/// What packed files are called.
pub const EXTENSION: &str = "latent";

/// Where a packed file came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFrom {
    /// Version of the packed file.
    pub version: u32,
    /// Name of the source's file or folder, without the path.
    pub name: String,
    /// Files of the source.
    pub files: u64,
    /// What tells the source from other files.
    pub identity: Identity,
}

/// What tells a model from others without reading all of it: metadata, tensors and sizes, and samples of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// See [`Checkpoint::fingerprint`](crate::Checkpoint::fingerprint).
    pub header: u64,
    /// A hash of bytes taken from all over the weights.
    pub sample: u64,
}

/// FNV-1a, continued from `hash`.
pub(crate) fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Where FNV-1a begins.
pub(crate) const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// The names under which the body keeps things.
mod keys {
    pub(super) const ARCHITECTURE: &str = "latent-packed";
    pub(super) const SOURCE_NAME: &str = "latent.source.name";
    pub(super) const SOURCE_FILES: &str = "latent.source.files";
    pub(super) const SOURCE_HEADER: &str = "latent.source.header_hash";
    pub(super) const SOURCE_SAMPLE: &str = "latent.source.sample_hash";
    /// The first bytes of a GGUF source, to the end of its metadata.
    pub(super) const SOURCE_GGUF: &str = "latent.source.gguf";
    /// Files of a source folder: their names follow.
    pub(super) const SOURCE_FILE: &str = "latent.source.file.";
    pub(super) const TYPES: &str = "latent.tensor.types";
    pub(super) const DIMENSIONS: &str = "latent.tensor.dimensions";
    pub(super) const SHAPES: &str = "latent.tensor.shapes";
    pub(super) const TILE_ROWS: &str = "latent.tensor.tile_rows";
}
