//! What is unpacked next, asked for while the present is multiplied.

use super::microkernel::MAX_TILES;
use super::operands::Operands;
use crate::simd::Simd;
use std::ops::Range;

/// Lines of memory that are unpacked next, to be asked for meanwhile.
pub(super) struct PrefetchQueue {
    pieces: [(*const u8, usize); 4 * MAX_TILES],
    /// Lines of all pieces.
    pub lines: usize,
    piece: usize,
    at: usize,
}

impl PrefetchQueue {
    /// Some blocks of some tiles.
    pub fn new(operands: &Operands<'_>, tiles: Range<usize>, blocks: Range<usize>) -> PrefetchQueue {
        let mut ahead =
            PrefetchQueue { pieces: [(std::ptr::null(), 0); 4 * MAX_TILES], lines: 0, piece: 0, at: 0 };
        for (tile, pieces) in tiles.zip(ahead.pieces.chunks_exact_mut(4)) {
            pieces.copy_from_slice(&operands.pieces(tile, blocks.clone()));
        }
        ahead.lines = ahead.pieces.iter().map(|(_, bytes)| bytes.div_ceil(64)).sum();
        ahead
    }

    /// Asks for the next lines.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    pub unsafe fn prefetch<L: Simd>(&mut self, lines: usize) {
        for _ in 0..lines {
            while self.piece < self.pieces.len() && self.at >= self.pieces[self.piece].1 {
                (self.piece, self.at) = (self.piece + 1, 0);
            }
            let Some((start, _)) = self.pieces.get(self.piece) else { return };
            // SAFETY: the caller's promise.
            unsafe { L::prefetch_far(start.wrapping_add(self.at)) };
            self.at += 64;
        }
    }
}
