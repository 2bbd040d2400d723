//! Products of many 8-bit rows with tiles: numbers are unpacked once into lines of a cache, then multiplied with all rows.
//!
//! A group of neighbouring tiles is unpacked for [`K_RUNS`] runs of 32 inputs at a time, which stay in the first-level cache: codes as
//! the dot product wants them, scales and minimums as f32. Blocks of rows × tiles are then summed in registers, as many as hide the
//! latency of a dot product; between stretches of inputs their sums wait in memory. Rows are taken in such numbers that they
//! stay in a cache that is near. The terms and their order are those of [`body`](super::body), so that the bits are the same.

use super::formats::{Format, Planes, QuantKind};
use super::microkernel::{AFFINE, CONST_ZERO, Group, MR, QuantGemm, SYMMETRIC, lines_of_run};
use super::operands::Operands;
use super::prefetch_queue::PrefetchQueue;
use crate::activation::Q8Block;
use crate::cpu_vendor::Vendor;
use crate::matmul::{Line, grow};
use crate::simd::Simd;
use crate::{Q8Rows, RowsMut};
use std::ops::Range;

/// Runs of 32 inputs that are unpacked at a time; a whole number of blocks of every format.
const K_RUNS: usize = 16;

/// Bytes of input rows that are multiplied with a group before the next group. Each part of the rows unpacks the weights anew; what it reads
/// again and again is to come from a cache that is near.
fn row_block_bytes() -> usize {
    match Vendor::detect() {
        // the third-level cache, which eight cores share: it gives the four rows that come next long before they are needed
        Vendor::Amd => 4 << 20,
        // half of a core's second-level cache
        Vendor::Other => 1 << 20,
    }
}

/// `y[i][o − outs.start]` for all rows i (of `x`, by way of `index`).
///
/// # Safety
/// As for [`Simd`]; the operands are checked.
#[inline(always)]
pub(super) unsafe fn multiply<L: QuantGemm, F: Format>(
    operands: &Operands<'_>,
    x: &Q8Rows<'_>,
    index: Option<&[u32]>,
    y: &mut RowsMut<'_>,
    memory: &mut Vec<Line>,
) {
    let (tiles, blocks) = (operands.tiles(), operands.layout.blocks());
    let rows = y.rows();
    let most = row_block_bytes() / (Q8Rows::row_blocks(x.cols()) * size_of::<Q8Block>());
    let parts = rows.div_ceil(most.max(4 * MR));
    let part = rows.div_ceil(parts).next_multiple_of(MR);
    let per_run = lines_of_run(F::HAS_MIN, F::SPLIT_SCALE);
    let unpacked = K_RUNS * L::TILES * per_run;
    let (unpacked, sums) = grow(memory, unpacked + part * L::TILES).split_at_mut(unpacked);
    let step = K_RUNS / F::SUBS;
    let mut row = 0;
    while row < rows {
        let rows = row..(row + part).min(rows);
        let mut tile = tiles.start;
        while tile < tiles.end {
            let size = next_group_size::<L>(tiles.end - tile);
            let sums = &mut sums[..rows.len().next_multiple_of(MR) * size];
            sums.fill(Line::default());
            let mut block = 0;
            while block < blocks {
                let end = (block + step).min(blocks);
                let unpacked = &mut unpacked[..(end - block) * F::SUBS * size * per_run];
                for i in 0..size {
                    let planes = operands.planes((tile + i).min(tiles.end - 1));
                    // SAFETY: the blocks are the tile's, and as many lines were taken for them.
                    unsafe {
                        unpack::<L, F>(&planes, block..end, &mut unpacked[i * per_run..], size * per_run)
                    };
                }
                let (next, from) = if end < blocks { (tile, end) } else { (tile + size, 0) };
                let runs = block * F::SUBS..end * F::SUBS;
                let mut group = Group {
                    operands,
                    tiles: tile..(tile + size).min(tiles.end),
                    lines: unpacked,
                    size,
                    shift: F::KIND.shift(),
                    runs,
                    x,
                    index,
                    rows: rows.clone(),
                    sums,
                    y: (end == blocks).then_some(&mut *y),
                    ahead: PrefetchQueue::new(
                        operands,
                        next..(next + size).min(tiles.end),
                        from..(from + step).min(blocks),
                    ),
                };
                // SAFETY: the caller's promise.
                unsafe {
                    match (F::KIND, F::SPLIT_SCALE) {
                        (QuantKind::Affine, false) => L::multiply_group::<AFFINE, false>(&mut group),
                        (QuantKind::Affine, true) => L::multiply_group::<AFFINE, true>(&mut group),
                        (QuantKind::Symmetric, false) => L::multiply_group::<SYMMETRIC, false>(&mut group),
                        (QuantKind::Symmetric, true) => L::multiply_group::<SYMMETRIC, true>(&mut group),
                        // raised ones are bytes whose constant is 128, as those of signed numbers
                        (QuantKind::ConstZero(_), false) if L::FULL_BYTES => {
                            L::multiply_group::<SYMMETRIC, false>(&mut group)
                        }
                        (QuantKind::ConstZero(_), true) if L::FULL_BYTES => {
                            L::multiply_group::<SYMMETRIC, true>(&mut group)
                        }
                        (QuantKind::ConstZero(_), false) => {
                            L::multiply_group::<CONST_ZERO, false>(&mut group)
                        }
                        (QuantKind::ConstZero(_), true) => L::multiply_group::<CONST_ZERO, true>(&mut group),
                    }
                }
                block = end;
            }
            tile += size;
        }
        row = rows.end;
    }
}

/// Tiles of the next group where `left` are left. One that is left alone is unpacked twice rather than compiled for; four are two pairs.
fn next_group_size<L: QuantGemm>(left: usize) -> usize {
    if left < L::TILES || left == L::TILES + 1 { L::TILES.min(2) } else { L::TILES }
}

/// Unpacks some blocks of a tile: the lines of its runs are `step` lines apart.
///
/// # Safety
/// As for [`Format`].
#[inline(always)]
unsafe fn unpack<L: Simd, F: Format>(planes: &Planes, blocks: Range<usize>, to: &mut [Line], step: usize) {
    const { assert!(K_RUNS.is_multiple_of(F::SUBS)) }
    let halves = 1 + usize::from(F::SPLIT_SCALE);
    let mut runs = to.chunks_mut(step);
    let groups = blocks.flat_map(|b| (0..F::SUBS / F::UNROLL).map(move |g| (b, g)));
    for (b, g) in groups {
        macro_rules! runs {
            ($($s:literal)*) => {
                $(if $s < F::UNROLL && let Some(lines) = runs.next() {
                    // SAFETY: the caller's promise; lines are 64 bytes each.
                    unsafe {
                        let codes = F::codes::<L, $s>(planes, b, g);
                        for j in 0..8 {
                            let codes = if F::SIGNED { L::bias128(codes[j]) } else { codes[j] };
                            L::store_bytes(lines[j].0.as_mut_ptr().cast(), codes);
                        }
                        let scales = F::scales::<L, $s>(planes, b, g);
                        let mins = F::mins::<L, $s>(planes, b, g, scales);
                        for half in 0..halves {
                            L::store_f32(lines[8 + half].0.as_mut_ptr(), scales[half]);
                            if F::HAS_MIN {
                                L::store_f32(lines[8 + halves + half].0.as_mut_ptr(), mins[half]);
                            }
                        }
                    }
                })*
            };
        }
        runs!(0 1 2 3);
    }
}
