//! The transposed product: `y[i][o] = Σ_r w[r][o] · x[i][r]`. The sixteen weight rows of a tile are
//! the lanes of an accumulator. Each lane sums its row of all tiles in order, then the lanes are
//! folded in pairs.

use super::formats::FloatFormat;
use super::tile::FloatMatrix;
use crate::matmul::args::input_row;
use crate::reduce::sum_lanes;
use crate::simd::Simd;
use crate::{MatrixView, MatrixViewMut, WeightMatrix};
use latent_quant::tiles::ROWS;
use std::ops::Range;

/// Columns that are accumulated together: whole vectors of every format, inside one group.
const COLUMNS: usize = 8;

/// All rows of `y`; false, with nothing written, unless the weight is whole tiles without NaN.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(super) unsafe fn transposed<L: Simd, F: FloatFormat>(
    w: &WeightMatrix<'_>,
    x: &MatrixView<'_>,
    row_ids: Option<&[u32]>,
    outputs: Range<usize>,
    y: &mut MatrixViewMut<'_>,
) -> bool {
    let Some((matrix, first)) = FloatMatrix::new::<F>(w) else { return false };
    let tiles = first / ROWS..(first + w.rows()) / ROWS;
    // Rows of a tile outside the weight, and rows of padding, would be added to every output. A NaN
    // flag does not tell in which column the NaN is, and columns are the outputs here.
    let whole = first.is_multiple_of(ROWS) && w.rows().is_multiple_of(ROWS);
    if !whole || (F::NAN_FLAGS && tiles.clone().any(|t| matrix.tile(t).holds_nan())) {
        return false;
    }
    assert!(
        x.cols() == w.rows() && outputs.end <= w.cols() && y.cols() == outputs.len(),
        "columns {outputs:?} of {} × {}",
        w.rows(),
        w.cols()
    );
    for i in 0..y.rows() {
        let (x, y) = (x.row(input_row(row_ids, i)), y.row_mut(i));
        for column in (outputs.start / COLUMNS * COLUMNS..outputs.end).step_by(COLUMNS) {
            // SAFETY: `tiles` are the weight's own, padded to whole vectors, and `x` has an element
            // per row, as asserted above.
            let sums = unsafe { columns::<L, F>(&matrix, &tiles, x, column) };
            for o in column.max(outputs.start)..(column + COLUMNS).min(outputs.end) {
                y[o - outputs.start] = sum_lanes(sums[o - column]);
            }
        }
    }
    true
}

/// The accumulators of some columns from `column` on.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. The matrix has the tiles and the
/// column, and `x` an element per row of the tiles.
#[inline(always)]
unsafe fn columns<L: Simd, F: FloatFormat>(
    matrix: &FloatMatrix<'_, '_>,
    tiles: &Range<usize>,
    x: &[f32],
    column: usize,
) -> [[f32; ROWS]; COLUMNS] {
    // SAFETY: tiles are padded to whole vectors, `x` comes in chunks of sixteen; the ISA by this
    // function's contract.
    unsafe {
        let mut sums = [L::splat_f32(0.0); COLUMNS];
        for (t, x) in tiles.clone().zip(x.chunks_exact(ROWS)) {
            let tile = matrix.tile(t);
            // Scales differ between rows, which are summed here, so they multiply the inputs
            // instead of the sums.
            let x = L::mul(L::load_f32(x.as_ptr()), tile.scale::<L, F>(column / matrix.group));
            for i in 0..COLUMNS / F::INPUTS {
                let weights = F::load::<L>(tile.quants.add((column / F::INPUTS + i) * 64));
                for k in 0..F::INPUTS {
                    let sum = &mut sums[i * F::INPUTS + k];
                    *sum = L::mul_add_relaxed(weights[k], x, *sum);
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
