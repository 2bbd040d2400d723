//! Tile sizes: how much of a product one workgroup computes. All dialects take them from here.

/// Threads and outputs of a workgroup of a GEMV. Lanes share the inputs of an output, octet by octet; their sums are added pairwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemvTile {
    /// Threads per workgroup.
    pub threads: usize,
    /// Threads that share an output: a power of two.
    pub lanes: usize,
    /// Outputs per thread: inputs are read once for all of them.
    pub outputs: usize,
}

/// A GEMV with long rows.
pub const GEMV_WIDE: GemvTile = GemvTile { threads: 64, lanes: 64, outputs: 2 };

/// A GEMV whose rows have too few octets for 64 lanes.
pub const GEMV_NARROW: GemvTile = GemvTile { threads: 64, lanes: 16, outputs: 2 };

/// Row counts that a GEMV is compiled for; others take the next larger one.
pub const GEMV_ROWS: [usize; 4] = [1, 2, 4, 8];

/// Maximum rows of a GEMV. For more rows a GEMM decodes weights once per tile.
pub(crate) const MAX_GEMV_ROWS: usize = GEMV_ROWS[GEMV_ROWS.len() - 1];

/// Minimum octets per row for [`GEMV_WIDE`]: two for every lane.
const WIDE_OCTETS: usize = 128;

/// Most turns of a lane that are unrolled.
const MAX_TURNS: usize = 16;

impl GemvTile {
    /// That of rows of as many octets.
    pub const fn of(octets: usize) -> GemvTile {
        if octets >= WIDE_OCTETS { GEMV_WIDE } else { GEMV_NARROW }
    }

    /// Turns of each lane over rows of as many octets, if they are the same for all lanes and few enough to unroll.
    pub(super) const fn turns(&self, octets: usize) -> Option<usize> {
        let turns = octets / self.lanes;
        if octets.is_multiple_of(self.lanes) && turns <= MAX_TURNS { Some(turns) } else { None }
    }

    pub const fn workgroup_outputs(&self) -> usize {
        self.threads / self.lanes * self.outputs
    }

    /// Sums of all outputs with a thread's number, after subgroups of at least `smallest` lanes
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

/// A tile of a GEMM: inputs and decoded weights go through workgroup memory, and each thread keeps four rows of four sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmTile {
    pub rows: usize,
    pub outputs: usize,
    /// Inputs per step.
    pub inputs: usize,
}

/// Rows, and outputs, of a thread.
pub const PER_THREAD: usize = 4;

/// Tiles of a GEMM, by rows.
pub const GEMM: [GemmTile; 3] = [
    GemmTile { rows: 16, outputs: 64, inputs: 32 },
    GemmTile { rows: 32, outputs: 64, inputs: 32 },
    GemmTile { rows: 64, outputs: 64, inputs: 32 },
];

/// Threads of a workgroup of a transposed product: each has an octet of outputs, and lanes share the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransposedTile {
    /// Octets of outputs per workgroup.
    pub octets: usize,
    /// Threads that share an octet.
    pub lanes: usize,
}

/// The only one.
pub const TRANSPOSED: TransposedTile = TransposedTile { octets: 8, lanes: 8 };

/// Threads per workgroup where each decodes an octet.
pub const GATHER_THREADS: usize = 64;

/// Threads of the one workgroup that sorts rows by expert.
pub const SORT_THREADS: usize = 256;

/// Most experts of a layer.
pub const MAX_EXPERTS: usize = 1024;

impl GemmTile {
    /// The smallest one that has as many rows, or the largest.
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

    /// What every WebGPU device has: 16 KiB of workgroup memory, 256 threads.
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
