//! GEMV and GEMM of f32 inputs with float weights in tiles.
//!
//! An output is y = Σ over groups, in order, of scale · (Σ over the group, in order, of weight ·
//! input). A group is the inputs that share a scale, or 128 inputs. Each multiply-add is one FMA if
//! the ISA has it, so AVX2 and AVX-512 give the same bits, for any batch size and any range of
//! outputs. Inputs are not rounded.

use super::formats::FloatFormat;
use super::groups::{packed_group, unpack, unpacked_group};
use super::panels::{Panels, block_size};
use super::tile::{FloatMatrix, FloatTile};
use crate::matmul::args::{MatmulArgs, input_row};
use crate::matmul::scratch::MatmulScratch;
use crate::simd::Simd;
use crate::{MatrixView, MatrixViewMut};
use latent_quant::tiles::ROWS;
use std::ops::Range;

/// Groups of one input row that are accumulated concurrently: one group is a chain of dependent
/// FMAs.
const ACCUMULATORS: usize = 4;

/// y = x · Wᵀ, where `x` is the input of `args`.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(super) unsafe fn multiply<L: Simd, F: FloatFormat>(
    x: &MatrixView<'_>,
    args: MatmulArgs<'_, '_>,
    scratch: &mut MatmulScratch,
) {
    let MatmulArgs { weight: w, row_ids, outputs: outs, y, .. } = args;
    let Some((matrix, first)) = FloatMatrix::new::<F>(w) else { return };
    assert!(x.cols() == w.cols(), "{} inputs for {}", x.cols(), w.cols());
    let range = outs.start <= outs.end && outs.end <= w.rows();
    assert!(range && y.cols() == outs.len(), "outputs {outs:?} of {}", w.rows());
    let outs = first + outs.start..first + outs.end;
    let tiles = outs.start / ROWS..outs.end.div_ceil(ROWS);
    // One row: packing it would only cost time. The portable tier has no registers for blocks of
    // rows.
    if y.rows() == 1 || L::MR == 1 {
        for t in tiles {
            for row in 0..y.rows() {
                let x = x.row(input_row(row_ids, row));
                // SAFETY: the input row has as many elements as the weight's rows, as asserted
                // above.
                let sums = unsafe { gemv_tile::<L, F>(&matrix, &matrix.tile(t), x) };
                store_outputs(&sums, t, &outs, y.row_mut(row));
            }
        }
        return;
    }
    let (block_rows, block_cols) = block_size(y.rows(), w.cols(), matrix.group);
    for top in (0..y.rows()).step_by(block_rows) {
        let rows = top..(top + block_rows).min(y.rows());
        // Blocks of columns begin with a group, so that the order of sums is the same as without
        // blocks.
        for left in (0..w.cols()).step_by(block_cols) {
            let block =
                InputBlock { rows: rows.clone(), cols: left..(left + block_cols).min(w.cols()), outs: &outs };
            let extra = (rows.len() + matrix.group) * L::NR_VECTORS * ROWS;
            let (panels, memory) =
                Panels::new::<L>((x, row_ids), rows.clone(), &block.cols, extra, &mut scratch.floats);
            let mut t = tiles.start;
            while t < tiles.end {
                let vectors = (tiles.end - t).min(L::NR_VECTORS);
                macro_rules! tiles {
                    ($v:literal) => {
                        // SAFETY: the panels were packed from the block, whose rows and columns are
                        // those of matrix and `y`.
                        unsafe { gemm_tiles::<L, F, $v>(&matrix, t, &panels, &block, memory, y) }
                    };
                }
                if vectors > 1 {
                    tiles!(2)
                } else {
                    tiles!(1)
                }
                t += vectors;
            }
        }
    }
}

/// Writes the sums of tile `t` that are among the outputs to a row of `y`.
#[inline(always)]
fn store_outputs(sums: &[f32], t: usize, outs: &Range<usize>, row: &mut [f32]) {
    let lanes = outs.start.max(t * ROWS)..outs.end.min((t + 1) * ROWS);
    row[lanes.start - outs.start..lanes.end - outs.start]
        .copy_from_slice(&sums[lanes.start - t * ROWS..lanes.end - t * ROWS]);
}

/// The inverse of [`store_outputs`]; lanes beyond the outputs are 0.
#[inline(always)]
fn load_outputs(t: usize, outs: &Range<usize>, row: &[f32]) -> [f32; ROWS] {
    let mut sums = [0.0; ROWS];
    let lanes = outs.start.max(t * ROWS)..outs.end.min((t + 1) * ROWS);
    sums[lanes.start - t * ROWS..lanes.end - t * ROWS]
        .copy_from_slice(&row[lanes.start - outs.start..lanes.end - outs.start]);
    sums
}

/// Sixteen outputs of one input row, with an accumulator per group for several groups at a time.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. The tile is one of the matrix,
/// whose rows are as long as `x`.
#[inline(always)]
unsafe fn gemv_tile<L: Simd, F: FloatFormat>(
    matrix: &FloatMatrix<'_, '_>,
    tile: &FloatTile<'_>,
    x: &[f32],
) -> [f32; ROWS] {
    let (group, next) = (matrix.group, matrix.layout.tile_bytes());
    let offset = |inputs: usize| inputs / F::INPUTS * 64;
    // SAFETY: tiles are padded to whole vectors, and only elements that `x` has are read; the ISA
    // by this function's contract.
    unsafe {
        let mut total = tile.init_acc::<L, F>();
        let mut at = 0;
        macro_rules! groups {
            ($count:expr) => {
                while x.len() - at >= $count * group {
                    let (quants, x) = (tile.quants.add(offset(at)), x.as_ptr().add(at));
                    let mut sums = [L::splat_f32(0.0); $count];
                    for i in 0..group / F::INPUTS {
                        for (s, sum) in sums.iter_mut().enumerate() {
                            let from = quants.add(offset(s * group) + i * 64);
                            // The same vector of the next tile.
                            L::prefetch_far(from.wrapping_add(next));
                            let weights = F::load::<L>(from);
                            for k in 0..F::INPUTS {
                                let x = L::splat_f32(*x.add(s * group + i * F::INPUTS + k));
                                *sum = L::mul_add_relaxed(weights[k], x, *sum);
                            }
                        }
                    }
                    for (s, sum) in sums.into_iter().enumerate() {
                        total = L::mul_add_relaxed(sum, tile.scale::<L, F>(at / group + s), total);
                    }
                    at += $count * group;
                }
            };
        }
        // Groups are summed separately and added in order, so the number of accumulators does not
        // change the bits.
        groups!(ACCUMULATORS);
        groups!(1);
        if at < x.len() {
            let sums = packed_group::<L, F, 1, 1>(matrix, &[*tile], x.as_ptr().add(at), &(at..x.len()));
            total = L::mul_add_relaxed(sums[0][0], tile.scale::<L, F>(at / group), total);
        }
        L::store(total)
    }
}

/// A block of the input (rows × columns), and the outputs.
struct InputBlock<'a> {
    rows: Range<usize>,
    cols: Range<usize>,
    outs: &'a Range<usize>,
}

/// Outputs of `V` tiles from tile `t` on, for all rows of the panels. Accumulators continue from
/// `y` unless the block has the first columns. `memory` has room for sixteen sums per row and tile,
/// and for one group of the tiles.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. The matrix has the tiles; the
/// panels hold the block, whose columns begin with a group.
#[inline(always)]
unsafe fn gemm_tiles<L: Simd, F: FloatFormat, const V: usize>(
    matrix: &FloatMatrix<'_, '_>,
    t: usize,
    panels: &Panels<'_>,
    block: &InputBlock<'_>,
    memory: &mut [f32],
    y: &mut MatrixViewMut<'_>,
) {
    let InputBlock { rows, cols, outs } = block;
    let tiles: [FloatTile<'_>; V] = std::array::from_fn(|v| matrix.tile(t + v));
    let (totals, unpacked) = memory.split_at_mut(rows.len() * V * ROWS);
    for (row, totals) in rows.clone().zip(totals.chunks_exact_mut(V * ROWS)) {
        for (v, total) in totals.chunks_exact_mut(ROWS).enumerate() {
            if cols.start > 0 {
                total.copy_from_slice(&load_outputs(t + v, outs, y.row_mut(row)));
            } else {
                // SAFETY: `total` has sixteen elements; the ISA by this function's contract.
                unsafe { L::store_f32(total.as_mut_ptr(), tiles[v].init_acc::<L, F>()) };
            }
        }
    }
    // A single panel is multiplied with weights as they are unpacked. For several panels, each
    // group is unpacked to memory once.
    let several = rows.len() > panels.height();
    for from in cols.clone().step_by(matrix.group) {
        let group = from..(from + matrix.group).min(cols.end);
        // SAFETY: the tiles have the group, and the slice room for it; the ISA by this function's
        // contract.
        unsafe {
            if several {
                unpack::<L, F, V>(matrix, &tiles, &group, &mut unpacked[..group.len() * V * ROWS]);
            }
        }
        // SAFETY: the ISA by this function's contract.
        let mut scales = [unsafe { L::splat_f32(0.0) }; V];
        for v in 0..V {
            // SAFETY: the ISA by this function's contract.
            scales[v] = unsafe { tiles[v].scale::<L, F>(from / matrix.group) };
        }
        for panel in panels.iter() {
            let count = panel.height.min(rows.end - panel.top);
            let totals = &mut totals[(panel.top - rows.start) * V * ROWS..][..count * V * ROWS];
            let x = panel.packed[(from - cols.start) * panel.height..].as_ptr();
            macro_rules! rows {
                ($r:literal) => {{
                    // SAFETY: the panel holds the group's columns, and `totals` sixteen sums per
                    // row and tile; the ISA by this function's contract.
                    unsafe {
                        let sums = if several {
                            unpacked_group::<L, $r, V>(unpacked.as_ptr(), x, group.len())
                        } else {
                            packed_group::<L, F, $r, V>(matrix, &tiles, x, &group)
                        };
                        for (r, totals) in totals.chunks_exact_mut(V * ROWS).enumerate() {
                            for v in 0..V {
                                let total = totals.as_mut_ptr().add(v * ROWS);
                                let sum = L::mul_add_relaxed(sums[v][r], scales[v], L::load_f32(total));
                                L::store_f32(total, sum);
                            }
                        }
                    }
                }};
            }
            if panel.height == 8 { rows!(8) } else { rows!(4) }
        }
    }
    for (row, totals) in rows.clone().zip(totals.chunks_exact(V * ROWS)) {
        for (v, total) in totals.chunks_exact(ROWS).enumerate() {
            store_outputs(total, t + v, outs, y.row_mut(row));
        }
    }
}
