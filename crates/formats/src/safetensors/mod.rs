//! safetensors files: an eight-byte length, a JSON header, and data.

mod header;
mod json;
mod writer;

pub use crate::error::SafetensorsError;
pub use header::{Header, SafetensorsTensorEntry};
pub use writer::Writer;

use latent_types::TensorType;
use std::ops::Range;

/// The tensors of a file in memory: name, type, shape (outermost dimension first) and byte range.
#[allow(clippy::type_complexity, reason = "four plain things about a tensor")]
pub fn list(bytes: &[u8]) -> Result<Vec<(String, TensorType, Vec<usize>, Range<usize>)>, SafetensorsError> {
    let header = Header::parse(bytes, bytes.len() as u64)?;
    let range =
        |tensor: &SafetensorsTensorEntry| tensor.start as usize..(tensor.start + tensor.bytes) as usize;
    Ok(header.tensors.into_iter().map(|t| (t.name.clone(), t.ty, t.shape.clone(), range(&t))).collect())
}
