//! The bodies of all products, to be compiled for each tier.

use super::Scratch;
use super::codes::{GROUP, has_mins, unpack};
use crate::act::A8_BLOCK;
use crate::attention::dot;
use crate::{Acts, RowsMut, WeightRows};
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
    w: &WeightRows<'_>,
    x: &Acts<'_>,
    index: Option<&[u32]>,
    outs: Range<usize>,
    y: &mut RowsMut<'_>,
    scratch: &mut Scratch,
) {
    let Some(decode) = quant::decoder(w.ty) else { return };
    let strip = grow(&mut scratch.numbers, w.cols);
    for (column, out) in outs.enumerate() {
        decode(w.row(out), strip);
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
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            strands[i] += strands[i + width];
        }
        width /= 2;
    }
    strands[0]
}

/// Weight rows as codes, 8-bit inputs.
#[inline(always)]
pub(super) fn integers<D: DotCodes>(
    w: &WeightRows<'_>,
    x: &Acts<'_>,
    index: Option<&[u32]>,
    outs: Range<usize>,
    y: &mut RowsMut<'_>,
    scratch: &mut Scratch,
) {
    let Acts::A8(x) = x else { return };
    let padded = w.cols.next_multiple_of(A8_BLOCK);
    let codes = grow(&mut scratch.codes, padded);
    let groups = padded / GROUP;
    let (scales, mins) = grow(&mut scratch.numbers, 2 * groups).split_at_mut(groups);
    codes[w.cols..].fill(0);
    scales[w.cols / GROUP..].fill(0.0);
    mins[w.cols / GROUP..].fill(0.0);
    let with_mins = has_mins(w.ty);
    for (column, out) in outs.enumerate() {
        unpack(w.ty, w.row(out), codes, scales, mins);
        for i in 0..y.rows() {
            let (inputs, input_scales, sums) = x.row(source(index, i));
            let mut value = D::products(codes, scales, inputs, input_scales);
            if with_mins {
                value -= minimums(mins, sums, input_scales);
            }
            y.set(i, column, value);
        }
    }
}

/// Σ over blocks of 32 of scale · input scale · Σ code · code. All forms add in the same order: sixteen strands, of which strand
/// l takes codes 2l and 2l + 1 of every block, and then pairwise sums; so that they agree to the bit.
pub(super) trait DotCodes {
    /// `scales` has one number for each 16 codes, `input_scales` one for each 32.
    fn products(codes: &[i8], scales: &[f32], inputs: &[i8], input_scales: &[f32]) -> f32;
}

/// The plain form.
pub(super) struct Plain;

impl DotCodes for Plain {
    #[inline(always)]
    fn products(codes: &[i8], scales: &[f32], inputs: &[i8], input_scales: &[f32]) -> f32 {
        let mut strands = [0.0f32; 16];
        let blocks = codes.chunks_exact(A8_BLOCK).zip(inputs.chunks_exact(A8_BLOCK));
        for ((c, v), (s, input)) in blocks.zip(scales.chunks_exact(2).zip(input_scales)) {
            let scale = [s[0] * input, s[1] * input];
            for l in 0..16 {
                let pair = i32::from(c[2 * l]) * i32::from(v[2 * l])
                    + i32::from(c[2 * l + 1]) * i32::from(v[2 * l + 1]);
                strands[l] += pair as f32 * scale[l / 8];
            }
        }
        sum_strands(strands)
    }
}

/// Sums sixteen strands in pairs.
#[inline(always)]
pub(super) fn sum_strands(mut strands: [f32; 16]) -> f32 {
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            strands[i] += strands[i + width];
        }
        width /= 2;
    }
    strands[0]
}

/// Σ over groups of 16 of min · input scale · Σ codes, in sixteen strands.
#[inline(always)]
fn minimums(mins: &[f32], sums: &[i16], scales: &[f32]) -> f32 {
    let mut strands = [0.0f32; 16];
    let chunks = mins.chunks_exact(16).zip(sums.chunks_exact(16)).zip(scales.chunks_exact(8));
    let done = mins.len() / 16 * 16;
    for ((m, s), scale) in chunks {
        for l in 0..16 {
            strands[l] += m[l] * (f32::from(s[l]) * scale[l / 2]);
        }
    }
    for g in done..mins.len() {
        strands[g - done] += mins[g] * (f32::from(sums[g]) * scales[g / 2]);
    }
    sum_strands(strands)
}

/// The weight read across: y[i][o] = Σ_r w[r][o] · x[i][r].
#[inline(always)]
pub(super) fn across(
    w: &WeightRows<'_>,
    x: &Acts<'_>,
    index: Option<&[u32]>,
    outs: Range<usize>,
    y: &mut RowsMut<'_>,
    scratch: &mut Scratch,
) {
    let (Some(decode), Acts::F32(x)) = (quant::decoder(w.ty), x) else { return };
    let (len, bytes) = (w.ty.block_len(), w.ty.block_bytes());
    assert!(
        outs.start.is_multiple_of(len) && outs.end.is_multiple_of(len),
        "columns {outs:?} cut a block of {}",
        w.ty
    );
    let strip = grow(&mut scratch.numbers, outs.len());
    (0..y.rows()).for_each(|i| y.row_mut(i).fill(0.0));
    for r in 0..w.rows {
        decode(&w.row(r)[outs.start / len * bytes..outs.end / len * bytes], strip);
        for i in 0..y.rows() {
            let factor = x.row(source(index, i))[r];
            for (y, w) in y.row_mut(i).iter_mut().zip(strip.iter()) {
                *y += factor * w;
            }
        }
    }
}
