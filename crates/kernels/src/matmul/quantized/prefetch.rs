//! Prefetch order and distance of GEMV and small batches.

use super::formats::{PlaneAddresses, QuantFormat};
use crate::cpu_vendor::CpuVendor;
use crate::simd::Simd;

/// Prefetch distance in bytes.
const PREFETCH_DISTANCE: usize = 2048;

/// In which order cache lines are prefetched; the better one depends on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrefetchOrder {
    /// One stream of quants per tile, 2 kB ahead, and one of the next tiles' scales, which GEMV prefetches to L2. Intel cores keep more
    /// requests in flight with several address streams than with one, and few of them to L1.
    Streams,
    /// The next tile group in address order, 2 kB ahead. A Zen 5 core then reads at 91 to 94 % of the speed of a loop that only reads; with
    /// streams at 75 %.
    Addresses,
    /// The same, in GEMV to L2. Zen 4 keeps few requests to L1 in flight: with [`PrefetchOrder::Addresses`] it reads at 50 to 60 % of that speed, so
    /// at 75 to 90 %.
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

/// Prefetch addresses while a group of tiles is multiplied: one for quants, one for the rest of a tile (upper bits and scales).
pub(super) struct PrefetchPolicy {
    /// Prefetched with the first sub-block of the current unrolled group.
    at: [*const u8; 2],
    /// From one unrolled group to the next.
    group_steps: [usize; 2],
    /// From one sub-block to the next.
    sub_block_steps: [usize; 2],
    /// From one tile to the next.
    tile_step: usize,
    /// Where the stream of quants ends, and where it continues.
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
                let ahead = PREFETCH_DISTANCE.next_multiple_of(quants * F::SUB_BLOCKS);
                let from = start.wrapping_add(ahead);
                // a row may be shorter than the distance, which then starts in the next tiles
                let from = if from < end {
                    from
                } else {
                    next.wrapping_add(ahead - blocks * quants * F::SUB_BLOCKS)
                };
                let rest = next.wrapping_add(blocks * quants * F::SUB_BLOCKS);
                ([from, rest], [quants, rest_bytes], planes.tile_bytes, [end, next])
            }
            PrefetchOrder::Addresses | PrefetchOrder::AddressesToL2 => {
                let from = next.wrapping_add(PREFETCH_DISTANCE);
                let step = quants + rest_bytes;
                ([from, from.wrapping_add(quants)], [tiles * step; 2], step, [std::ptr::null(); 2])
            }
        };
        let group_steps = [sub_block_steps[0] * F::UNROLL, sub_block_steps[1] * F::UNROLL];
        PrefetchPolicy { at, group_steps, sub_block_steps, tile_step, jump }
    }

    /// Prefetches for one sub-block of one tile: quants to L2 if `QUANTS_TO_L2`, else to L1; the rest likewise.
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
        // SAFETY: a prefetch never faults, whatever the address; the ISA by this function's contract.
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

    /// Moves on to the next unrolled group.
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
