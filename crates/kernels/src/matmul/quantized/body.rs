//! Products of 8-bit rows with tiles, written once for all instruction sets. Up to eight rows share a tile that is unpacked in registers; how
//! many rows are multiplied is told in [`gemm`].
//!
//! An output is y = Σ over runs of 32 inputs, in order, of scale · (input scale · Σ code · input code) − min · (input scale ·
//! Σ input codes): the inner sum in exact integers, then one fused multiply-add for each term. Where the minimum is a constant times the scale,
//! codes are less that constant, and the second term is none. Where a format has a scale for each 16
//! inputs, a run has two such terms of each kind. So the bits depend on nothing but the operands.

use super::formats::{Format, Planes, QuantKind};
use super::gemm;
use super::gemv;
use super::microkernel::QuantGemm;
use super::operands::Operands;
use super::prefetch::{Order, PrefetchPolicy};
use crate::activation::Q8Block;
use crate::simd::Simd;
use crate::{MatmulArgs, QuantizedInput, Scratch};
use std::hint::black_box;
use std::sync::atomic::{Ordering, compiler_fence};

/// Bytes of tiles that are multiplied with all rows before the next tiles: what stays in a core's second-level cache.
const TILE_BLOCK_BYTES: usize = 384 << 10;

/// `y[i][o − outs.start]` for all rows i (of `x`, by way of `index`).
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn multiply<L: QuantGemm, F: Format>(args: MatmulArgs<'_, '_>, scratch: &mut Scratch) {
    let MatmulArgs { weight: w, input: x, row_ids: index, outputs: outs, y } = args;
    let QuantizedInput::A8(x) = x else { return };
    let Some(operands) = Operands::new::<F>(w, x.cols(), outs, y) else { return };
    if y.rows() >= L::min_rows() {
        // SAFETY: the caller's promise.
        return unsafe { gemm::multiply::<L, F>(&operands, x, index, y, &mut scratch.lines) };
    }
    let (layout, tiles) = (operands.layout, operands.tiles());
    // an even number: with a pair of tiles the next pair is asked for
    let strip = (TILE_BLOCK_BYTES / layout.tile_bytes()).max(1).next_multiple_of(2);
    let rows = y.rows();
    let order = Order::for_cpu();
    let mut from = tiles.start;
    while from < tiles.end {
        let to = (from + strip).min(tiles.end);
        let mut row = 0;
        while row < rows {
            macro_rules! rows {
                ($m:literal) => {{
                    let blocks: [*const Q8Block; $m] = std::array::from_fn(|i| {
                        let source = index.map_or(row + i, |index| index[row + i] as usize);
                        x.row(source).as_ptr()
                    });
                    for tile in from..to {
                        // SAFETY: the tile and the rows are as long as the layout says, as checked above.
                        let sums = unsafe {
                            tile_rows::<L, F, $m>(order, &operands.planes(tile), layout.blocks(), &blocks)
                        };
                        for (i, sums) in sums.iter().enumerate() {
                            operands.put(sums, tile, y.row_mut(row + i));
                        }
                    }
                    row += $m;
                }};
            }
            match (rows - row).min(L::MR) {
                8.. => rows!(8),
                4.. => rows!(4),
                2.. => rows!(2),
                _ => {
                    let x = x.row(index.map_or(row, |index| index[row] as usize)).as_ptr();
                    // SAFETY: the row is as long as the layout says, as checked above.
                    unsafe { gemv::multiply::<L, F>(order, &operands, from..to, x, y.row_mut(row)) };
                    row += 1;
                }
            }
        }
        from = to;
    }
}

/// Sixteen outputs of `M` rows.
///
/// # Safety
/// The planes belong to a tile of `blocks` blocks, and each row of `x` has as many numbers.
#[inline(always)]
unsafe fn tile_rows<L: Simd, F: Format, const M: usize>(
    order: Order,
    planes: &Planes,
    blocks: usize,
    x: &[*const Q8Block; M],
) -> [[f32; 16]; M] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut prefetch = PrefetchPolicy::new::<F>(order, planes, blocks, 1);
        let mut sums = [L::splat_f32(0.0); M];
        for b in 0..blocks {
            for g in 0..F::SUBS / F::UNROLL {
                macro_rules! runs {
                    ($($s:literal)*) => {
                        $(if $s < F::UNROLL {
                            run::<L, F, M, $s>(planes, b, g, x, &mut sums);
                            // as for one row
                            compiler_fence(Ordering::SeqCst);
                            prefetch.prefetch::<L, F, false>($s, 0);
                        })*
                    };
                }
                runs!(0 1 2 3);
                prefetch.advance();
            }
        }
        store_all::<L, M>(&sums)
    }
}

/// Sums as numbers. No closure: one that is not inlined would be compiled without the instructions.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn store_all<L: Simd, const N: usize>(sums: &[L::F32x16; N]) -> [[f32; 16]; N] {
    let mut out = [[0.0; 16]; N];
    for (out, sum) in out.iter_mut().zip(sums) {
        // SAFETY: the caller's promise; there is room for sixteen.
        unsafe { L::store_f32(out.as_mut_ptr(), *sum) };
    }
    out
}

/// One run of 32 inputs: run `S` of group `g` of block `b`.
///
/// # Safety
/// As for [`tile_rows`].
#[inline(always)]
pub(super) unsafe fn run<L: Simd, F: Format, const M: usize, const S: usize>(
    planes: &Planes,
    b: usize,
    g: usize,
    x: &[*const Q8Block; M],
    sums: &mut [L::F32x16; M],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = F::codes::<L, S>(planes, b, g);
        let scales = F::scales::<L, S>(planes, b, g);
        let mins = F::mins::<L, S>(planes, b, g, scales);
        let dot = |sum, j: usize, block: &Q8Block| {
            let x = block.codes.as_ptr().add(4 * j);
            if F::SIGNED { L::dot_biased(sum, L::bias128(codes[j]), x) } else { L::dot(sum, codes[j], x) }
        };
        // no closure: it would not always be inlined
        macro_rules! start {
            ($bias:expr) => {
                match F::KIND {
                    QuantKind::Symmetric => L::init_acc($bias),
                    QuantKind::ConstZero(_) if L::FULL_BYTES => L::init_acc($bias),
                    // by way of memory: else the compiler shifts those of many runs side by side, and unpacks as many runs at once, to the stack
                    QuantKind::ConstZero(_) => L::splat_i32(black_box($bias >> F::KIND.shift())),
                    QuantKind::Affine => L::zero(),
                }
            };
        }
        for m in 0..M {
            let block = &*x[m].add(b * F::SUBS + g * F::UNROLL + S);
            let mut sum = sums[m];
            if F::SPLIT_SCALE {
                for half in 0..2 {
                    let mut ints = start!(block.half_biases[half]);
                    for j in 0..4 {
                        ints = dot(ints, half * 4 + j, block);
                    }
                    sum = L::fma(L::to_f32(ints), L::mul(scales[half], L::splat_f32(block.scale)), sum);
                    if F::HAS_MIN {
                        sum = L::fnma(mins[half], L::splat_f32(block.halves[half]), sum);
                    }
                }
            } else {
                let mut ints = start!(block.bias);
                for j in 0..8 {
                    ints = dot(ints, j, block);
                }
                sum = L::fma(L::to_f32(ints), L::mul(scales[0], L::splat_f32(block.scale)), sum);
                if F::HAS_MIN {
                    sum = L::fnma(mins[0], L::splat_f32(block.total), sum);
                }
            }
            sums[m] = sum;
        }
    }
}
