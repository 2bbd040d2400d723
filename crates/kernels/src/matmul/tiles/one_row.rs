//! Products of one row, as in decoding: bound by memory, so that what counts is that lines are asked for early enough.
//!
//! Two tiles are read side by side. They share the loads of the inputs, and are two streams of addresses where a processor is quicker with
//! several (see [`Order`]).

use super::asking::{Asking, Order};
use super::body::run;
use super::formats::{Format, Planes};
use super::operands::Operands;
use crate::act::A8Block;
use crate::lanes::Lanes;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

/// The outputs of some tiles, for a row.
///
/// # Safety
/// As for [`Lanes`]; the operands are checked, and `x` has as many numbers as they have inputs.
#[inline(always)]
pub(super) unsafe fn multiply<L: Lanes, F: Format>(
    order: Order,
    operands: &Operands<'_>,
    tiles: Range<usize>,
    x: *const A8Block,
    y: &mut [f32],
) {
    let blocks = operands.layout.blocks();
    let mut tile = tiles.start;
    macro_rules! tiles {
        ($n:literal) => {{
            let planes: [Planes; $n] = std::array::from_fn(|i| operands.planes(tile + i));
            // SAFETY: the caller's promise.
            let sums = unsafe {
                match order {
                    Order::Streams => side_by_side::<L, F, $n, true>(&planes, blocks, x),
                    Order::Addresses => side_by_side::<L, F, $n, false>(&planes, blocks, x),
                }
            };
            sums.iter().zip(tile..).for_each(|(sums, tile)| operands.put(sums, tile, y));
            tile += $n;
        }};
    }
    while L::PAIRS && tile + 1 < tiles.end {
        tiles!(2);
    }
    while tile < tiles.end {
        tiles!(1);
    }
}

/// Sixteen outputs of each of `T` tiles that follow one another. `STREAMS`: lines are asked for in [`Order::Streams`], else in
/// [`Order::Addresses`].
///
/// # Safety
/// As for [`Lanes`]; the planes belong to tiles of `blocks` blocks, and `x` has as many numbers.
#[inline(always)]
unsafe fn side_by_side<L: Lanes, F: Format, const T: usize, const STREAMS: bool>(
    planes: &[Planes; T],
    blocks: usize,
    x: *const A8Block,
) -> [[f32; 16]; T] {
    let order = if STREAMS { Order::Streams } else { Order::Addresses };
    let mut asking = Asking::new::<F>(order, &planes[0], blocks, T);
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[L::all(0.0)]; T];
        for b in 0..blocks {
            macro_rules! runs {
                ($($s:literal)*) => {
                    $(if $s < F::SUBS {
                        for (tile, (planes, sums)) in planes.iter().zip(&mut sums).enumerate() {
                            run::<L, F, 1, $s>(planes, b, &[x], sums);
                            // else the compiler loads what many runs need at once, and puts it down on the stack
                            compiler_fence(Ordering::SeqCst);
                            asking.ask::<L, F, STREAMS>($s, tile);
                        }
                    })*
                };
            }
            runs!(0 1 2 3 4 5 6 7);
            asking.advance();
        }
        sums.map(|sums| L::store(sums[0]))
    }
}
