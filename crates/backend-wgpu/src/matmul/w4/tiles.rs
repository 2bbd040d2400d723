//! Tile sizes of the entries for 4-bit weights.

use crate::matmul::tiles::PER_THREAD;

/// Threads and columns of a workgroup of a 4-bit GEMM whose codes are decoded in registers: a column is a thread's, and lanes share the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct W4FusedTile {
    /// Columns per workgroup, which neighbouring threads read.
    pub columns: usize,
    /// Threads that share a column: a power of two.
    pub lanes: usize,
}

/// The only fused tile: 64 bytes of each row of words, and enough workgroups for few columns.
pub const W4_FUSED: W4FusedTile = W4FusedTile { columns: 16, lanes: 16 };

/// A tile of a 4-bit GEMM: inputs and decoded weights are in workgroup memory twice, one being filled while the other is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct W4Tile {
    pub rows: usize,
    pub columns: usize,
    /// Words of eight inputs per step.
    pub words: usize,
}

/// Tiles of a 4-bit GEMM, by rows.
pub const W4_GEMM: [W4Tile; 2] =
    [W4Tile { rows: 16, columns: 64, words: 2 }, W4Tile { rows: 32, columns: 64, words: 2 }];

impl W4Tile {
    /// The smallest one that has as many rows, or the largest.
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
            // each thread fetches whole words, and four inputs of one row
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
