//! GEMM for large batches: tiles are unpacked to L1 once, then multiplied with all input rows.
//!
//! A group of adjacent tiles is unpacked for [`K_SUB_BLOCKS`] sub-blocks of 32 inputs at a time:
//! quants as the dot product takes them, scales and mins as f32. The microkernel then accumulates
//! blocks of rows × tiles in registers, enough to hide the latency of a dot product. Between two
//! such ranges of inputs the accumulators are in memory. Input rows are blocked for L2 or L3. Terms
//! and their order are those of small batches, so the bits are the same.

use super::formats::{PlaneAddresses, QuantFormat, QuantKind};
use super::microkernel::{QuantGemm, TileGroup, lines_per_sub_block};
use super::microkernel_block::{AFFINE, CONST_ZERO, MR, SYMMETRIC};
use super::narrow;
use super::operands::TileOperands;
use super::prefetch_queue::PrefetchQueue;
use crate::activation::Q8Block;
use crate::cpu_vendor::CpuVendor;
use crate::matmul::scratch::{CacheLine, grow};
use crate::{MatrixViewMut, Q8Rows};
use std::ops::Range;

/// Sub-blocks of 32 inputs that are unpacked at a time: whole blocks of every format.
// With three tiles and nine to twelve lines per sub-block, 27 to 36 kB: most of an L1 of 32 or 48
// kB. Fewer sub-blocks would load and store the accumulators more often.
const K_SUB_BLOCKS: usize = 16;

/// Bytes of input rows per row block. Each row block unpacks the weights again, so it should be
/// large. Its rows are read again for every group of tiles, so it should fit a near cache.
// measured: docs/notes/memory-and-prefetch.md "Layout and prefetch"
fn row_block_bytes() -> usize {
    match CpuVendor::detect() {
        // L3: 32 MB shared by eight cores. The next four rows are prefetched while four are
        // multiplied, which hides its latency.
        CpuVendor::AmdZen5 | CpuVendor::Amd => 4 << 20,
        // Half of an L2 of 2 MB.
        CpuVendor::Other => 1 << 20,
    }
}

/// All rows of `y`, from input rows and their ids.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. The operands were checked against
/// `x` and `y`.
#[inline(always)]
pub(super) unsafe fn multiply<L: QuantGemm, F: QuantFormat>(
    operands: &TileOperands<'_>,
    (x, row_ids): (&Q8Rows<'_>, Option<&[u32]>),
    y: &mut MatrixViewMut<'_>,
    memory: &mut Vec<CacheLine>,
) {
    let (tiles, blocks) = (operands.tiles(), operands.layout.blocks());
    let rows = y.rows();
    let max_rows = row_block_bytes() / (Q8Rows::row_blocks(x.cols()) * size_of::<Q8Block>());
    // At least sixteen rows amortize the unpacking, however long rows are. Row blocks of equal size
    // avoid a short last one, which would unpack all weights for few rows.
    let parts = rows.div_ceil(max_rows.max(4 * MR));
    let part = rows.div_ceil(parts).next_multiple_of(MR);
    let offsets = F::HAS_MIN || const { L::NARROW && narrow::full_bytes::<F>() };
    let per_sub_block = lines_per_sub_block(offsets, F::SPLIT_SCALE);
    let unpacked = K_SUB_BLOCKS * L::TILES * per_sub_block;
    let (unpacked, sums) = grow(memory, unpacked + part * L::TILES).split_at_mut(unpacked);
    let step = K_SUB_BLOCKS / F::SUB_BLOCKS;
    let biased16 = const { L::NARROW && narrow::uses_bias16::<F>() };
    let shift = if biased16 { narrow::BIAS16_SHIFT } else { F::KIND.shift() };
    let mut row = 0;
    while row < rows {
        let rows = row..(row + part).min(rows);
        let mut tile = tiles.start;
        while tile < tiles.end {
            let size = next_group_size::<L>(tiles.end - tile);
            let sums = &mut sums[..rows.len().next_multiple_of(MR) * size];
            sums.fill(CacheLine::default());
            let mut block = 0;
            while block < blocks {
                let end = (block + step).min(blocks);
                let unpacked = &mut unpacked[..(end - block) * F::SUB_BLOCKS * size * per_sub_block];
                for i in 0..size {
                    // The last tile is repeated if the group has fewer: see `next_group_size`.
                    let planes = operands.planes((tile + i).min(tiles.end - 1));
                    // SAFETY: the tile has the blocks; the ISA by this function's contract.
                    unsafe {
                        unpack::<L, F>(
                            &planes,
                            block..end,
                            &mut unpacked[i * per_sub_block..],
                            size * per_sub_block,
                        )
                    };
                }
                let (next, from) = if end < blocks { (tile, end) } else { (tile + size, 0) };
                let sub_blocks = block * F::SUB_BLOCKS..end * F::SUB_BLOCKS;
                let mut group = TileGroup {
                    operands,
                    tiles: tile..(tile + size).min(tiles.end),
                    lines: unpacked,
                    size,
                    shift,
                    depth: const { narrow::depth_of::<F>() },
                    sub_blocks,
                    x,
                    row_ids,
                    rows: rows.clone(),
                    sums,
                    y: (end == blocks).then_some(&mut *y),
                    prefetch: PrefetchQueue::new(
                        operands,
                        next..(next + size).min(tiles.end),
                        from..(from + step).min(blocks),
                    ),
                };
                // SAFETY: the group has `size` ≤ `L::TILES` tiles; the ISA by this function's
                // contract.
                unsafe {
                    match (F::KIND, F::SPLIT_SCALE) {
                        (QuantKind::Affine, false) => L::multiply_group::<AFFINE, false>(&mut group),
                        (QuantKind::Affine, true) => L::multiply_group::<AFFINE, true>(&mut group),
                        (QuantKind::Symmetric, false) if biased16 => {
                            L::multiply_group::<CONST_ZERO, false>(&mut group)
                        }
                        (QuantKind::Symmetric, true) if biased16 => {
                            L::multiply_group::<CONST_ZERO, true>(&mut group)
                        }
                        (QuantKind::Symmetric, false) => L::multiply_group::<SYMMETRIC, false>(&mut group),
                        (QuantKind::Symmetric, true) => L::multiply_group::<SYMMETRIC, true>(&mut group),
                        // Quants are shifted left to a zero point of 128, as biased signed quants
                        // have.
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

/// Size of the next group of tiles. A last single tile uses the kernel for two tiles, unpacked
/// twice. Four tiles are split 2 + 2, since 3 + 1 would compute five.
fn next_group_size<L: QuantGemm>(left: usize) -> usize {
    if left < L::TILES || left == L::TILES + 1 { L::TILES.min(2) } else { L::TILES }
}

/// Unpacks some blocks of a tile, each sub-block to the start of the next `step` lines of `to`. So
/// the sub-blocks of a group's tiles are interleaved, and the microkernel reads them in address
/// order.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. The tile at `planes` has the
/// blocks.
#[inline(always)]
unsafe fn unpack<L: QuantGemm, F: QuantFormat>(
    planes: &PlaneAddresses,
    blocks: Range<usize>,
    to: &mut [CacheLine],
    step: usize,
) {
    const { assert!(K_SUB_BLOCKS.is_multiple_of(F::SUB_BLOCKS)) }
    let halves = 1 + usize::from(F::SPLIT_SCALE);
    let mut sub_blocks = to.chunks_mut(step);
    // Loops at run time over groups, unrolled within a group, as in GEMV.
    let groups = blocks.flat_map(|b| (0..F::SUB_BLOCKS / F::UNROLL).map(move |g| (b, g)));
    for (b, g) in groups {
        macro_rules! sub_blocks {
            ($($s:literal)*) => {
                $(if $s < F::UNROLL && let Some(lines) = sub_blocks.next() {
                    // SAFETY: the tile has the block by this function's contract; a line has room
                    // for a vector of 64 bytes.
                    unsafe {
                        let quants = F::quants::<L, $s>(planes, b, g);
                        for j in 0..8 {
                            let quants = match F::SIGNED {
                                true if const { L::NARROW && narrow::uses_bias16::<F>() } => L::bias16(quants[j]),
                                true => L::bias128(quants[j]),
                                false => quants[j],
                            };
                            L::store_bytes(lines[j].0.as_mut_ptr().cast(), quants);
                        }
                        if const { L::NARROW && narrow::full_bytes::<F>() } {
                            L::store_negatives(&quants, &mut lines[8 + halves]);
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
        sub_blocks!(0 1 2 3);
    }
}
