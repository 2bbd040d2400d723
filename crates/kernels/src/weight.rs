//! Weights as kernels read them: rows of blocks, as in the file.

use base::TensorType;
use std::ops::Range;

/// A matrix of weights: `rows` outputs of `cols` inputs.
#[derive(Clone, Copy)]
pub struct WeightRows<'a> {
    /// How numbers are stored.
    pub ty: TensorType,
    /// All rows, one after the other.
    pub bytes: &'a [u8],
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

impl<'a> WeightRows<'a> {
    /// A matrix over `bytes`.
    ///
    /// # Panics
    /// When `bytes` is not `rows` rows of `cols` numbers of `ty`.
    pub fn new(ty: TensorType, bytes: &'a [u8], rows: usize, cols: usize) -> WeightRows<'a> {
        let row = ty.row_bytes(cols).unwrap_or(usize::MAX);
        assert!(
            rows.checked_mul(row) == Some(bytes.len()),
            "{rows} × {cols} of {ty} is not {} bytes",
            bytes.len()
        );
        WeightRows { ty, bytes, rows, cols }
    }

    /// Bytes of a row.
    #[inline]
    pub fn row_bytes(&self) -> usize {
        self.bytes.len().checked_div(self.rows).unwrap_or(0)
    }

    /// One row.
    #[inline]
    pub fn row(&self, i: usize) -> &'a [u8] {
        let bytes = self.row_bytes();
        &self.bytes[i * bytes..(i + 1) * bytes]
    }

    /// Some rows as a matrix.
    pub fn slice_rows(&self, range: Range<usize>) -> WeightRows<'a> {
        let bytes = self.row_bytes();
        WeightRows { bytes: &self.bytes[range.start * bytes..range.end * bytes], rows: range.len(), ..*self }
    }
}
