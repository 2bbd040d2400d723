//! Products of one row, as in decoding: bound by memory, so that what counts is that lines are asked for early enough.
//!
//! Two tiles are read side by side. They are two streams of addresses, which keep more requests to memory under way than one does, and
//! they share the loads of the inputs.

use super::body::{AHEAD, run};
use super::formats::{Format, Planes};
use crate::act::A8Block;
use crate::lanes::Lanes;
use std::sync::atomic::{Ordering, compiler_fence};

/// Sixteen outputs of each of `T` tiles that follow one another.
///
/// # Safety
/// As for [`Lanes`]; the planes belong to tiles of `blocks` blocks, and `x` has as many numbers.
#[inline(always)]
pub(super) unsafe fn multiply<L: Lanes, F: Format, const T: usize>(
    planes: &[Planes; T],
    blocks: usize,
    x: *const A8Block,
) -> [[f32; 16]; T] {
    let codes = F::VECTORS * 64;
    let skipped = T * planes[0].tile_bytes;
    // what a tile holds besides codes, a block
    let others = planes[0].tile_bytes / blocks - codes;
    // SAFETY: the caller's promise; asking for any address is allowed.
    unsafe {
        let mut sums = [[L::all(0.0)]; T];
        for b in 0..blocks {
            let ahead = b + AHEAD.div_ceil(codes);
            let ahead = if ahead < blocks { ahead * codes } else { skipped + (ahead - blocks) * codes };
            macro_rules! runs {
                ($($s:literal)*) => {
                    $(if $s < F::SUBS {
                        for (planes, sums) in planes.iter().zip(&mut sums) {
                            run::<L, F, 1, $s>(planes, b, &[x], sums);
                            // else the compiler loads what many runs need at once, and puts it down on the stack
                            compiler_fence(Ordering::SeqCst);
                            let lines = F::VECTORS / F::SUBS;
                            for line in $s * lines..($s + 1) * lines {
                                L::prefetch(planes.codes.wrapping_add(ahead + line * 64));
                            }
                        }
                    })*
                };
            }
            runs!(0 1 2 3 4 5 6 7);
            // scales and the like are little: those of the next tiles, in the second-level cache
            for planes in planes {
                for line in (0..others).step_by(64) {
                    let next = skipped + blocks * codes + b * others + line;
                    L::prefetch_far(planes.codes.wrapping_add(next));
                }
            }
        }
        sums.map(|sums| L::store(sums[0]))
    }
}
