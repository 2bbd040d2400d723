//! The bodies of all products, to be compiled for each tier.

use super::Scratch;
use super::codes::{GROUP, Group, unpack};
use crate::act::{A8_BLOCK, A8Rows};
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
    let widen = |bits: u16| f32::from_bits(u32::from(bits) << 16);
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
pub(super) fn integers(
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
    let groups = grow(&mut scratch.groups, padded / GROUP);
    codes[w.cols..].fill(0);
    for (column, out) in outs.enumerate() {
        unpack(w.ty, w.row(out), codes, groups);
        for i in 0..y.rows() {
            y.set(i, column, dot_codes(codes, groups, x, source(index, i)));
        }
    }
}

/// Σ over blocks of 32: (scale · Σ code·code − min · Σ code) · input scale, in eight strands.
#[inline(always)]
fn dot_codes(codes: &[i8], groups: &[Group], x: &A8Rows<'_>, row: usize) -> f32 {
    let (inputs, scales, sums) = x.row(row);
    let mut strands = [0.0f32; 8];
    let blocks = codes.chunks_exact(A8_BLOCK).zip(inputs.chunks_exact(A8_BLOCK));
    let details = groups.chunks_exact(2).zip(sums.chunks_exact(2)).zip(scales);
    for (b, ((c, v), ((g, s), scale))) in blocks.zip(details).enumerate() {
        let mut products = [0i32; 2];
        for half in 0..2 {
            for k in half * 16..half * 16 + 16 {
                products[half] += i32::from(i16::from(c[k]) * i16::from(v[k]));
            }
        }
        let mut sum = 0.0;
        for half in 0..2 {
            sum += g[half].scale * products[half] as f32 - g[half].min * f32::from(s[half]);
        }
        strands[b % 8] += sum * scale;
    }
    let mut width = 4;
    while width > 0 {
        for i in 0..width {
            strands[i] += strands[i + width];
        }
        width /= 2;
    }
    strands[0]
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
