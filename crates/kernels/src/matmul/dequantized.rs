//! Matmuls that dequantize one weight row at a time to f32: the fallback for any format and layout.

use super::args::{MatmulArgs, input_row};
use super::scratch::{MatmulScratch, grow};
use crate::QuantizedInput;
use crate::reduce::dot;

/// y = x · Wᵀ with f32 inputs.
#[inline(always)]
pub(super) fn decoded(args: MatmulArgs<'_, '_>, scratch: &mut MatmulScratch) {
    let MatmulArgs { weight, input, row_ids, outputs, y } = args;
    let QuantizedInput::F32(x) = input else { return };
    let MatmulScratch { floats, bytes, .. } = scratch;
    let row_floats = grow(floats, weight.cols());
    for (column, out) in outputs.enumerate() {
        weight.decode(out, 0..weight.cols(), row_floats, bytes);
        for i in 0..y.rows() {
            y.set(i, column, dot(row_floats, x.row(input_row(row_ids, i))));
        }
    }
}

/// The transposed product y = x · W: `y[i][o] = Σ_r w[r][o] · x[i][r]`.
///
/// # Panics
/// When the outputs cut a block of the format.
#[inline(always)]
pub(super) fn transposed(args: MatmulArgs<'_, '_>, scratch: &mut MatmulScratch) {
    let MatmulArgs { weight, input, row_ids, outputs, y } = args;
    let QuantizedInput::F32(x) = input else { return };
    let len = weight.ty().block_len();
    assert!(
        outputs.start.is_multiple_of(len) && outputs.end.is_multiple_of(len),
        "columns {outputs:?} cut a block of {}",
        weight.ty()
    );
    let MatmulScratch { floats, bytes, .. } = scratch;
    let row_floats = grow(floats, outputs.len());
    (0..y.rows()).for_each(|i| y.row_mut(i).fill(0.0));
    for r in 0..weight.rows() {
        weight.decode(r, outputs.clone(), row_floats, bytes);
        for i in 0..y.rows() {
            let factor = x.row(input_row(row_ids, i))[r];
            for (y, w) in y.row_mut(i).iter_mut().zip(row_floats.iter()) {
                *y += factor * w;
            }
        }
    }
}
