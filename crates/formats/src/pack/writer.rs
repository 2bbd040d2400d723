//! Writer of packed files: prelude, header and tensors.

use super::source::source_keys;
use super::{LAYOUT, MAGIC, PAGE, keys};
use crate::checkpoint::Checkpoint;
use crate::error::FormatError;
use crate::gguf::{Writer, WriterValue};
use crate::identity::{FNV_START, VERSION, fnv};
use latent_types::TensorType;
use std::io::{self, Write};

/// A note in the prelude for users who open the file in an editor.
const NOTE: &str =
    "A model packed by `latent pack`. Run it with `latent run -m FILE`. This is not a GGUF file.\n";

/// The layout of a tensor in tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TiledTensor {
    /// Rows of each of its matrices.
    pub rows: usize,
    pub bytes: usize,
}

/// Writes one packed file.
pub struct PackWriter {
    body: Writer,
    prelude: Vec<u8>,
    len: u64,
}

impl PackWriter {
    /// A writer for the tensors of `checkpoint` in their order. `tiles` has the layout of each
    /// tensor that is stored in tiles.
    ///
    /// # Errors
    /// A packed checkpoint; files of its folder that cannot be read.
    pub fn new(checkpoint: &Checkpoint, tiles: &[Option<TiledTensor>]) -> Result<PackWriter, FormatError> {
        let path = checkpoint.path();
        let refused = |problem: String| FormatError::Set { path: path.to_owned(), problem };
        // Its tensors are in tiles, which cannot be read as rows.
        if checkpoint.packed_from().is_some() {
            return Err(refused("it is already a packed file".into()));
        }
        if checkpoint.tensors().is_empty() {
            return Err(refused("it has no tensors to pack".into()));
        }
        let identity = checkpoint.identity();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let tensors = checkpoint.tensors();
        let mut body = Writer::new();
        body.key("general.architecture", WriterValue::String(keys::ARCHITECTURE.into()))
            .key("general.alignment", WriterValue::U32(PAGE as u32))
            .key(keys::SOURCE_NAME, WriterValue::String(name))
            .key(keys::SOURCE_FILES, WriterValue::U64(checkpoint.files() as u64))
            .key(keys::SOURCE_HEADER, WriterValue::U64(identity.header))
            .key(keys::SOURCE_SAMPLE, WriterValue::U64(identity.sample));
        for (key, value) in source_keys(checkpoint)? {
            body.key(key, value);
        }
        let shapes = tensors.iter().flat_map(|t| t.shape.iter().map(|&n| n as u64)).collect();
        let rows = tiles.iter().map(|t| t.map_or(0, |t| t.rows as u64)).collect();
        body.key(keys::LAYOUT, WriterValue::String(LAYOUT.into()))
            .key(keys::TYPES, WriterValue::Strings(tensors.iter().map(|t| t.ty.name().into()).collect()))
            .key(keys::DIMENSIONS, WriterValue::U8s(tensors.iter().map(|t| t.shape.len() as u8).collect()))
            .key(keys::SHAPES, WriterValue::U64s(shapes))
            .key(keys::TILE_ROWS, WriterValue::U64s(rows));
        let io = |error| FormatError::Io { path: path.to_owned(), error };
        // All tensors are I8 to the body's header: a reader of GGUF must not interpret tiles as
        // rows.
        let mut len = 0;
        for (tensor, tiles) in tensors.iter().zip(tiles) {
            let bytes = tiles.map_or(tensor.bytes, |tiles| tiles.bytes);
            body.tensor(tensor.name.as_str(), TensorType::I8, &[bytes]).map_err(io)?;
            len += (bytes as u64).next_multiple_of(PAGE);
        }
        let header = body.header_bytes().map_err(io)?;
        let len = PAGE + header.len() as u64 + len;
        let mut prelude = Vec::with_capacity(PAGE as usize);
        prelude.extend(MAGIC);
        prelude.extend(u64::from(VERSION).to_le_bytes());
        prelude.extend(len.to_le_bytes());
        prelude.extend((header.len() as u64).to_le_bytes());
        prelude.extend(fnv(FNV_START, &header).to_le_bytes());
        prelude.extend(NOTE.as_bytes());
        // A whole page, so that the tensors of the body stay aligned to pages in the file.
        prelude.resize(PAGE as usize, 0);
        Ok(PackWriter { body, prelude, len })
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.len
    }

    /// Writes the file. `data` writes the bytes of the tensor at an index.
    ///
    /// # Errors
    /// Errors of `out` and of `data`; `data` writes another number of bytes than declared.
    pub fn write<W: Write>(
        &self,
        out: &mut W,
        data: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        out.write_all(&self.prelude)?;
        self.body.write(out, data)
    }
}
