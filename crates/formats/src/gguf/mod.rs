//! GGUF: reading a header from its first bytes, and writing files.

mod header;
mod metadata;
mod reader;
mod shard;
mod writer;

pub use crate::error::GgufError;
pub use header::{GgufTensorEntry, Header};
pub use metadata::{ArrayValue, Metadata, MetadataType, Value};
pub use shard::shard_name;
pub use writer::{Writer, WriterValue};

pub(crate) use header::{metadata_alone, tensor_bytes};

/// The first four bytes.
pub const MAGIC: &[u8; 4] = b"GGUF";

/// Alignment of tensor data where a file does not say.
pub const DEFAULT_ALIGNMENT: u32 = 32;
