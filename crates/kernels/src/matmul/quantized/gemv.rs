//! GEMV: one input row, as in decode. Bound by memory bandwidth, so prefetching determines its
//! speed.
//!
//! With AVX-512, two tiles are processed together: they share the loads of the input, and are two
//! address streams for CPUs that read faster with several (see [`PrefetchOrder`]).

use super::formats::{PlaneAddresses, QuantFormat};
use super::microkernel::QuantGemm;
use super::operands::TileOperands;
use super::prefetch::{PrefetchOrder, PrefetchPolicy};
use super::sub_block::{sub_block, to_arrays};
use crate::activation::Q8Block;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

/// The outputs of some tiles for one input row.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. `tiles` are tiles of the
/// operands, and `x` is a row of as many elements as they have inputs.
#[inline(always)]
pub(super) unsafe fn multiply<L: QuantGemm, F: QuantFormat>(
    order: PrefetchOrder,
    operands: &TileOperands<'_>,
    tiles: Range<usize>,
    x: *const Q8Block,
    y: &mut [f32],
) {
    let mut tile = tiles.start;
    while tile < tiles.end {
        // SAFETY: `tile..tiles.end` is a non-empty part of `tiles`; the rest by this function's
        // contract.
        tile += unsafe {
            if L::TWO_TILES {
                group::<L, F, 2>(order, operands, tile..tiles.end, x, y)
            } else {
                group::<L, F, 1>(order, operands, tile..tiles.end, x, y)
            }
        };
    }
}

/// Computes the outputs of the first `T` of some tiles; returns `T`.
///
/// # Safety
/// As for [`multiply`]; there is at least one tile.
#[inline(always)]
unsafe fn group<L: QuantGemm, F: QuantFormat, const T: usize>(
    order: PrefetchOrder,
    operands: &TileOperands<'_>,
    tiles: Range<usize>,
    x: *const Q8Block,
    y: &mut [f32],
) -> usize {
    // If fewer tiles remain, the last one is computed twice, and one result is discarded. The
    // second time it comes from the cache, and a form for a single tile would add a ninth to the
    // compile time of all matmuls.
    let planes: [PlaneAddresses; T] =
        std::array::from_fn(|i| operands.planes((tiles.start + i).min(tiles.end - 1)));
    // SAFETY: the planes are those of tiles of the operands, whose rows have as many blocks as `x`.
    let sums = unsafe {
        match order {
            PrefetchOrder::Streams if L::PREFETCHES => {
                interleaved_tiles::<L, F, T, STREAMS>(&planes, operands.layout.blocks(), x)
            }
            PrefetchOrder::AddressesToL2 if L::PREFETCHES => {
                interleaved_tiles::<L, F, T, TO_L2>(&planes, operands.layout.blocks(), x)
            }
            _ => interleaved_tiles::<L, F, T, TO_L1>(&planes, operands.layout.blocks(), x),
        }
    };
    sums.iter().zip(tiles).for_each(|(sums, tile)| operands.store_outputs(sums, tile, y));
    T
}

/// [`PrefetchOrder`] as a const generic argument.
const STREAMS: u8 = 0;
const TO_L1: u8 = 1;
const TO_L2: u8 = 2;

/// Sixteen outputs of each of `T` adjacent tiles.
// The order of prefetches is a compile-time constant. As a variable, Q8_0 was read a fifth more
// slowly, and a branch at each prefetch made the compiler spill Q6_K (40 → 10 GB/s in cache).
// measured: docs/notes/memory-and-prefetch.md "Layout and prefetch"
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. The planes are those of tiles of
/// `blocks` blocks, and `x` is as long.
#[inline(always)]
unsafe fn interleaved_tiles<L: QuantGemm, F: QuantFormat, const T: usize, const ORDER: u8>(
    planes: &[PlaneAddresses; T],
    blocks: usize,
    x: *const Q8Block,
) -> [[f32; 16]; T] {
    let order = match ORDER {
        STREAMS => PrefetchOrder::Streams,
        TO_L1 => PrefetchOrder::Addresses,
        _ => PrefetchOrder::AddressesToL2,
    };
    let mut prefetch = PrefetchPolicy::new::<F>(order, &planes[0], blocks, T);
    // SAFETY: `b`, `g` and the unrolled index stay below what tiles and `x` have; the ISA by this
    // function's contract.
    unsafe {
        let mut sums = [L::splat_f32(0.0); T];
        for b in 0..blocks {
            for g in 0..F::SUB_BLOCKS / F::UNROLL {
                macro_rules! sub_blocks {
                    ($($s:literal)*) => {
                        $(if $s < F::UNROLL {
                            for (tile, (planes, sum)) in planes.iter().zip(&mut sums).enumerate() {
                                sub_block::<L, F, 1, $s>(planes, b, g, &[x], std::array::from_mut(sum));
                                // No instruction: it stops the compiler from hoisting the loads of
                                // many sub-blocks, which it then spills (Q4_K: 24 instead of 40
                                // GB/s in cache).
                                // measured: docs/notes/gemv-and-gemm.md "Unrolled groups spill"
                                compiler_fence(Ordering::SeqCst);
                                match ORDER {
                                    STREAMS => prefetch.prefetch::<L, F, false, true>($s, tile),
                                    TO_L1 => prefetch.prefetch::<L, F, false, false>($s, tile),
                                    _ => prefetch.prefetch::<L, F, true, true>($s, tile),
                                }
                            }
                        })*
                    };
                }
                sub_blocks!(0 1 2 3);
                prefetch.advance();
            }
        }
        to_arrays::<L, T>(&sums)
    }
}
