//! safetensors: an eight-byte length, a JSON header, and data.

mod reader;
mod writer;

pub(crate) use reader::read_header;
pub use writer::Writer;

use base::TensorType;
use std::ops::Range;

/// The tensors of a whole file in memory: name, type, shape (outermost first), and the bytes where each lies.
///
/// # Errors
/// What is wrong with the header, in words.
#[allow(clippy::type_complexity, reason = "four plain things about a tensor")]
pub fn list(bytes: &[u8]) -> Result<Vec<(String, TensorType, Vec<usize>, Range<usize>)>, String> {
    let entries = read_header(bytes)?;
    Ok(entries.into_iter().map(|e| (e.name, e.ty, e.shape, e.start..e.start + e.bytes)).collect())
}
