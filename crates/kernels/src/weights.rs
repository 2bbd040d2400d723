//! Weight matrices as kernels read them: rows of blocks as in the file, or tiles of sixteen
//! interleaved rows.

use crate::shape::{ShapeError, times};
use latent_quant::tiles::{ROWS, TileLayout};
use latent_types::{TensorType, WeightLayout};
use std::ops::Range;

/// A scale per rectangle of a matrix, or per row, as in FP8 checkpoints.
#[derive(Clone, Copy, Debug)]
pub struct BlockScales<'a> {
    /// The scales, row-major. If each row has one scale, they are padded to whole tiles of sixteen
    /// rows.
    pub numbers: &'a [f32],
    /// Rows per rectangle; 1 for a scale per row.
    pub rows: usize,
    /// Columns per rectangle; for a scale per row, all columns of the matrix.
    pub cols: usize,
}

/// Maximum side of a rectangle. Kernels allocate scratch memory for the inputs of one side, so a
/// side from a file must not be unbounded.
const MAX_SIDE: usize = 1 << 16;

impl<'a> BlockScales<'a> {
    /// Whether each row of a matrix of `cols` columns has one scale.
    pub(crate) fn is_per_row(&self, cols: usize) -> bool {
        self.rows == 1 && self.cols >= cols
    }

    /// The scales of row `row` of a matrix of `cols` columns.
    pub(crate) fn of_row(&self, row: usize, cols: usize) -> &'a [f32] {
        let across = cols.div_ceil(self.cols);
        &self.numbers[row / self.rows * across..][..across]
    }
}

/// Checks the size of a matrix.
fn exactly(needed: usize, found: usize) -> Result<(), ShapeError> {
    let error = ShapeError::Length { what: "a matrix of weights", needed, found };
    if needed == found { Ok(()) } else { Err(error) }
}

/// A weight matrix: `rows` output features × `cols` input features. Fields are private, since
/// unsafe kernels rely on the shape that was checked against the bytes:
///
/// ```compile_fail
/// let bytes = vec![0; 68 * 16];
/// let mut w = latent_kernels::WeightMatrix::from_tiles(latent_types::TensorType::Q8_0, &bytes, 16, 64).unwrap();
/// w.cols = 1 << 20;
/// ```
#[derive(Clone, Copy)]
pub struct WeightMatrix<'a> {
    ty: TensorType,
    /// Consecutive rows or tiles.
    bytes: &'a [u8],
    rows: usize,
    cols: usize,
    /// Index in `bytes` of this matrix's first row.
    first: usize,
    /// Bytes per row in the row layout.
    row_bytes: usize,
    /// Set in the tile layout.
    tiles: Option<TileLayout>,
    /// Block scales, counted from the first row of `bytes`.
    scales: Option<BlockScales<'a>>,
}

impl<'a> WeightMatrix<'a> {
    /// Wraps rows as stored in the file.
    ///
    /// # Errors
    /// When the length of `bytes` does not match, or `cols` is not a multiple of the format's block
    /// length.
    pub fn from_rows(
        ty: TensorType,
        bytes: &'a [u8],
        rows: usize,
        cols: usize,
    ) -> Result<WeightMatrix<'a>, ShapeError> {
        let format = ShapeError::Format { ty, cols, layout: "rows" };
        let row_bytes = ty.row_bytes(cols).ok_or(format)?;
        let needed = times("a matrix of weights", rows, row_bytes)?;
        exactly(needed, bytes.len())?;
        Ok(WeightMatrix { ty, bytes, rows, cols, first: 0, row_bytes, tiles: None, scales: None })
    }

    /// Wraps tiles of sixteen rows.
    ///
    /// # Errors
    /// When the format has no tiles of rows of this length, or the length of `bytes` does not
    /// match.
    pub fn from_tiles(
        ty: TensorType,
        bytes: &'a [u8],
        rows: usize,
        cols: usize,
    ) -> Result<WeightMatrix<'a>, ShapeError> {
        let format = ShapeError::Format { ty, cols, layout: "tiles" };
        let layout = TileLayout::new(ty, cols).filter(|_| cols > 0).ok_or(format)?;
        let row_bytes = ty.row_bytes(cols).ok_or(format)?;
        let needed = layout.checked_matrix_bytes(rows);
        exactly(needed.ok_or(ShapeError::Overflow { what: "a matrix of tiles" })?, bytes.len())?;
        Ok(WeightMatrix { ty, bytes, rows, cols, first: 0, row_bytes, tiles: Some(layout), scales: None })
    }

    /// Adds block scales.
    ///
    /// # Errors
    /// When the sides of a rectangle are not multiples of sixteen from 16 to 65536, or there are
    /// fewer scales than rectangles. One scale per row is allowed too: kernels load sixteen of them
    /// at a time, so that the last tile's have to be padded.
    pub fn with_scales(self, scales: BlockScales<'a>) -> Result<WeightMatrix<'a>, ShapeError> {
        if scales.is_per_row(self.cols) {
            // Kernels load sixteen scales at a time, including those of a last tile that is not
            // full.
            let (needed, found) = ((self.first + self.rows).next_multiple_of(ROWS), scales.numbers.len());
            let error = ShapeError::Length { what: "the factors of a matrix's rows", needed, found };
            return if found < needed {
                Err(error)
            } else {
                Ok(WeightMatrix { scales: Some(scales), ..self })
            };
        }
        // Multiples of sixteen: a tile of sixteen rows has one scale per group of columns, and a
        // group is whole vectors of every format.
        for value in [scales.rows, scales.cols] {
            if value == 0 || !value.is_multiple_of(ROWS) || value > MAX_SIDE {
                let what = "a side of the rectangles that share a factor";
                return Err(ShapeError::Range { what, value, expected: "a multiple of 16 from 16 to 65536" });
            }
        }
        let (down, across) =
            ((self.first + self.rows).div_ceil(scales.rows), self.cols.div_ceil(scales.cols));
        let needed = times("the factors of a matrix", down, across)?;
        let found = scales.numbers.len();
        if found < needed {
            return Err(ShapeError::Length { what: "the factors of a matrix", needed, found });
        }
        Ok(WeightMatrix { scales: Some(scales), ..self })
    }

    /// The format.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The whole memory, of which the matrix may be a [slice](Self::slice_rows).
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Block scales, counted from the first row of `bytes`.
    pub fn scales(&self) -> Option<BlockScales<'a>> {
        self.scales
    }

    /// Rows or tiles.
    pub fn layout(&self) -> WeightLayout {
        if self.tiles.is_some() { WeightLayout::Tiles } else { WeightLayout::Rows }
    }

    /// The tile layout, and the index of the first row in it.
    pub(crate) fn tile_layout(&self) -> Option<(TileLayout, usize)> {
        self.tiles.map(|tiles| (tiles, self.first))
    }

    /// One row as stored in the file; `memory` holds a row that is unpacked from a tile.
    #[inline]
    pub fn row<'s>(&self, i: usize, memory: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        let row = self.first + i;
        match self.tiles {
            None => self.stored_row(row),
            Some(tiles) => {
                memory.resize(self.row_bytes, 0);
                let len = tiles.tile_bytes();
                tiles.unpack_row(&self.bytes[row / ROWS * len..(row / ROWS + 1) * len], row % ROWS, memory);
                memory
            }
        }
    }

    /// Row `row` of all that `bytes` has in the row layout.
    #[inline]
    fn stored_row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    /// Dequantizes some columns of a row, block scales included. The columns must be whole blocks
    /// of the format. Leaves `out` unchanged if the format cannot be decoded. `memory` holds a row
    /// that is unpacked from a tile.
    #[inline]
    pub(crate) fn decode(&self, i: usize, columns: Range<usize>, out: &mut [f32], memory: &mut Vec<u8>) {
        // Block scales multiply the decoded weights, in f32.
        let Some(decode) = latent_quant::decoder(self.ty) else { return };
        let (len, block) = (self.ty.block_len(), self.ty.block_bytes());
        let row = self.row(i, memory);
        decode(&row[columns.start / len * block..columns.end / len * block], out);
        if let Some(scales) = self.scales {
            let row_scales = scales.of_row(self.first + i, self.cols);
            let mut column = columns.start;
            while column < columns.end {
                let end = (column / scales.cols + 1) * scales.cols;
                let part = column - columns.start..end.min(columns.end) - columns.start;
                let scale = row_scales[column / scales.cols];
                out[part].iter_mut().for_each(|element| *element *= scale);
                column = end;
            }
        }
    }

    /// The bytes of a row of plain f32 in this machine's byte order, at any alignment. Kernels read
    /// such a row in place instead of decoding it.
    pub(crate) fn f32_row(&self, i: usize) -> Option<&'a [u8]> {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        let plain = self.ty == TensorType::F32 && self.tiles.is_none() && self.scales.is_none();
        (plain && cfg!(target_endian = "little")).then(|| self.stored_row(self.first + i))
    }

    pub fn slice_rows(&self, range: Range<usize>) -> WeightMatrix<'a> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        WeightMatrix { first: self.first + range.start, rows: range.len(), ..*self }
    }
}

/// Dequantizes row `id` of a weight in any decodable format and layout, as for the embedding.
/// `memory` is scratch.
///
/// # Panics
/// When `id` is not a row, or the length of `out` is not the number of columns.
pub fn decode_row(w: &WeightMatrix<'_>, id: usize, out: &mut [f32], memory: &mut Vec<u8>) {
    assert_eq!(out.len(), w.cols(), "a row of {} weights", w.ty());
    w.decode(id, 0..w.cols(), out, memory);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_another_size_than_the_shape_are_refused() {
        let bytes = [0; 68 * 16];
        for make in [WeightMatrix::from_rows, WeightMatrix::from_tiles] {
            assert!(make(TensorType::Q8_0, &bytes, 16, 64).is_ok());
            assert!(make(TensorType::Q8_0, &bytes, 16, 96).is_err());
            assert!(make(TensorType::Q8_0, &bytes, 16, 65).is_err());
            assert!(make(TensorType::Q8_0, &bytes, 17, 64).is_err());
            // Sizes that wrap to 0 bytes.
            for (rows, cols) in [(1 << 60, 512), (16, 1 << 59), (1 << 63, 32)] {
                assert!(make(TensorType::Q8_0, &[], rows, cols).is_err(), "{rows} × {cols}");
            }
        }
        assert!(WeightMatrix::from_tiles(TensorType::F32, &[0; 64], 16, 1).is_err());
    }

    #[test]
    fn rectangles_whose_sides_would_overflow_a_sum_of_inputs_are_refused() {
        let bytes = vec![0; TileLayout::new(TensorType::F8_E4M3, 256).unwrap().matrix_bytes(16)];
        let matrix = WeightMatrix::from_tiles(TensorType::F8_E4M3, &bytes, 16, 256).unwrap();
        let with = |rows, cols| matrix.with_scales(BlockScales { numbers: &[1.0; 2], rows, cols });
        assert!(with(128, 128).is_ok());
        // 4 · 2^62 inputs wrap to 0, and every row has at least 0 inputs.
        for side in [0, 8, 1 << 17, 1 << 62] {
            assert!(with(128, side).is_err() && with(side, 128).is_err(), "{side}");
        }
        assert_eq!(
            with(128, 64).err(),
            Some(ShapeError::Length { what: "the factors of a matrix", needed: 4, found: 2 })
        );
    }
}
