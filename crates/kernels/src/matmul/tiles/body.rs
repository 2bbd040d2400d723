//! Products of 8-bit rows with tiles, written once for all instruction sets.
//!
//! An output is y = Σ over runs of 32 inputs, in order, of scale · (input scale · Σ code · input code) − min · (input scale ·
//! Σ input codes): the inner sum in exact integers, then one fused multiply-add for each term. Where a format has a scale for each 16
//! inputs, a run has two such terms of each kind. So the bits depend on nothing but the operands.

use super::formats::{Format, Planes};
use super::one_row;
use crate::act::A8Block;
use crate::lanes::Lanes;
use crate::{A8Rows, RowsMut, WeightMatrix};
use quant::tiles::{Plane, ROWS};
use std::ops::Range;

/// Bytes of tiles that are multiplied with all rows before the next tiles: what stays in a core's second-level cache.
const STRIP: usize = 384 << 10;

/// Bytes ahead of the codes that are asked for.
pub(super) const AHEAD: usize = 2048;

/// `y[i][o − outs.start]` for all rows i (of `x`, by way of `index`).
///
/// # Safety
/// As for [`Lanes`]. The shapes are checked.
#[inline(always)]
pub(super) unsafe fn multiply<L: Lanes, F: Format>(
    w: &WeightMatrix<'_>,
    x: &A8Rows<'_>,
    index: Option<&[u32]>,
    outs: Range<usize>,
    y: &mut RowsMut<'_>,
) {
    let Some((layout, first)) = w.tile_layout() else { return };
    assert!(
        w.ty == F::TY && x.cols() == w.cols,
        "{} inputs of {} for {} of {}",
        x.cols(),
        w.ty,
        w.cols,
        F::TY
    );
    assert!(outs.end <= w.rows && y.cols() == outs.len(), "outputs {outs:?} of {}", w.rows);
    let outs = first + outs.start..first + outs.end;
    let tile_bytes = layout.tile_bytes();
    assert!(w.bytes.len() >= outs.end.div_ceil(ROWS) * tile_bytes, "tiles");
    let strip = (STRIP / tile_bytes).max(1);
    let tiles = outs.start / ROWS..outs.end.div_ceil(ROWS);
    let planes = |tile: usize| {
        let start = |plane| w.bytes[tile * tile_bytes + layout.start(plane)..].as_ptr();
        Planes {
            codes: start(Plane::Codes),
            high: start(Plane::High),
            scales: start(Plane::Scales),
            factors: start(Plane::Factors),
            tile_bytes,
        }
    };
    let rows = y.rows();
    let mut from = tiles.start;
    while from < tiles.end {
        let to = (from + strip).min(tiles.end);
        let mut row = 0;
        while row < rows {
            macro_rules! rows {
                ($m:literal) => {{
                    let blocks: [*const A8Block; $m] = std::array::from_fn(|i| {
                        let source = index.map_or(row + i, |index| index[row + i] as usize);
                        x.row(source).as_ptr()
                    });
                    for tile in from..to {
                        // SAFETY: the tile and the rows are as long as the layout says, as checked above.
                        let sums = unsafe { tile_rows::<L, F, $m>(&planes(tile), layout.blocks(), &blocks) };
                        let lanes = outs.start.max(tile * ROWS)..outs.end.min((tile + 1) * ROWS);
                        for (i, sums) in sums.iter().enumerate() {
                            let out =
                                &mut y.row_mut(row + i)[lanes.start - outs.start..lanes.end - outs.start];
                            out.copy_from_slice(&sums[lanes.start - tile * ROWS..lanes.end - tile * ROWS]);
                        }
                    }
                    row += $m;
                }};
            }
            match (rows - row).min(L::ROWS) {
                8.. => rows!(8),
                4.. => rows!(4),
                2.. => rows!(2),
                _ => {
                    let x = x.row(index.map_or(row, |index| index[row] as usize)).as_ptr();
                    let y = y.row_mut(row);
                    let mut tile = from;
                    macro_rules! tiles {
                        ($n:literal) => {{
                            let planes: [Planes; $n] = std::array::from_fn(|i| planes(tile + i));
                            // SAFETY: the tiles and the row are as long as the layout says, as checked above.
                            let sums = unsafe { one_row::multiply::<L, F, $n>(&planes, layout.blocks(), x) };
                            for (tile, sums) in (tile..).zip(&sums) {
                                let lanes = outs.start.max(tile * ROWS)..outs.end.min((tile + 1) * ROWS);
                                y[lanes.start - outs.start..lanes.end - outs.start].copy_from_slice(
                                    &sums[lanes.start - tile * ROWS..lanes.end - tile * ROWS],
                                );
                            }
                            tile += $n;
                        }};
                    }
                    while L::PAIRS && tile + 1 < to {
                        tiles!(2);
                    }
                    while tile < to {
                        tiles!(1);
                    }
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
unsafe fn tile_rows<L: Lanes, F: Format, const M: usize>(
    planes: &Planes,
    blocks: usize,
    x: &[*const A8Block; M],
) -> [[f32; 16]; M] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [L::all(0.0); M];
        for b in 0..blocks {
            macro_rules! runs {
                ($($s:literal)*) => {
                    $(if $s < F::SUBS {
                        run::<L, F, M, $s>(planes, b, x, &mut sums);
                    })*
                };
            }
            runs!(0 1 2 3 4 5 6 7);
        }
        sums.map(|sum| L::store(sum))
    }
}

/// One run of 32 inputs.
///
/// # Safety
/// As for [`tile_rows`].
#[inline(always)]
pub(super) unsafe fn run<L: Lanes, F: Format, const M: usize, const S: usize>(
    planes: &Planes,
    b: usize,
    x: &[*const A8Block; M],
    sums: &mut [L::Floats; M],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = F::codes::<L, S>(planes, b);
        let scales = F::scales::<L, S>(planes, b);
        let mins = F::mins::<L, S>(planes, b, scales);
        let dot = |sum, j: usize, block: &A8Block| {
            let x = block.codes.as_ptr().add(4 * j);
            if F::SIGNED { L::dot_signed(sum, codes[j], x) } else { L::dot(sum, codes[j], x) }
        };
        let unbiased = |sum, inputs| if F::SIGNED { L::unbias(sum, inputs) } else { sum };
        for m in 0..M {
            let block = &*x[m].add(b * F::SUBS + S);
            let mut sum = sums[m];
            if F::HALVES {
                for half in 0..2 {
                    let mut ints = L::zero();
                    for j in 0..4 {
                        ints = dot(ints, half * 4 + j, block);
                    }
                    let ints = L::floats(unbiased(ints, block.half_sums[half]));
                    sum = L::fma(ints, L::mul(scales[half], L::all(block.scale)), sum);
                    if F::MINS {
                        sum = L::fnma(mins[half], L::all(block.halves[half]), sum);
                    }
                }
            } else {
                let mut ints = L::zero();
                for j in 0..8 {
                    ints = dot(ints, j, block);
                }
                let ints = L::floats(unbiased(ints, block.sum));
                sum = L::fma(ints, L::mul(scales[0], L::all(block.scale)), sum);
                if F::MINS {
                    sum = L::fnma(mins[0], L::all(block.total), sum);
                }
            }
            sums[m] = sum;
        }
        if M > 1 {
            let lines = F::VECTORS / F::SUBS;
            for line in 0..lines {
                let vector = b * F::VECTORS + S * lines + line;
                L::prefetch(planes.codes.wrapping_add(vector * 64 + AHEAD));
            }
        }
    }
}
