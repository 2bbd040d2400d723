//! Products with decoded weight rows: the bodies, to be compiled for each tier.

use super::{MatmulArgs, Scratch};
use crate::QuantizedInput;
use crate::reduce::dot;

/// Input row `i` of a call.
#[inline(always)]
pub(super) fn source(index: Option<&[u32]>, i: usize) -> usize {
    index.map_or(i, |index| index[i] as usize)
}

/// At least `len` of a buffer, which grows where it is shorter.
pub(crate) fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}

/// Weight rows decoded to numbers, f32 inputs.
#[inline(always)]
pub(super) fn decoded(args: MatmulArgs<'_, '_>, scratch: &mut Scratch) {
    let MatmulArgs { weight: w, input: x, row_ids: index, outputs: outs, y } = args;
    let QuantizedInput::F32(x) = x else { return };
    let Scratch { numbers, bytes, .. } = scratch;
    let strip = grow(numbers, w.cols());
    for (column, out) in outs.enumerate() {
        w.decode(out, 0..w.cols(), strip, bytes);
        for i in 0..y.rows() {
            y.set(i, column, dot(strip, x.row(source(index, i))));
        }
    }
}

/// The weight read across: y[i][o] = Σ_r w[r][o] · x[i][r].
#[inline(always)]
pub(super) fn transposed(args: MatmulArgs<'_, '_>, scratch: &mut Scratch) {
    let MatmulArgs { weight: w, input: x, row_ids: index, outputs: outs, y } = args;
    let QuantizedInput::F32(x) = x else { return };
    let len = w.ty().block_len();
    assert!(
        outs.start.is_multiple_of(len) && outs.end.is_multiple_of(len),
        "columns {outs:?} cut a block of {}",
        w.ty()
    );
    let Scratch { numbers, bytes, .. } = scratch;
    let strip = grow(numbers, outs.len());
    (0..y.rows()).for_each(|i| y.row_mut(i).fill(0.0));
    for r in 0..w.rows() {
        w.decode(r, outs.clone(), strip, bytes);
        for i in 0..y.rows() {
            let factor = x.row(source(index, i))[r];
            for (y, w) in y.row_mut(i).iter_mut().zip(strip.iter()) {
                *y += factor * w;
            }
        }
    }
}
