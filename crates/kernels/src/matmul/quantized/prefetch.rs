//! Which lines of memory are asked for while tiles are multiplied with few rows, so that they arrive in time.

use super::formats::{Format, Planes};
use crate::cpu_vendor::Vendor;
use crate::simd::Simd;

/// Bytes ahead of what is multiplied.
const PREFETCH_DISTANCE: usize = 2048;

/// In what order a processor's core is best asked for the tiles of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Codes of each tile 2 kB ahead, and beside them the rest of the next tiles, which is little: with one row into the second-level cache.
    /// Cores of Intel keep more requests under way with several streams of addresses than with one, and few into the first-level cache.
    Streams,
    /// Everything in the order of addresses, the tiles that are multiplied side by side and 2 kB ahead. A core of AMD (Zen 5) reads 91 to
    /// 94 % as fast like this as in a loop that does nothing else; with streams 75 %.
    Addresses,
}

impl Order {
    /// The one for this processor.
    pub fn for_cpu() -> Order {
        match Vendor::detect() {
            Vendor::Amd => Order::Addresses,
            Vendor::Other => Order::Streams,
        }
    }
}

/// Where the lines lie that are asked for while a group of tiles side by side is multiplied: those of codes, and those of the rest of a
/// tile.
pub(super) struct PrefetchPolicy {
    /// What is asked for with the first run of the present group of runs.
    at: [*const u8; 2],
    /// From one group of runs to the next.
    group_steps: [usize; 2],
    /// From one run to the next.
    run_steps: [usize; 2],
    /// From one tile of the group to the next.
    tile_step: usize,
    /// Where asking for codes ends, and where it goes on.
    jump: [*const u8; 2],
}

impl PrefetchPolicy {
    /// For a group of `tiles` tiles of `blocks` blocks, of which the first is at `planes`.
    #[inline(always)]
    pub fn new<F: Format>(order: Order, planes: &Planes, blocks: usize, tiles: usize) -> PrefetchPolicy {
        const { assert!((F::QUANT_VECTORS * 64).is_multiple_of(F::SUBS) && F::REST_BYTES.is_multiple_of(F::SUBS)) }
        let (codes, rest_bytes) = (F::QUANT_VECTORS * 64 / F::SUBS, F::REST_BYTES / F::SUBS);
        let start = planes.codes;
        let next = start.wrapping_add(tiles * planes.tile_bytes);
        let (at, run_steps, tile_step, jump) = match order {
            Order::Streams => {
                let end = start.wrapping_add(blocks * codes * F::SUBS);
                let ahead = PREFETCH_DISTANCE.next_multiple_of(codes * F::SUBS);
                let from = start.wrapping_add(ahead);
                // rows may be so short that what is ahead begins in the next tiles
                let from =
                    if from < end { from } else { next.wrapping_add(ahead - blocks * codes * F::SUBS) };
                let rest = next.wrapping_add(blocks * codes * F::SUBS);
                ([from, rest], [codes, rest_bytes], planes.tile_bytes, [end, next])
            }
            Order::Addresses => {
                let from = next.wrapping_add(PREFETCH_DISTANCE);
                let step = codes + rest_bytes;
                ([from, from.wrapping_add(codes)], [tiles * step; 2], step, [std::ptr::null(); 2])
            }
        };
        let group_steps = [run_steps[0] * F::UNROLL, run_steps[1] * F::UNROLL];
        PrefetchPolicy { at, group_steps, run_steps, tile_step, jump }
    }

    /// Asks for the lines of a run (of the group of runs) of a tile of the group; for the rest, if `FAR`, into the second-level cache.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    pub unsafe fn prefetch<L: Simd, F: Format, const FAR: bool>(&self, run: usize, tile: usize) {
        let at = |kind: usize| self.at[kind].wrapping_add(run * self.run_steps[kind] + tile * self.tile_step);
        let (codes, rest) = (at(0), at(1));
        let rest_lines = (F::REST_BYTES / F::SUBS).div_ceil(64);
        // SAFETY: the caller's promise; asking for any address is allowed.
        unsafe {
            for line in 0..F::QUANT_VECTORS / F::SUBS {
                L::prefetch(codes.wrapping_add(line * 64));
            }
            for line in 0..rest_lines {
                let line = rest.wrapping_add(line * 64);
                if FAR { L::prefetch_far(line) } else { L::prefetch(line) }
            }
        }
    }

    /// Goes on to the next group of runs.
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
