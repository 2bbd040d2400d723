//! NVFP4 as GGUF stores it: 64 weights in 36 bytes; sub-block g of 16: weight = UE4M3(scale\[g\]) · E2M1(quant).
//! A tensor's own f32 scale stands in a tensor of its own (`.scale`) and is not applied here.
//!
//! ```text
//! 0           4                                                           36
//! │ 4 × UE4M3 │ 4 × 8 bytes: byte i of sub-block: quant i | quant i+8 « 4 │
//! ```

use crate::e2m1;
use crate::f8_e4m3;

/// Half the scale of a UE4M3 code, for [`e2m1::DOUBLED`]. Four exponent bits (bias 7), three mantissa bits. The sign bit is ignored, and 0x7f, E4M3's
/// NaN, is 0: both as in ggml (0xff, which no encoder writes, is 240 in the Python package).
#[inline(always)]
pub fn half_scale(code: u8) -> f32 {
    // selects instead of branches, so that the loop over sixteen scales is vectorized; the bits shift into exponent and mantissa unchanged
    let normal = f32::from_bits((u32::from(code & 0x7f) << 20) + ((127 - 7 - 1) << 23));
    let scale = if code & 0x78 == 0 { 2.0 * (normal - 1.0 / 256.0) } else { normal };
    if code == 0x7f { 0.0 } else { scale }
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(36).zip(out.chunks_exact_mut(64)) {
        for (g, out) in out.chunks_exact_mut(16).enumerate() {
            let d = half_scale(block[g]);
            let (low, high) = out.split_at_mut(8);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[4 + g * 8..][..8]) {
                *low = d * f32::from(e2m1::DOUBLED[usize::from(byte & 15)]);
                *high = d * f32::from(e2m1::DOUBLED[usize::from(byte >> 4)]);
            }
        }
    }
}

/// Squared error of 16 weights for a scale code.
fn error(numbers: &[f32], scale: u8) -> f32 {
    let d = half_scale(scale);
    let off = |v: f32| d * f32::from(e2m1::DOUBLED[usize::from(e2m1::nearest(v, d))]) - v;
    numbers.iter().map(|&v| off(v).powi(2)).sum()
}

/// The best of the scale codes around the one that maps the largest magnitude to E2M1's largest, 6. Lower codes clip it, higher ones round it; either
/// can suit the other fifteen better.
fn best_scale(numbers: &[f32]) -> u8 {
    let largest = numbers.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let middle = f8_e4m3::code(largest / 6.0);
    let mut best = (f32::INFINITY, middle);
    for scale in middle.saturating_sub(2)..=(middle + 4).min(0x7e) {
        let error = error(numbers, scale);
        if error < best.0 {
            best = (error, scale);
        }
    }
    best.1
}

pub(crate) fn encode(numbers: &[f32], out: &mut [u8]) {
    for (numbers, out) in numbers.chunks_exact(64).zip(out.chunks_exact_mut(36)) {
        for (g, x) in numbers.chunks_exact(16).enumerate() {
            out[g] = best_scale(x);
            let d = half_scale(out[g]);
            for i in 0..8 {
                out[4 + g * 8 + i] = e2m1::nearest(x[i], d) | (e2m1::nearest(x[i + 8], d) << 4);
            }
        }
    }
}
