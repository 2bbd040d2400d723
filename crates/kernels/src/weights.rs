//! Weights as kernels read them: rows of blocks as in the file, or tiles of sixteen rows.

use base::{Layout, TensorType};
use quant::tiles::{ROWS, TileLayout};
use std::ops::Range;

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
        WeightMatrix { ty, bytes, rows, cols, first: 0, row_bytes, tiles: None }
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
        WeightMatrix { ty, bytes, rows, cols, first: 0, row_bytes: ty.row_bytes(cols).unwrap_or(0), tiles }
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

    /// Some rows as a matrix.
    pub fn slice_rows(&self, range: Range<usize>) -> WeightMatrix<'a> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        WeightMatrix { first: self.first + range.start, rows: range.len(), ..*self }
    }
}
