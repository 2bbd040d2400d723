//! The loop of prefill attention: each block of keys is scored (QKᵀ), weighted by an online softmax
//! and multiplied by its values (PV) for all queries that attend to it, so that keys and values are
//! read from memory once per call.
#![allow(
    unsafe_code,
    reason = "kernels are compiled for an instruction set, and read keys and values by address"
)]

use std::ops::Range;

/// Some queries and a block of keys.
pub(super) struct PrefillTile {
    /// Index of the block.
    pub block: usize,
    /// Position of its first key.
    pub start: usize,
    /// Queries of the call. The last one attends at least to the first key.
    pub queries: Range<usize>,
    /// Keys of the block that the last query attends to.
    pub keys: usize,
    /// Position of the first query of the call.
    pub position: usize,
}

impl PrefillTile {
    #[inline(always)]
    pub fn position_of(&self, query: usize) -> usize {
        self.position + query
    }

    /// Keys of the block, of `keys_per_block`, that a query attends to. The first one must be among
    /// them.
    #[inline(always)]
    pub fn visible(&self, query: usize, keys_per_block: usize) -> usize {
        (self.position_of(query) + 1 - self.start).min(keys_per_block)
    }
}

/// One arithmetic of prefill attention: its operands, scratch, running softmax and sums.
///
/// # Safety
/// Callers of each method are compiled for the kernel's instruction set, on a CPU that has it;
/// methods are `#[inline(always)]` for that, or call functions that are compiled for it themselves.
/// Tiles are of the kernel's queries and of keys that it has.
pub(super) trait PrefillKernel {
    /// Keys of a block.
    const KV_BLOCK: usize;

    /// Queries of a tile: tiles begin with multiples of this. 1: a tile has all queries that attend
    /// to the block.
    const Q_TILE: usize;

    /// Scores of the tile's queries with its keys.
    unsafe fn qk(&mut self, tile: &PrefillTile);

    /// Masks keys that a query does not attend to, turns scores into weights, and updates the
    /// running max and sum.
    unsafe fn softmax(&mut self, tile: &PrefillTile);

    /// Rescales earlier sums and adds the weighted values.
    unsafe fn pv(&mut self, tile: &PrefillTile);
}

/// Runs a kernel for queries, the first at `position`, over all blocks that any of them attends to.
///
/// # Safety
/// As for [`PrefillKernel`]; the kernel has these queries, and keys and values up to the position
/// of the last one.
#[inline(always)]
pub(super) unsafe fn run<K: PrefillKernel>(kernel: &mut K, position: usize, queries: usize) {
    let length = position + queries;
    for (block, start) in (0..length).step_by(K::KV_BLOCK).enumerate() {
        // Causal: earlier queries do not attend to this block. Rounded down to a whole tile, whose
        // scores are masked.
        let mut first = start.saturating_sub(position) / K::Q_TILE * K::Q_TILE;
        while first < queries {
            let end = if K::Q_TILE > 1 { queries.min(first + K::Q_TILE) } else { queries };
            let keys = K::KV_BLOCK.min(position + end - start);
            let tile = PrefillTile { block, start, queries: first..end, keys, position };
            // SAFETY: the caller is compiled for the kernel's instruction set, and the kernel has
            // the tile's queries and keys.
            unsafe {
                kernel.qk(&tile);
                kernel.softmax(&tile);
                kernel.pv(&tile);
            }
            first = end;
        }
    }
}
