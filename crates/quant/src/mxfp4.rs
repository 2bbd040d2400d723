//! MXFP4 (OCP microscaling): 32 weights in 17 bytes, weight = 2^(e − 127) · E2M1(quant).
//!
//! ```text
//! 0        1                                  17
//! │ e E8M0 │ byte i: quant i | quant i+16 « 4 │
//! ```

use crate::blocks::{extreme, nibbles, put_nibbles};
use crate::e2m1;
use crate::search::levels::{self, E2m1Levels};
use crate::search::{error_weights, largest, part};

/// Half of 2^(e − 127), exactly, for every byte: E8M0 as ggml reads it. 255, which is NaN in OCP's
/// specification, gives 2^127.
#[inline(always)]
pub fn half_scale(e: u8) -> f32 {
    // 2^-128 and 2^-127 (e = 0 and 1) are subnormal. A selection instead of a branch, so that loops
    // over scales vectorize.
    let (subnormal, normal) = (0x0020_0000 * (1 + u32::from(e & 1)), u32::from(e).wrapping_sub(1) << 23);
    f32::from_bits(if e < 2 { subnormal } else { normal })
}

#[inline(always)]
pub(crate) fn decode(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = half_scale(block[0]);
    for (out, quant) in out.iter_mut().zip(nibbles(&block[1..])) {
        *out = d * f32::from(e2m1::DOUBLED[usize::from(quant)]);
    }
}

/// The scale of OCP's specification: the exponent of the largest number, minus E2M1's largest
/// exponent of 2.
// From the bits: a logarithm in f32 rounds values just below a power of two up to it.
pub(crate) fn scale_code(largest: f32) -> u8 {
    // Biased by 127; 0 for subnormals, 255 for infinity.
    let exponent = ((largest.abs().to_bits() >> 23) & 0xff) as u8;
    exponent.saturating_sub(2)
}

pub(crate) fn encode(numbers: &[f32; 32], _: Option<&[f32]>, out: &mut [u8; 17]) {
    out[0] = scale_code(extreme(numbers));
    let d = half_scale(out[0]);
    let quants = std::array::from_fn(|i| e2m1::nearest(numbers[i], d));
    put_nibbles(&mut out[1..], &quants);
}

/// Selects the power of two around `scale_code` with the lowest error: a lower one clips the
/// largest weights, a higher one rounds small weights to 0.
#[inline(always)]
pub(crate) fn search(x: &[f32; 32], importance: Option<&[f32]>, out: &mut [u8; 17]) {
    let (x, mut w) = (part::<32>(x, 0), [0.0; 32]);
    error_weights(&x, importance, &mut w);
    let middle = scale_code(largest(&x));
    // The middle first, so that it wins ties. 254 is the last exponent: 255 is NaN for other
    // readers.
    let (mut best, mut least) = (middle, f32::INFINITY);
    for code in [middle, middle.saturating_sub(1), (middle + 1).min(254), (middle + 2).min(254)] {
        let error = levels::error::<E2m1Levels, 32>(&x, &w, half_scale(code));
        (best, least) = if error < least { (code, error) } else { (best, least) };
    }
    out[0] = best;
    put_nibbles(&mut out[1..], &e2m1::codes(&x, half_scale(best)));
}
