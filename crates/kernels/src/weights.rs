//! Weights as kernels read them: rows of blocks as in the file, or tiles of sixteen rows.

use base::{Layout, TensorType};
use quant::tiles::{ROWS, TileLayout};
use std::ops::Range;

/// Factors of rectangles of a matrix, as FP8 files have them.
#[derive(Clone, Copy, Debug)]
pub struct BlockScales<'a> {
    /// The factors, those of the first rows first.
    pub numbers: &'a [f32],
    /// Rows of a rectangle.
    pub rows: usize,
    /// Columns of a rectangle.
    pub cols: usize,
}

impl<'a> BlockScales<'a> {
    /// The factors of row `row` of a matrix of `cols` columns, one for each rectangle.
    pub(crate) fn of_row(&self, row: usize, cols: usize) -> &'a [f32] {
        let across = cols.div_ceil(self.cols);
        &self.numbers[row / self.rows * across..][..across]
    }
}

/// A matrix of weights: `rows` outputs of `cols` inputs.
#[derive(Clone, Copy)]
pub struct WeightMatrix<'a> {
    /// How numbers are stored.
    pub ty: TensorType,
    /// All rows, or all tiles, one after the other.
    pub bytes: &'a [u8],
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Rows of `bytes` before the first of this matrix.
    first: usize,
    /// Bytes of a row, where rows follow one another.
    row_bytes: usize,
    /// The form of the tiles, where there are tiles.
    tiles: Option<TileLayout>,
    /// Factors of rectangles, counted from the first row of `bytes`.
    scales: Option<BlockScales<'a>>,
}

impl<'a> WeightMatrix<'a> {
    /// Rows as in the file.
    ///
    /// # Panics
    /// When `bytes` is not `rows` rows of `cols` numbers of `ty`.
    pub fn rows(ty: TensorType, bytes: &'a [u8], rows: usize, cols: usize) -> WeightMatrix<'a> {
        let row_bytes = ty.row_bytes(cols).unwrap_or(usize::MAX);
        assert!(
            rows.checked_mul(row_bytes) == Some(bytes.len()),
            "{rows} × {cols} of {ty} is not {} bytes",
            bytes.len()
        );
        WeightMatrix { ty, bytes, rows, cols, first: 0, row_bytes, tiles: None, scales: None }
    }

    /// Tiles of sixteen rows.
    ///
    /// # Panics
    /// When the format has no tiles, or `bytes` is not what `rows` rows of `cols` numbers take.
    pub fn tiles(ty: TensorType, bytes: &'a [u8], rows: usize, cols: usize) -> WeightMatrix<'a> {
        let tiles = TileLayout::new(ty, cols);
        assert!(
            tiles.is_some_and(|tiles| tiles.matrix_bytes(rows) == bytes.len()),
            "{rows} × {cols} of {ty} in tiles is not {} bytes",
            bytes.len()
        );
        let row_bytes = ty.row_bytes(cols).unwrap_or(0);
        WeightMatrix { ty, bytes, rows, cols, first: 0, row_bytes, tiles, scales: None }
    }

    /// The same with a factor for each rectangle of numbers.
    ///
    /// # Panics
    /// When there are fewer factors than the matrix has rectangles, or one that begins in the middle of a tile.
    pub fn with_scales(self, scales: BlockScales<'a>) -> WeightMatrix<'a> {
        assert!(scales.rows.is_multiple_of(ROWS) && scales.cols.is_multiple_of(ROWS), "{scales:?}");
        let count = (self.first + self.rows).div_ceil(scales.rows) * self.cols.div_ceil(scales.cols);
        assert!(scales.numbers.len() >= count, "{} factors of {count}", scales.numbers.len());
        WeightMatrix { scales: Some(scales), ..self }
    }

    /// Factors of rectangles, counted from the first row of `bytes`.
    pub(crate) fn scales(&self) -> Option<BlockScales<'a>> {
        self.scales
    }

    /// How the weights lie.
    pub fn layout(&self) -> Layout {
        if self.tiles.is_some() { Layout::Tiles } else { Layout::Rows }
    }

    /// The form of the tiles and the first row's place in them.
    pub(crate) fn tile_layout(&self) -> Option<(TileLayout, usize)> {
        self.tiles.map(|tiles| (tiles, self.first))
    }

    /// One row as in the file; `memory` is where a row of a tile is put together.
    #[inline]
    pub fn row<'s>(&self, i: usize, memory: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        let row = self.first + i;
        match self.tiles {
            None => &self.bytes[row * self.row_bytes..(row + 1) * self.row_bytes],
            Some(tiles) => {
                memory.resize(self.row_bytes, 0);
                let len = tiles.tile_bytes();
                tiles.unpack_row(&self.bytes[row / ROWS * len..(row / ROWS + 1) * len], row % ROWS, memory);
                memory
            }
        }
    }

    /// Columns of a row as numbers, factors of rectangles included; `memory` is where a row of a tile is put together. The columns are
    /// whole blocks of the format. Nothing where the format cannot be decoded.
    #[inline]
    pub(crate) fn decode(&self, i: usize, columns: Range<usize>, out: &mut [f32], memory: &mut Vec<u8>) {
        let Some(decode) = quant::decoder(self.ty) else { return };
        let (len, block) = (self.ty.block_len(), self.ty.block_bytes());
        let row = self.row(i, memory);
        decode(&row[columns.start / len * block..columns.end / len * block], out);
        if let Some(scales) = self.scales {
            let factors = scales.of_row(self.first + i, self.cols);
            let mut column = columns.start;
            while column < columns.end {
                let end = (column / scales.cols + 1) * scales.cols;
                let part = column - columns.start..end.min(columns.end) - columns.start;
                let factor = factors[column / scales.cols];
                out[part].iter_mut().for_each(|number| *number *= factor);
                column = end;
            }
        }
    }

    /// Some rows as a matrix.
    pub fn slice_rows(&self, range: Range<usize>) -> WeightMatrix<'a> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        WeightMatrix { first: self.first + range.start, rows: range.len(), ..*self }
    }
}
