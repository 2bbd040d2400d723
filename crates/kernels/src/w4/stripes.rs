//! Striped partitioning: the grid of output tiles, with K split into slices, as a sequence of work
//! units.

use super::matrix::WORD;
use std::ops::Range;

/// A sequence of work units: unit = (row of tiles · tiles per row + column of tiles) · slices +
/// slice. Slices give all threads work if the result has few tiles and K is long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct W4Stripes {
    /// Rows of the result.
    pub rows: usize,
    /// Columns of the result.
    pub columns: usize,
    /// Inputs: a multiple of 8.
    pub k: usize,
    /// Rows and columns of a tile; tiles at the edges may have fewer.
    pub tile: (usize, usize),
    /// Slices of K, at least 1. If there are more slices than words of K, some are empty.
    pub slices: usize,
}

/// One unit of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct W4Unit {
    /// Rows of the output tile.
    pub rows: Range<usize>,
    /// Columns of the output tile.
    pub columns: Range<usize>,
    /// Index of the slice of K.
    pub slice: usize,
    /// The inputs of the slice.
    pub k: Range<usize>,
}

impl W4Stripes {
    pub fn units(&self) -> usize {
        self.rows.div_ceil(self.tile.0) * self.columns.div_ceil(self.tile.1) * self.slices
    }

    /// The unit at an index.
    ///
    /// # Panics
    /// When the index is not below [`units`](Self::units).
    pub fn unit(&self, index: usize) -> W4Unit {
        assert!(index < self.units(), "unit {index} of {}", self.units());
        let (tile, slice) = (index / self.slices, index % self.slices);
        let across = self.columns.div_ceil(self.tile.1);
        let (top, left) = (tile / across * self.tile.0, tile % across * self.tile.1);
        let words = self.k / WORD;
        let border = |slice: usize| words * slice / self.slices * WORD;
        W4Unit {
            rows: top..(top + self.tile.0).min(self.rows),
            columns: left..(left + self.tile.1).min(self.columns),
            slice,
            k: border(slice)..border(slice + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_cover_every_product_once() {
        for (rows, columns, k, tile, slices) in [
            (1, 1, 8, (64, 64), 1),
            (70, 130, 264, (64, 64), 3),
            (5, 33, 16, (2, 16), 5),
            (0, 7, 8, (4, 4), 2),
        ] {
            let stripes = W4Stripes { rows, columns, k, tile, slices };
            let mut seen = vec![0u8; rows * columns * k];
            for unit in (0..stripes.units()).map(|i| stripes.unit(i)) {
                assert!(unit.slice < slices);
                for row in unit.rows.clone() {
                    for column in unit.columns.clone() {
                        for input in unit.k.clone() {
                            seen[(row * columns + column) * k + input] += 1;
                        }
                    }
                }
            }
            assert!(seen.iter().all(|times| *times == 1), "{stripes:?}");
        }
    }

    #[test]
    fn the_slices_of_a_tile_are_consecutive() {
        let stripes = W4Stripes { rows: 70, columns: 130, k: 264, tile: (64, 64), slices: 3 };
        assert_eq!(stripes.units(), 2 * 3 * 3);
        // 33 words in three slices of eleven.
        let unit = W4Unit { rows: 64..70, columns: 0..64, slice: 1, k: 88..176 };
        assert_eq!(stripes.unit(3 * 3 + 1), unit);
    }
}
