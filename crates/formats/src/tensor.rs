//! A tensor of a checkpoint: what it is called, what it looks like, where its bytes come from.

use latent_types::TensorType;
use std::ops::Range;

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
    pub(crate) place: TensorLocation,
}

/// Where the bytes of a tensor come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorLocation {
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
    /// A part of a tensor that does not lie in one piece.
    Cut(usize),
    /// Computed from another tensor while they are read.
    Derived(usize),
    /// They are in a file that is not here.
    Absent,
}

/// Which part of a tensor there is: of some of its matrices some rows, and of these some bytes.
#[derive(Clone, Debug)]
pub(crate) struct TensorCut {
    pub(crate) whole: TensorInfo,
    /// Rows of one of its matrices.
    pub(crate) matrix_rows: usize,
    /// The first of its matrices.
    pub(crate) first_matrix: usize,
    pub(crate) rows: Range<usize>,
    /// The bytes of each row.
    pub(crate) bytes: Range<usize>,
}

impl TensorCut {
    /// The row of the whole tensor that row `row` of the part is of.
    pub(crate) fn row(&self, row: usize) -> usize {
        let (matrix, within) = (row / self.rows.len(), row % self.rows.len());
        (self.first_matrix + matrix) * self.matrix_rows + self.rows.start + within
    }
}

impl TensorInfo {
    /// Whether the file holds its bytes as they are; otherwise only [`Checkpoint::rows`](crate::Checkpoint::rows) gives them.
    pub fn is_stored(&self) -> bool {
        matches!(self.place, TensorLocation::File { .. })
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
