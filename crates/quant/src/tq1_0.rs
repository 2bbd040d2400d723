//! TQ1_0: 256 weights −d, 0 or d in 54 bytes, five base-3 digits per byte.
//!
//! ```text
//! 0                       32                        48                       52  54
//! │ 5 × 32: weights 0–159 │ 5 × 16: weights 160–239 │ 4 × 4: weights 240–255 │ d │
//! ```
//!
//! A byte is a fraction of 256 with five base-3 digits. Multiplying by 3ⁿ modulo 256 shifts out n
//! digits; the next digit is then byte · 3 / 256.

use crate::blocks::half;
use crate::search::levels::{self, TernaryLevels};

const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

fn digits(bytes: &[u8], powers: &[u8], d: f32, out: &mut [f32]) {
    for (power, out) in powers.iter().zip(out.chunks_exact_mut(bytes.len())) {
        for (out, byte) in out.iter_mut().zip(bytes) {
            // The wrapping product drops the digits before this one, as an integer part of a
            // fraction.
            let digit = (u16::from(byte.wrapping_mul(*power)) * 3) >> 8;
            *out = d * f32::from(digit as i8 - 1);
        }
    }
}

#[inline(always)]
pub(crate) fn decode(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = half(block, 52);
    digits(&block[..32], &POWERS, d, &mut out[..160]);
    digits(&block[32..48], &POWERS, d, &mut out[160..240]);
    digits(&block[48..52], &POWERS[..4], d, &mut out[240..]);
}

/// The inverse of [`digits`] for d = 1: the digits' number / 3⁵ as a fraction of 256, rounded up,
/// so that truncation in `digits` yields the same digits.
#[inline(always)]
fn put_digits(levels: &[f32], out: &mut [u8]) {
    let width = out.len();
    for (i, out) in out.iter_mut().enumerate() {
        let mut number = 0u16;
        for digit in 0..5 {
            // The last four bytes have four digits; the missing one is 0.
            let level = levels.get(digit * width + i).copied().unwrap_or(-1.0);
            number = number * 3 + (level + 1.0) as u16;
        }
        *out = (number * 256).div_ceil(243) as u8;
    }
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 54]) {
    let (d, levels) = levels::block::<TernaryLevels, 256>(x, importance);
    put_digits(&levels[..160], &mut out[..32]);
    put_digits(&levels[160..240], &mut out[32..48]);
    put_digits(&levels[240..], &mut out[48..52]);
    out[52..54].copy_from_slice(&d.to_le_bytes());
}
