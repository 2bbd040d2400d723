//! Opening of packed files.

use crate::builder::{Builder, PlacedTensor};
use crate::checkpoint::Checkpoint;
use crate::error::FormatError;
use crate::map::FileBytes;
use crate::pack::{Directory, PackedEntry, packed_source};
use std::path::Path;

/// Opens the packed file at `path`, whose bytes are `bytes`.
pub(super) fn open(path: &Path, bytes: FileBytes) -> Result<Checkpoint, FormatError> {
    let directory =
        Directory::parse(bytes.get()).map_err(|error| FormatError::Pack { path: path.to_owned(), error })?;
    let source = packed_source(path, &directory)?;
    let mut builder = Builder::new();
    // A header length of 0: the fingerprint is the source's, so the header is not hashed.
    builder.file(path, bytes, 0, directory.tensors.into_iter().map(PlacedTensor::from));
    builder.finish_packed(path.to_owned(), source, directory.from)
}

impl From<PackedEntry> for PlacedTensor {
    fn from(t: PackedEntry) -> PlacedTensor {
        PlacedTensor {
            name: t.name,
            ty: t.ty,
            shape: t.shape,
            start: t.start,
            bytes: t.bytes,
            tile_rows: t.tile_rows,
        }
    }
}
