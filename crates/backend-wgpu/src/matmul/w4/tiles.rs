//! Tile sizes of the kernels for 4-bit weights.

use crate::matmul::tiles::PER_THREAD;

/// Threads and columns of a workgroup of the fused kernel. A thread computes one column, and lanes
/// divide the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct W4FusedTile {
    /// Columns per workgroup. Neighbouring threads read neighbouring columns.
    pub columns: usize,
    /// Threads per column: a power of two.
    pub lanes: usize,
}

/// The only fused tile.
// 16 columns are 64 contiguous bytes of each row of words, and few enough that weights with few
// columns still have many workgroups.
pub const W4_FUSED: W4FusedTile = W4FusedTile { columns: 16, lanes: 16 };

/// A tile of a 4-bit GEMM. Inputs and decoded weights are double-buffered in workgroup memory: one
/// buffer is filled while the other is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct W4Tile {
    pub rows: usize,
    pub columns: usize,
    /// Words of eight inputs per step.
    pub words: usize,
}

/// Tiles of a 4-bit GEMM, in ascending order of rows.
pub const W4_GEMM: [W4Tile; 2] =
    [W4Tile { rows: 16, columns: 64, words: 2 }, W4Tile { rows: 32, columns: 64, words: 2 }];

impl W4Tile {
    /// The smallest tile with at least `rows` rows, or the largest tile.
    pub fn of(rows: usize) -> W4Tile {
        W4_GEMM.into_iter().find(|tile| tile.rows >= rows).unwrap_or(W4_GEMM[W4_GEMM.len() - 1])
    }

    /// Threads per workgroup.
    pub const fn threads(&self) -> usize {
        self.rows / PER_THREAD * (self.columns / PER_THREAD)
    }

    /// Bytes of workgroup memory.
    #[cfg(test)]
    pub const fn memory(&self) -> usize {
        2 * 4 * 8 * self.words * (self.rows + self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coop_matrix::CoopMatrix;
    use crate::matmul::matrix_tile::MatrixTile;

    #[test]
    fn tiles_fit_into_the_smallest_device() {
        for tile in W4_GEMM {
            assert!(tile.memory() <= 16384 && tile.threads() <= 256, "{tile:?}");
            // Each thread loads whole words, and four inputs of one row.
            let inputs = tile.rows * 8 * tile.words / 4;
            assert!((tile.columns * tile.words).is_multiple_of(tile.threads()) && inputs == tile.threads());
        }
        for (tile, side) in W4_GEMM.into_iter().flat_map(|tile| [(tile, 8), (tile, 16)]) {
            let matrix = CoopMatrix { side, f16: true, subgroup: 64 };
            let inputs = 8 * tile.words;
            let tile = MatrixTile { rows: tile.rows, outputs: tile.columns, inputs, matrix };
            assert!(tile.memory(2) <= 16384 && matrix.threads() <= 256);
            assert!(inputs.is_multiple_of(side) && tile.rows.is_multiple_of(side));
        }
        assert!(W4_FUSED.lanes.is_power_of_two() && W4_FUSED.lanes * W4_FUSED.columns <= 256);
    }
}
