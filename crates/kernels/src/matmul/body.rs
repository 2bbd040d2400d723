//! Products with decoded weight rows: the bodies, to be compiled for each tier.

use super::Scratch;
use crate::attention::{dot, sum_lanes};
use crate::{Acts, RowsMut, WeightMatrix};
use std::ops::Range;

/// Input row `i` of a call.
#[inline(always)]
fn source(index: Option<&[u32]>, i: usize) -> usize {
    index.map_or(i, |index| index[i] as usize)
}

fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}

/// Weight rows decoded to numbers, f32 or bf16 inputs.
#[inline(always)]
pub(super) fn numbers(
    w: &WeightMatrix<'_>,
    x: &Acts<'_>,
    index: Option<&[u32]>,
    outs: Range<usize>,
    y: &mut RowsMut<'_>,
    scratch: &mut Scratch,
) {
    let Some(decode) = quant::decoder(w.ty) else { return };
    let Scratch { numbers, bytes, .. } = scratch;
    let strip = grow(numbers, w.cols);
    for (column, out) in outs.enumerate() {
        decode(w.row(out, bytes), strip);
        for i in 0..y.rows() {
            let value = match x {
                Acts::F32(rows) => dot(strip, rows.row(source(index, i))),
                Acts::Bf16 { bits, cols, stride, .. } => {
                    dot_bf16(strip, &bits[source(index, i) * stride..][..*cols])
                }
                Acts::A8(_) => f32::NAN,
            };
            y.set(i, column, value);
        }
    }
}

/// A dot product with bf16 numbers, in the strands of [`dot`].
#[inline(always)]
fn dot_bf16(a: &[f32], b: &[u16]) -> f32 {
    let mut strands = [0.0f32; 16];
    let widen = crate::widen::bf16;
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let (ac, bc) = (a.chunks_exact(16), b.chunks_exact(16));
    for (s, (x, y)) in strands.iter_mut().zip(ac.remainder().iter().zip(bc.remainder())) {
        *s += x * widen(*y);
    }
    for (x, y) in ac.zip(bc) {
        for i in 0..16 {
            strands[i] += x[i] * widen(y[i]);
        }
    }
    sum_lanes(strands)
}

/// The weight read across: y[i][o] = Σ_r w[r][o] · x[i][r].
#[inline(always)]
pub(super) fn across(
    w: &WeightMatrix<'_>,
    x: &Acts<'_>,
    index: Option<&[u32]>,
    outs: Range<usize>,
    y: &mut RowsMut<'_>,
    scratch: &mut Scratch,
) {
    let (Some(decode), Acts::F32(x)) = (quant::decoder(w.ty), x) else { return };
    let (len, block) = (w.ty.block_len(), w.ty.block_bytes());
    assert!(
        outs.start.is_multiple_of(len) && outs.end.is_multiple_of(len),
        "columns {outs:?} cut a block of {}",
        w.ty
    );
    let Scratch { numbers, bytes, .. } = scratch;
    let strip = grow(numbers, outs.len());
    (0..y.rows()).for_each(|i| y.row_mut(i).fill(0.0));
    for r in 0..w.rows {
        decode(&w.row(r, bytes)[outs.start / len * block..outs.end / len * block], strip);
        for i in 0..y.rows() {
            let factor = x.row(source(index, i))[r];
            for (y, w) in y.row_mut(i).iter_mut().zip(strip.iter()) {
                *y += factor * w;
            }
        }
    }
}
