//! A tensor of a checkpoint: what it is called, what it looks like, where its bytes come from.

use latent_types::TensorType;

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the file.
    pub name: String,
    /// Type of its elements.
    pub ty: TensorType,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Bytes of its rows.
    pub bytes: usize,
    /// Rows per matrix, if it is stored in tiles of sixteen rows (in packed files); none in row-major order.
    pub tile_rows: Option<usize>,
    pub(crate) place: Place,
}

/// Where the bytes of a tensor come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// They are in one of the files, from this byte on.
    File {
        /// Which of the checkpoint's files.
        file: usize,
        /// The first byte in that file.
        start: usize,
    },
    /// Rows of a 4-bit weight, put together while they are read.
    FourBit(usize),
    /// The factor of such a weight.
    Factor(usize),
}

impl TensorInfo {
    /// Whether the file holds its bytes as they are; otherwise only [`Checkpoint::rows`](crate::Checkpoint::rows) gives them.
    pub fn is_stored(&self) -> bool {
        matches!(self.place, Place::File { .. })
    }

    /// Rows: the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }
}

/// A tensor with its bytes.
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    /// Name, type and shape.
    pub info: &'a TensorInfo,
    /// Its bytes.
    pub data: &'a [u8],
}
