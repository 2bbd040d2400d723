//! Products of one row, as in decoding: bound by memory, so that what counts is that lines are asked for early enough.
//!
//! Two tiles are read side by side. They share the loads of the inputs, and are two streams of addresses where a processor is quicker with
//! several (see [`Order`]).

use super::body::{run, store_all};
use super::formats::{Format, Planes};
use super::operands::Operands;
use super::prefetch::{Order, PrefetchPolicy};
use crate::activation::Q8Block;
use crate::simd::Simd;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

/// The outputs of some tiles, for a row.
///
/// # Safety
/// As for [`Simd`]; the operands are checked, and `x` has as many numbers as they have inputs.
#[inline(always)]
pub(super) unsafe fn multiply<L: Simd, F: Format>(
    order: Order,
    operands: &Operands<'_>,
    tiles: Range<usize>,
    x: *const Q8Block,
    y: &mut [f32],
) {
    let mut tile = tiles.start;
    while tile < tiles.end {
        // SAFETY: the caller's promise.
        tile += unsafe {
            if L::TWO_TILES {
                group::<L, F, 2>(order, operands, tile..tiles.end, x, y)
            } else {
                group::<L, F, 1>(order, operands, tile..tiles.end, x, y)
            }
        };
    }
}

/// The outputs of the first `T` of some tiles. Where there are fewer, the last is multiplied again, for nobody: that costs no reads from memory, and
/// compiling for one tile too cost a ninth of the time of all products.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn group<L: Simd, F: Format, const T: usize>(
    order: Order,
    operands: &Operands<'_>,
    tiles: Range<usize>,
    x: *const Q8Block,
    y: &mut [f32],
) -> usize {
    let planes: [Planes; T] = std::array::from_fn(|i| operands.planes((tiles.start + i).min(tiles.end - 1)));
    // SAFETY: the caller's promise.
    let sums = unsafe {
        match order {
            Order::Streams => interleaved_tiles::<L, F, T, true>(&planes, operands.layout.blocks(), x),
            Order::Addresses => interleaved_tiles::<L, F, T, false>(&planes, operands.layout.blocks(), x),
        }
    };
    sums.iter().zip(tiles).for_each(|(sums, tile)| operands.put(sums, tile, y));
    T
}

/// Sixteen outputs of each of `T` tiles that follow one another. `STREAMS`: lines are asked for in [`Order::Streams`], else in
/// [`Order::Addresses`]: with the order as a variable, Q8_0 was read a fifth more slowly.
///
/// # Safety
/// As for [`Simd`]; the planes belong to tiles of `blocks` blocks, and `x` has as many numbers.
#[inline(always)]
unsafe fn interleaved_tiles<L: Simd, F: Format, const T: usize, const STREAMS: bool>(
    planes: &[Planes; T],
    blocks: usize,
    x: *const Q8Block,
) -> [[f32; 16]; T] {
    let order = if STREAMS { Order::Streams } else { Order::Addresses };
    let mut prefetch = PrefetchPolicy::new::<F>(order, &planes[0], blocks, T);
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [L::splat_f32(0.0); T];
        for b in 0..blocks {
            for g in 0..F::SUBS / F::UNROLL {
                macro_rules! runs {
                    ($($s:literal)*) => {
                        $(if $s < F::UNROLL {
                            for (tile, (planes, sum)) in planes.iter().zip(&mut sums).enumerate() {
                                run::<L, F, 1, $s>(planes, b, g, &[x], std::array::from_mut(sum));
                                // else the compiler loads what many runs need at once, and puts it down on the stack
                                compiler_fence(Ordering::SeqCst);
                                prefetch.prefetch::<L, F, STREAMS>($s, tile);
                            }
                        })*
                    };
                }
                runs!(0 1 2 3);
                prefetch.advance();
            }
        }
        store_all::<L, T>(&sums)
    }
}
