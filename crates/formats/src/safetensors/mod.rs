//! safetensors: an eight-byte length, a JSON header, and data.

mod reader;
mod writer;

pub(crate) use reader::read_header;
pub use writer::Writer;
