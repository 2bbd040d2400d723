//! Rows of a tensor: stored in a file, assembled from a 4-bit weight, or computed from another
//! tensor.

use crate::checkpoint::Checkpoint;
use crate::derived::{DerivedRows, DerivedSource, RowSource};
use crate::error::{FormatError, FourBitError};
use crate::four_bit::FourBitDecoder;
use crate::tensor::{TensorCut, TensorInfo, TensorLocation};
use std::borrow::Cow;
use std::ops::Range;

/// Reads rows of one tensor, in the format [`TensorInfo::ty`](crate::TensorInfo::ty).
pub struct TensorRows<'a> {
    row_bytes: usize,
    bytes: RowBytes<'a>,
}

enum RowBytes<'a> {
    Stored(&'a [u8]),
    FourBit(Box<FourBitDecoder<'a>>),
    Factor([u8; 4]),
    Cut(&'a TensorCut, Box<TensorRows<'a>>),
    Derived(&'a dyn DerivedRows, Box<TensorRows<'a>>),
}

impl TensorRows<'_> {
    /// The bytes of rows, counted over all matrices of the tensor. They are borrowed from the file,
    /// or written to `scratch`.
    ///
    /// # Panics
    /// If a row is beyond the tensor's last.
    pub fn read<'s>(&'s self, rows: Range<usize>, scratch: &'s mut Vec<u8>) -> &'s [u8] {
        let bytes = rows.start * self.row_bytes..rows.end * self.row_bytes;
        match &self.bytes {
            RowBytes::Stored(all) => &all[bytes],
            RowBytes::Factor(all) => &all[bytes],
            RowBytes::FourBit(decoder) => {
                decoder.rows(rows, scratch);
                scratch
            }
            // Row by row, because a part may skip rows. `row_scratch` is reused for all of them.
            RowBytes::Cut(cut, whole) => {
                let mut row_scratch = Vec::new();
                scratch.clear();
                for row in rows {
                    let row = cut.row(row);
                    scratch.extend_from_slice(&whole.read(row..row + 1, &mut row_scratch)[cut.bytes.clone()]);
                }
                scratch
            }
            RowBytes::Derived(derived, source) => {
                scratch.clear();
                derived.read(&**source, rows, scratch);
                scratch
            }
        }
    }

    /// Like [`read`](Self::read), without `scratch`.
    ///
    /// # Panics
    /// Like [`read`](Self::read).
    pub fn bytes(&self, rows: Range<usize>) -> Cow<'_, [u8]> {
        let bytes = rows.start * self.row_bytes..rows.end * self.row_bytes;
        match &self.bytes {
            RowBytes::Stored(all) => Cow::Borrowed(&all[bytes]),
            RowBytes::Factor(all) => Cow::Borrowed(&all[bytes]),
            RowBytes::FourBit(_) | RowBytes::Cut(..) | RowBytes::Derived(..) => {
                let mut scratch = Vec::new();
                self.read(rows, &mut scratch);
                Cow::Owned(scratch)
            }
        }
    }

    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }
}

impl RowSource for TensorRows<'_> {
    fn source_rows<'s>(&'s self, rows: Range<usize>, scratch: &'s mut Vec<u8>) -> &'s [u8] {
        self.read(rows, scratch)
    }
}

impl Checkpoint {
    /// The rows of the tensor of this name, which must be in row-major order.
    ///
    /// # Errors
    /// A 4-bit weight with invalid zero points, order of inputs or scales; a tensor of a missing
    /// file.
    pub fn rows(&self, name: &str) -> Result<Option<TensorRows<'_>>, FormatError> {
        self.info(name).map(|info| self.rows_of(info)).transpose()
    }

    fn rows_of(&self, info: &TensorInfo) -> Result<TensorRows<'_>, FormatError> {
        let bytes = match info.place {
            TensorLocation::File { .. } => RowBytes::Stored(self.stored(info)),
            TensorLocation::FourBit(index) => RowBytes::FourBit(Box::new(self.decoder(index)?)),
            TensorLocation::Factor(index) => RowBytes::Factor(self.factor(index)?.to_le_bytes()),
            TensorLocation::Absent => {
                let path = self.path.clone();
                let files = self.absent.file_of(&info.name).map(str::to_owned).into_iter().collect();
                return Err(FormatError::Absent { path, files, tensor: info.name.clone(), tensors: 1 });
            }
            TensorLocation::Cut(index) => {
                let cut = &self.cuts[index];
                RowBytes::Cut(cut, Box::new(self.rows_of(&cut.whole)?))
            }
            // A source may itself be assembled or derived. The recursion ends, because sources
            // exist before the tensors that are derived from them.
            TensorLocation::Derived(index) => {
                let DerivedSource { from, rows } = &self.derived[index];
                RowBytes::Derived(&**rows, Box::new(self.rows_of(from)?))
            }
        };
        // A tensor with a dimension of 0 has no rows.
        let row_bytes = info.bytes.checked_div(info.rows()).unwrap_or(0);
        Ok(TensorRows { row_bytes, bytes })
    }

    fn decoder(&self, index: usize) -> Result<FourBitDecoder<'_>, FormatError> {
        let weight = &self.four_bit[index];
        FourBitDecoder::new(weight, &|info| self.stored(info)).map_err(|error| self.wrong(error))
    }

    fn factor(&self, index: usize) -> Result<f32, FormatError> {
        let global = self.four_bit[index].global.as_ref().map(|info| (info, self.stored(info)));
        self.decoder(index)?.factor(global).map_err(|error| self.wrong(error))
    }

    fn wrong(&self, error: FourBitError) -> FormatError {
        FormatError::FourBit { path: self.path.clone(), error: Box::new(error) }
    }
}
