//! GGUF files: a parser for headers, and a writer.

mod header;
mod metadata;
mod reader;
mod writer;

pub use crate::error::GgufError;
pub use header::{GgufTensorEntry, Header};
pub use metadata::{ArrayValue, Metadata, MetadataType, Value};
pub use writer::{Writer, WriterValue};

pub(crate) use header::{metadata_alone, tensor_bytes};

/// The first four bytes.
pub const MAGIC: &[u8; 4] = b"GGUF";

/// Alignment of tensor data without `general.alignment`.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// The name of shard `number` (from 0) of `count`: `NAME-00001-of-00003.gguf`.
pub fn shard_name(stem: &str, number: usize, count: usize) -> String {
    format!("{stem}-{:05}-of-{count:05}.gguf", number + 1)
}
