//! NVFP4 as GGUF stores it: 64 weights in 36 bytes.
//! Sub-block g of 16: weight = UE4M3(scale\[g\]) · E2M1(quant).
//! The f32 scale of a whole tensor is stored as a separate tensor (`.scale`) and is not applied
//! here.
//!
//! ```text
//! 0           4                                                           36
//! │ 4 × UE4M3 │ 4 × 8 bytes: byte i of sub-block: quant i | quant i+8 « 4 │
//! ```

use crate::blocks::extreme;
use crate::e2m1;
use crate::f8_e4m3;
use crate::search::levels::{self, E2m1Levels};
use crate::search::{LANES, error_weights, lowest, part};

/// Half of the scale of a UE4M3 code, for [`e2m1::DOUBLED`]. Four exponent bits (bias 7), three
/// mantissa bits. As in ggml, the sign bit is ignored, and 0x7f, E4M3's NaN, is 0. (The Python
/// package reads 0xff as 240, but encoders do not write it.)
#[inline(always)]
pub fn half_scale(code: u8) -> f32 {
    // Selections instead of branches, so that loops over scales vectorize. The code's bits become
    // f32's exponent and mantissa; the bias becomes 127, minus 1 for the half. For subnormals,
    // `normal` is 2^-8 · (1 + m/8), from which m/1024 follows.
    let normal = f32::from_bits((u32::from(code & 0x7f) << 20) + ((127 - 7 - 1) << 23));
    let scale = if code & 0x78 == 0 { 2.0 * (normal - 1.0 / 256.0) } else { normal };
    if code == 0x7f { 0.0 } else { scale }
}

#[inline(always)]
pub(crate) fn decode(block: &[u8; 36], out: &mut [f32; 64]) {
    for (g, out) in out.chunks_exact_mut(16).enumerate() {
        let d = half_scale(block[g]);
        let (low, high) = out.split_at_mut(8);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[4 + g * 8..][..8]) {
            *low = d * f32::from(e2m1::DOUBLED[usize::from(byte & 15)]);
            *high = d * f32::from(e2m1::DOUBLED[usize::from(byte >> 4)]);
        }
    }
}

/// Codes around the one that maps the largest magnitude to E2M1's largest value, 6. Lower codes
/// clip it and higher ones round it; either may fit the other fifteen weights better.
#[inline(always)]
pub(crate) fn candidates(x: &[f32; 16]) -> [u8; LANES] {
    let middle = f8_e4m3::code(extreme(x).abs() / 6.0);
    let mut codes = [0; LANES];
    for l in 0..LANES {
        // Lane 0 is the middle, so that it wins ties. 0x7f is NaN.
        let off = if l % 2 == 0 { -(l as i16 / 2) } else { l as i16 / 2 + 1 };
        codes[l] = (i16::from(middle) + off).clamp(0, 0x7e) as u8;
    }
    codes
}

#[inline(always)]
pub(crate) fn search(numbers: &[f32; 64], importance: Option<&[f32]>, out: &mut [u8; 36]) {
    let mut w = [0.0; 64];
    error_weights(numbers, importance, &mut w);
    // Sub-blocks are independent: the format has no scale above theirs.
    for g in 0..4 {
        let x = part::<16>(numbers, g * 16);
        let (codes, mut scales) = (candidates(&x), [0.0; LANES]);
        for l in 0..LANES {
            scales[l] = half_scale(codes[l]);
        }
        out[g] = codes[lowest(&levels::errors::<E2m1Levels, 16>(&x, &part(&w, g * 16), &scales))];
        let d = half_scale(out[g]);
        for i in 0..8 {
            out[4 + g * 8 + i] = e2m1::nearest(x[i], d) | (e2m1::nearest(x[i + 8], d) << 4);
        }
    }
}
