//! The same weights read across: y[i][o] = Σ_r w[r][o] · x[i][r]. Sixteen rows of the weight are lanes: each lane sums its rows of all tiles
//! in order, and the lanes are summed in pairs.

use super::body::Matrix;
use super::formats::FloatFormat;
use crate::matmul::body::source;
use crate::reduce::sum_lanes;
use crate::simd::Simd;
use crate::{Rows, RowsMut, WeightMatrix};
use latent_quant::tiles::ROWS;
use std::ops::Range;

/// Columns that are summed side by side: whole vectors of any format, and a part of a run.
const COLUMNS: usize = 8;

/// All rows; false where the weight is not made of whole tiles without NaN, which this reads.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn transposed<L: Simd, F: FloatFormat>(
    w: &WeightMatrix<'_>,
    x: &Rows<'_>,
    index: Option<&[u32]>,
    outs: Range<usize>,
    y: &mut RowsMut<'_>,
) -> bool {
    let Some((matrix, first)) = Matrix::new::<F>(w) else { return false };
    let tiles = first / ROWS..(first + w.rows()) / ROWS;
    let whole = first.is_multiple_of(ROWS) && w.rows().is_multiple_of(ROWS);
    if !whole || (F::NAN_FLAGS && tiles.clone().any(|t| matrix.tile(t).holds_nan())) {
        return false;
    }
    assert!(
        x.cols() == w.rows() && outs.end <= w.cols() && y.cols() == outs.len(),
        "columns {outs:?} of {} × {}",
        w.rows(),
        w.cols()
    );
    for i in 0..y.rows() {
        let (x, y) = (x.row(source(index, i)), y.row_mut(i));
        for column in (outs.start / COLUMNS * COLUMNS..outs.end).step_by(COLUMNS) {
            // SAFETY: the tiles are there, filled up to whole vectors, and x has a number for each of their rows.
            let sums = unsafe { columns::<L, F>(&matrix, &tiles, x, column) };
            for o in column.max(outs.start)..(column + COLUMNS).min(outs.end) {
                y[o - outs.start] = sum_lanes(sums[o - column]);
            }
        }
    }
    true
}

/// The lanes of some columns from `column` on.
///
/// # Safety
/// As for [`Simd`]; the tiles belong to the matrix, `x` has a number for each of their rows, and `column` is a column of theirs.
#[inline(always)]
unsafe fn columns<L: Simd, F: FloatFormat>(
    matrix: &Matrix<'_, '_>,
    tiles: &Range<usize>,
    x: &[f32],
    column: usize,
) -> [[f32; ROWS]; COLUMNS] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [L::splat_f32(0.0); COLUMNS];
        for (t, x) in tiles.clone().zip(x.chunks_exact(ROWS)) {
            let tile = matrix.tile(t);
            let x = L::mul(L::load_f32(x.as_ptr()), L::splat_f32(tile.factor::<F>(column / matrix.run)));
            for i in 0..COLUMNS / F::INPUTS {
                let numbers = F::line::<L>(tile.codes.add((column / F::INPUTS + i) * 64));
                for k in 0..F::INPUTS {
                    let sum = &mut sums[i * F::INPUTS + k];
                    *sum = L::mul_add_relaxed(numbers[k], x, *sum);
                }
            }
        }
        let mut out = [[0.0; ROWS]; COLUMNS];
        for (out, sum) in out.iter_mut().zip(sums) {
            L::store_f32(out.as_mut_ptr(), sum);
        }
        out
    }
}
