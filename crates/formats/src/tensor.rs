//! Tensors of a checkpoint: name, type, shape and location.

use latent_types::TensorType;
use std::ops::Range;

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the file.
    pub name: String,
    /// Type of its elements.
    pub ty: TensorType,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Bytes of its rows.
    pub bytes: usize,
    /// Rows per matrix if it is stored in tiles of sixteen rows (packed files); `None` for
    /// row-major order.
    pub tile_rows: Option<usize>,
    pub(crate) place: TensorLocation,
}

/// Location of a tensor's bytes. The numbers index lists of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorLocation {
    /// In a file, from the byte `start` on.
    File { file: usize, start: usize },
    /// A 4-bit weight, whose rows are assembled while they are read.
    FourBit(usize),
    /// The factor of a 4-bit weight.
    Factor(usize),
    /// A part of a tensor that is not contiguous.
    Cut(usize),
    /// Computed from another tensor while rows are read.
    Derived(usize),
    /// In a missing file.
    Absent,
}

/// A part of a tensor that is not contiguous: some rows of some matrices, and some bytes of each
/// row.
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
    /// The row of the whole tensor for a row of the part.
    pub(crate) fn row(&self, row: usize) -> usize {
        let (matrix, within) = (row / self.rows.len(), row % self.rows.len());
        (self.first_matrix + matrix) * self.matrix_rows + self.rows.start + within
    }
}

impl TensorInfo {
    /// Whether a file stores its bytes. Otherwise only
    /// [`Checkpoint::rows`](crate::Checkpoint::rows) reads them.
    pub fn is_stored(&self) -> bool {
        matches!(self.place, TensorLocation::File { .. })
    }

    /// Number of rows: the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        // Cannot overflow: headers with such a product are rejected.
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
