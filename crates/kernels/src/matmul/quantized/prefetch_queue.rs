//! Prefetch of the memory that GEMM unpacks next, while the current sub-blocks are multiplied.

use super::operands::TileOperands;
use crate::simd::Simd;
use std::ops::Range;

/// Maximum number of tiles that are unpacked together.
pub(super) const MAX_TILES: usize = 3;

/// Cache lines to prefetch, plane by plane.
pub(super) struct PrefetchQueue {
    /// Address and length of the next blocks in each of the four planes of each tile.
    ranges: [(*const u8, usize); 4 * MAX_TILES],
    /// Cache lines of all ranges.
    pub lines: usize,
    range: usize,
    offset: usize,
}

impl PrefetchQueue {
    /// Blocks `blocks` of at most [`MAX_TILES`] tiles.
    pub fn new(operands: &TileOperands<'_>, tiles: Range<usize>, blocks: Range<usize>) -> PrefetchQueue {
        let mut queue =
            PrefetchQueue { ranges: [(std::ptr::null(), 0); 4 * MAX_TILES], lines: 0, range: 0, offset: 0 };
        for (tile, ranges) in tiles.zip(queue.ranges.chunks_exact_mut(4)) {
            ranges.copy_from_slice(&operands.plane_ranges(tile, blocks.clone()));
        }
        queue.lines = queue.ranges.iter().map(|(_, bytes)| bytes.div_ceil(64)).sum();
        queue
    }

    /// Prefetches the next `lines` cache lines.
    ///
    /// # Safety
    /// The caller is compiled for the ISA of `L`, and the CPU has it.
    #[inline(always)]
    pub unsafe fn prefetch<L: Simd>(&mut self, lines: usize) {
        for _ in 0..lines {
            while self.range < self.ranges.len() && self.offset >= self.ranges[self.range].1 {
                (self.range, self.offset) = (self.range + 1, 0);
            }
            let Some((start, _)) = self.ranges.get(self.range) else { return };
            // To L2: L1 holds the unpacked tiles and the input rows.
            // SAFETY: a prefetch never faults for any address; the ISA by this function's
            // contract.
            unsafe { L::prefetch_far(start.wrapping_add(self.offset)) };
            self.offset += 64;
        }
    }
}
