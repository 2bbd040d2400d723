//! Prefetch order and distance of GEMV and small batches.

use super::formats::{PlaneAddresses, QuantFormat};
use crate::cpu_vendor::CpuVendor;
use crate::simd::Simd;

/// Prefetch distance in bytes.
// Decode is 8 % faster than without, and a batch of eight sequences generates 94 instead of 80 t/s
// (Xeon).
// measured: docs/notes/memory-and-prefetch.md "Layout and prefetch"
const PREFETCH_DISTANCE: usize = 2048;

/// The order in which cache lines are prefetched; the best one depends on the CPU.
// measured: docs/notes/memory-and-prefetch.md "Layout and prefetch"
// measured: docs/notes/memory-and-prefetch.md "Zen 4: the same stream, to L2"
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrefetchOrder {
    /// One stream of quants per tile, 2 kB ahead, and one of the next tiles' scales, which GEMV
    /// prefetches to L2. Intel cores keep more requests in flight with several address streams than
    /// with one, and few of them to L1.
    Streams,
    /// The next group of tiles in address order, 2 kB ahead. A Zen 5 core then reads at 90 to 94 %
    /// of the speed of a loop that only reads; at 75 % with pairs of tiles as two streams.
    Addresses,
    /// The next group of tiles in address order, in GEMV to L2. Zen 4 keeps only some 24 requests
    /// to L1 in flight: it reads at 50 to 60 % of the speed of a loop that only reads with
    /// [`PrefetchOrder::Addresses`], and at 75 to 90 % with this order.
    AddressesToL2,
}

impl PrefetchOrder {
    pub fn for_cpu() -> PrefetchOrder {
        match CpuVendor::detect() {
            CpuVendor::AmdZen5 => PrefetchOrder::Addresses,
            CpuVendor::Amd => PrefetchOrder::AddressesToL2,
            CpuVendor::Other => PrefetchOrder::Streams,
        }
    }
}

/// Prefetch addresses while a group of tiles is multiplied: one for quants, one for the other
/// planes of a tile (upper bits and scales).
pub(super) struct PrefetchPolicy {
    /// Prefetched with the first sub-block of the current unrolled group.
    at: [*const u8; 2],
    /// From one unrolled group to the next.
    group_steps: [usize; 2],
    /// From one sub-block to the next.
    sub_block_steps: [usize; 2],
    /// From one tile to the next.
    tile_step: usize,
    /// Address at which the stream of quants ends, and address at which it continues: the next
    /// tile.
    jump: [*const u8; 2],
}

impl PrefetchPolicy {
    /// For `tiles` adjacent tiles of `blocks` blocks, the first at `planes`.
    #[inline(always)]
    pub fn new<F: QuantFormat>(
        order: PrefetchOrder,
        planes: &PlaneAddresses,
        blocks: usize,
        tiles: usize,
    ) -> PrefetchPolicy {
        const {
            assert!(
                (F::QUANT_VECTORS * 64).is_multiple_of(F::SUB_BLOCKS)
                    && F::REST_BYTES.is_multiple_of(F::SUB_BLOCKS)
            )
        }
        let (quants, rest_bytes) = (F::QUANT_VECTORS * 64 / F::SUB_BLOCKS, F::REST_BYTES / F::SUB_BLOCKS);
        let start = planes.quants;
        let next = start.wrapping_add(tiles * planes.tile_bytes);
        let (at, sub_block_steps, tile_step, jump) = match order {
            PrefetchOrder::Streams => {
                let end = start.wrapping_add(blocks * quants * F::SUB_BLOCKS);
                // Whole blocks, so that `advance` reaches the end of the quants exactly and
                // compares for equality.
                let ahead = PREFETCH_DISTANCE.next_multiple_of(quants * F::SUB_BLOCKS);
                let from = start.wrapping_add(ahead);
                // If the tile's quants are shorter than the distance, prefetching starts in the
                // next tiles.
                let from = if from < end {
                    from
                } else {
                    next.wrapping_add(ahead - blocks * quants * F::SUB_BLOCKS)
                };
                let rest = next.wrapping_add(blocks * quants * F::SUB_BLOCKS);
                ([from, rest], [quants, rest_bytes], planes.tile_bytes, [end, next])
            }
            PrefetchOrder::Addresses | PrefetchOrder::AddressesToL2 => {
                // Each sub-block of each tile prefetches the following `step` bytes: one sequential
                // stream over all planes. It never reaches the null address, so `advance` does not
                // jump.
                let from = next.wrapping_add(PREFETCH_DISTANCE);
                let step = quants + rest_bytes;
                ([from, from.wrapping_add(quants)], [tiles * step; 2], step, [std::ptr::null(); 2])
            }
        };
        let group_steps = [sub_block_steps[0] * F::UNROLL, sub_block_steps[1] * F::UNROLL];
        PrefetchPolicy { at, group_steps, sub_block_steps, tile_step, jump }
    }

    /// Prefetches for one sub-block of one tile: quants to L2 if `QUANTS_TO_L2`, else to L1; the
    /// other planes likewise.
    ///
    /// # Safety
    /// The caller is compiled for the ISA of `L`, and the CPU has it.
    #[inline(always)]
    pub unsafe fn prefetch<L: Simd, F: QuantFormat, const QUANTS_TO_L2: bool, const REST_TO_L2: bool>(
        &self,
        sub_block: usize,
        tile: usize,
    ) {
        let at = |kind: usize| {
            self.at[kind].wrapping_add(sub_block * self.sub_block_steps[kind] + tile * self.tile_step)
        };
        let (quants, rest) = (at(0), at(1));
        let rest_lines = (F::REST_BYTES / F::SUB_BLOCKS).div_ceil(64);
        // SAFETY: a prefetch never faults for any address; the ISA by this function's
        // contract.
        unsafe {
            for line in 0..F::QUANT_VECTORS / F::SUB_BLOCKS {
                let line = quants.wrapping_add(line * 64);
                if QUANTS_TO_L2 { L::prefetch_far(line) } else { L::prefetch(line) }
            }
            for line in 0..rest_lines {
                let line = rest.wrapping_add(line * 64);
                if REST_TO_L2 { L::prefetch_far(line) } else { L::prefetch(line) }
            }
        }
    }

    /// Advances to the next unrolled group.
    #[inline(always)]
    pub fn advance(&mut self) {
        for (at, step) in self.at.iter_mut().zip(self.group_steps) {
            *at = at.wrapping_add(step);
        }
        if self.at[0] == self.jump[0] {
            self.at[0] = self.jump[1];
        }
    }
}
