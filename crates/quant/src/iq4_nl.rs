//! IQ4_NL: 32 weights in 18 bytes, weight = d · VALUES\[quant\].
//!
//! ```text
//! 0   2                                  18
//! │ d │ byte i: quant i | quant i+16 « 4 │
//! ```

use crate::blocks::{extreme, half, nibbles, put_half, put_nibbles};
use crate::k_search::safe_inverse;

/// What the sixteen quants of IQ4_NL and IQ4_XS stand for, ascending.
pub const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(18).zip(out.chunks_exact_mut(32)) {
        let d = half(block, 0);
        for (out, quant) in out.iter_mut().zip(nibbles(&block[2..])) {
            *out = d * f32::from(VALUES[usize::from(quant)]);
        }
    }
}

/// The quant whose value is nearest to `x`, the lower one of equals; quant 0 for NaN.
fn nearest(x: f32) -> u8 {
    let above = VALUES.partition_point(|v| f32::from(*v) < x).min(15);
    let below = above.saturating_sub(1);
    let off = |quant: usize| (f32::from(VALUES[quant]) - x).abs();
    if off(below) <= off(above) { below as u8 } else { above as u8 }
}

/// The quants of 32 values for a scale. With a zero scale they do not matter.
pub(crate) fn quants(x: &[f32], scale: f32) -> [u8; 32] {
    let inverse = safe_inverse(scale);
    std::array::from_fn(|i| nearest(x[i] * inverse))
}

/// The scale of 32 values by weighted least squares: candidates map the largest magnitude to either end of the table or near it; each is refined once.
/// Weights are squared magnitudes, as large values matter most in dot products. 0 if all values are zero or one is infinite.
pub(crate) fn fit(x: &[f32]) -> f32 {
    let largest = extreme(x);
    if largest == 0.0 || !largest.is_finite() {
        return 0.0;
    }
    let weight = |v: f32| (v / largest).powi(2);
    let mut best = (f32::INFINITY, largest / f32::from(VALUES[0]));
    for end in [f32::from(VALUES[0]), f32::from(VALUES[15])] {
        for step in -7..=7 {
            let quants = quants(x, largest / (end + step as f32));
            let value = |i: usize| f32::from(VALUES[usize::from(quants[i])]);
            let (mut vx, mut vv) = (0.0f32, 0.0f32);
            for (i, &v) in x.iter().enumerate() {
                vx += weight(v) * value(i) * v;
                vv += weight(v) * value(i) * value(i);
            }
            let scale = if vv > 0.0 { vx / vv } else { continue };
            let error: f32 =
                x.iter().enumerate().map(|(i, &v)| weight(v) * (scale * value(i) - v).powi(2)).sum();
            if error < best.0 {
                best = (error, scale);
            }
        }
    }
    best.1
}

pub(crate) fn encode(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(32).zip(out.chunks_exact_mut(18)) {
        let d = put_half(out, 0, fit(x));
        put_nibbles(&mut out[2..], &quants(x, d));
    }
}
