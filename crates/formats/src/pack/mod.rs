//! Packed files: a model with weights in the layout of the kernels, in one file that is mapped and
//! used in place.
//!
//! The first [`PAGE`] bytes are the prelude: magic, version, lengths and a checksum. The body has
//! the form of a GGUF file, so that one parser is enough. Its metadata contain the source's
//! metadata and the layout of each tensor. Its tensors are bytes (`I8`). The prelude prevents other
//! programs from reading the file as GGUF. docs/packed-files.md describes every field.

mod directory;
mod source;
mod writer;

pub use crate::error::PackError;
pub use crate::identity::{Identity, PackSource, VERSION};
pub use directory::{Directory, PackedEntry};
pub use writer::{PackWriter, TiledTensor};

pub(crate) use source::packed_source;

/// The first eight bytes.
pub const MAGIC: &[u8; 8] = b"LATENTPK";

// The size of a page of memory, so that tensors begin at page boundaries of the map.
/// Bytes of the prelude, and alignment of tensors.
pub const PAGE: u64 = 4096;

/// The only layout of this version: sixteen rows interleaved (`latent_quant::tiles`), for the CPU
/// backend's kernels. Files from before layouts had names have it too.
pub const LAYOUT: &str = "tiles16";

/// Extension of packed files.
pub const EXTENSION: &str = "latent";

/// Metadata keys of the body.
mod keys {
    pub(super) const ARCHITECTURE: &str = "latent-packed";
    pub(super) const SOURCE_NAME: &str = "latent.source.name";
    pub(super) const SOURCE_FILES: &str = "latent.source.files";
    pub(super) const SOURCE_HEADER: &str = "latent.source.header_hash";
    pub(super) const SOURCE_SAMPLE: &str = "latent.source.sample_hash";
    /// The first bytes of a GGUF source, to the end of its metadata.
    pub(super) const SOURCE_GGUF: &str = "latent.source.gguf";
    /// Prefix of the files of a source folder. The file's name follows.
    pub(super) const SOURCE_FILE: &str = "latent.source.file.";
    /// The layout of tensors that are not row-major.
    pub(super) const LAYOUT: &str = "latent.tensor.layout";
    pub(super) const TYPES: &str = "latent.tensor.types";
    pub(super) const DIMENSIONS: &str = "latent.tensor.dimensions";
    pub(super) const SHAPES: &str = "latent.tensor.shapes";
    pub(super) const TILE_ROWS: &str = "latent.tensor.tile_rows";
}
