//! Tile sizes: the part of a product that one workgroup computes.

/// Threads and outputs of a workgroup of a GEMV. Lanes divide the inputs of an output octet by
/// octet, and their sums are added pairwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemvTile {
    /// Threads per workgroup.
    pub threads: usize,
    /// Threads per output: a power of two.
    pub lanes: usize,
    /// Outputs per thread. Inputs are read once for all of them.
    pub outputs: usize,
}

/// The tile for long rows.
pub const GEMV_WIDE: GemvTile = GemvTile { threads: 64, lanes: 64, outputs: 2 };

/// The tile for rows with too few octets for 64 lanes.
pub const GEMV_NARROW: GemvTile = GemvTile { threads: 64, lanes: 16, outputs: 2 };

/// Row counts for which a GEMV is compiled. Other counts use the next larger one.
pub const GEMV_ROWS: [usize; 4] = [1, 2, 4, 8];

/// Maximum rows of a GEMV. For more rows a GEMM decodes weights once per tile.
pub(crate) const MAX_GEMV_ROWS: usize = GEMV_ROWS[GEMV_ROWS.len() - 1];

/// Minimum octets per row for [`GEMV_WIDE`]: two per lane.
const WIDE_OCTETS: usize = 128;

/// Maximum iterations of a lane that are a constant of the shader.
// With a constant, drivers can unroll the loop.
const MAX_TURNS: usize = 16;

impl GemvTile {
    /// The tile for rows of `octets` octets.
    pub const fn of(octets: usize) -> GemvTile {
        if octets >= WIDE_OCTETS { GEMV_WIDE } else { GEMV_NARROW }
    }

    /// Number of iterations of each lane over rows of `octets` octets. None if it differs between
    /// lanes or exceeds [`MAX_TURNS`].
    pub(super) const fn turns(&self, octets: usize) -> Option<usize> {
        let turns = octets / self.lanes;
        if octets.is_multiple_of(self.lanes) && turns <= MAX_TURNS { Some(turns) } else { None }
    }

    pub const fn workgroup_outputs(&self) -> usize {
        self.threads / self.lanes * self.outputs
    }

    /// Maximum sums per output of a thread that remain after subgroups of at least `smallest` lanes
    /// have added theirs.
    pub const fn subgroup_sums(&self, smallest: usize) -> usize {
        self.threads / if smallest < self.lanes { smallest } else { self.lanes }
    }

    /// Bytes of workgroup memory for `rows` rows.
    #[cfg(test)]
    pub const fn memory(&self, rows: usize) -> usize {
        4 * rows * self.outputs * self.threads
    }
}

/// A tile of a GEMM. Inputs and decoded weights pass through workgroup memory, and each thread
/// holds 4 × 4 sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmTile {
    pub rows: usize,
    pub outputs: usize,
    /// Inputs per step.
    pub inputs: usize,
}

/// Rows per thread, and outputs per thread.
pub const PER_THREAD: usize = 4;

/// Tiles of a GEMM, in ascending order of rows.
// The largest takes the 16 KiB of workgroup memory that every device has.
pub const GEMM: [GemmTile; 3] = [
    GemmTile { rows: 16, outputs: 64, inputs: 32 },
    GemmTile { rows: 32, outputs: 64, inputs: 32 },
    GemmTile { rows: 64, outputs: 64, inputs: 32 },
];

/// Threads of a workgroup of a transposed product. Each thread computes an octet of outputs, and
/// lanes divide the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransposedTile {
    /// Octets of outputs per workgroup.
    pub octets: usize,
    /// Threads per octet.
    pub lanes: usize,
}

/// The only transposed tile.
pub const TRANSPOSED: TransposedTile = TransposedTile { octets: 8, lanes: 8 };

/// Threads per workgroup of kernels in which each thread decodes an octet.
pub const GATHER_THREADS: usize = 64;

/// Threads of the single workgroup that sorts rows by expert.
// The most that WebGPU guarantees.
pub const SORT_THREADS: usize = 256;

/// Maximum number of experts of a layer, which the shaders' workgroup memory holds.
pub const MAX_EXPERTS: usize = 1024;

impl GemmTile {
    /// The smallest tile with at least `rows` rows, or the largest tile.
    pub fn of(rows: usize) -> GemmTile {
        GEMM.into_iter().find(|tile| tile.rows >= rows).unwrap_or(GEMM[GEMM.len() - 1])
    }

    /// Threads per workgroup.
    pub const fn threads(&self) -> usize {
        self.rows / PER_THREAD * (self.outputs / PER_THREAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WebGPU guarantees 16 KiB of workgroup memory and 256 threads.
    #[test]
    fn tiles_fit_into_the_smallest_device() {
        for tile in GEMM {
            assert!(tile.threads() <= 256, "{tile:?}");
            assert!(tile.inputs.is_multiple_of(8) && tile.rows.is_multiple_of(PER_THREAD), "{tile:?}");
        }
        for tile in [GEMV_WIDE, GEMV_NARROW] {
            assert!(
                tile.memory(8) <= 16384 && tile.threads <= 256 && tile.lanes.is_power_of_two(),
                "{tile:?}"
            );
        }
    }
}
