//! Dispatch by batch size, and small batches: up to eight input rows share each tile, unpacked in
//! registers.
//!
//! An output is y = Σ over sub-blocks of 32 inputs, in order, of scale · (input scale · Σ quant ·
//! input quant) − min · (input scale · Σ input quants). The inner sum is exact in int32. One FMA
//! adds each term. With a constant zero point the integer sum already subtracts it, and the second
//! term is omitted. Formats with a scale per 16 inputs have two terms of each kind per sub-block.
//! The bits of the result therefore depend only on the operands, not on batch size or ISA.

use super::formats::{PlaneAddresses, QuantFormat};
use super::gemm;
use super::gemv;
use super::microkernel::QuantGemm;
use super::operands::TileOperands;
use super::prefetch::{PrefetchOrder, PrefetchPolicy};
use super::sub_block::{sub_block, to_arrays};
use crate::activation::Q8Block;
use crate::matmul::args::{MatmulArgs, input_row};
use crate::{MatmulScratch, QuantizedInput};
use std::sync::atomic::{Ordering, compiler_fence};

/// Bytes of tiles that are multiplied with all rows before the next tiles: a part of an L2 of 1 or
/// 2 MB, so that only the first pass over up to eight rows reads them from memory.
const TILE_BLOCK_BYTES: usize = 384 << 10;

/// A [`MatmulFn`](crate::MatmulFn) for int8 inputs.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(super) unsafe fn multiply<L: QuantGemm, F: QuantFormat>(
    args: MatmulArgs<'_, '_>,
    scratch: &mut MatmulScratch,
) {
    let MatmulArgs { weight, input, row_ids, outputs, y } = args;
    let QuantizedInput::A8(x) = input else { return };
    let Some(operands) = TileOperands::new::<F>(weight, x.cols(), outputs, y) else { return };
    if y.rows() >= L::min_rows::<F>() {
        // SAFETY: the operands were just checked; the ISA by this function's contract.
        return unsafe { gemm::multiply::<L, F>(&operands, (x, row_ids), y, &mut scratch.lines) };
    }
    let (layout, tiles) = (operands.layout, operands.tiles());
    // Even, since GEMV processes pairs of tiles that prefetch the next pair.
    let block_tiles = (TILE_BLOCK_BYTES / layout.tile_bytes()).max(1).next_multiple_of(2);
    let rows = y.rows();
    let order = PrefetchOrder::for_cpu();
    let mut from = tiles.start;
    while from < tiles.end {
        let to = (from + block_tiles).min(tiles.end);
        let mut row = 0;
        while row < rows {
            macro_rules! rows {
                ($m:literal) => {{
                    // If fewer rows remain, the last one is repeated and the results of its
                    // repetitions are discarded.
                    let blocks: [*const Q8Block; $m] =
                        std::array::from_fn(|i| x.row(input_row(row_ids, (row + i).min(rows - 1))).as_ptr());
                    for tile in from..to {
                        // SAFETY: `TileOperands::new` has checked that the tile and the input rows
                        // have the layout's blocks.
                        let sums = unsafe {
                            tile_rows::<L, F, $m>(order, &operands.planes(tile), layout.blocks(), &blocks)
                        };
                        for (row, sums) in (row..rows).zip(&sums) {
                            operands.store_outputs(sums, tile, y.row_mut(row));
                        }
                    }
                    row += $m;
                }};
            }
            // A repeated row is 20 % faster than another pass over the tiles.
            // measured: docs/notes/gemv-and-gemm.md "Rows per kernel"
            match (rows - row).min(L::MR) {
                7.. => rows!(8),
                5.. => rows!(6),
                3.. => rows!(4),
                2 => rows!(2),
                _ => {
                    let x = x.row(input_row(row_ids, row)).as_ptr();
                    // SAFETY: `TileOperands::new` has checked that the input rows have the layout's
                    // blocks.
                    unsafe { gemv::multiply::<L, F>(order, &operands, from..to, x, y.row_mut(row)) };
                    row += 1;
                }
            }
        }
        from = to;
    }
}

/// Sixteen outputs of `M` input rows.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. The planes are those of a tile of
/// `blocks` blocks, and each row of `x` is as long.
#[inline(always)]
unsafe fn tile_rows<L: QuantGemm, F: QuantFormat, const M: usize>(
    order: PrefetchOrder,
    planes: &PlaneAddresses,
    blocks: usize,
    x: &[*const Q8Block; M],
) -> [[f32; 16]; M] {
    // SAFETY: `b`, `g` and the unrolled index stay below what tile and rows have; the ISA by this
    // function's contract.
    unsafe {
        let mut prefetch = PrefetchPolicy::new::<F>(order, planes, blocks, 1);
        let mut sums = [L::splat_f32(0.0); M];
        for b in 0..blocks {
            for g in 0..F::SUB_BLOCKS / F::UNROLL {
                macro_rules! sub_blocks {
                    ($($s:literal)*) => {
                        $(if $s < F::UNROLL {
                            sub_block::<L, F, M, $s>(planes, b, g, x, &mut sums);
                            // As in GEMV: stops the compiler from hoisting loads and spilling them.
                            compiler_fence(Ordering::SeqCst);
                            prefetch.prefetch::<L, F, false, false>($s, 0);
                        })*
                    };
                }
                sub_blocks!(0 1 2 3);
                prefetch.advance();
            }
        }
        to_arrays::<L, M>(&sums)
    }
}
