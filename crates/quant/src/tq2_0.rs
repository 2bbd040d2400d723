//! TQ2_0: 256 weights in 66 bytes, weight = d · (quant − 1), two bits per quant.
//!
//! ```text
//! 0                                                                 64  66
//! │ 2 × 32 bytes: byte i of a half holds quants i, i+32, i+64, i+96 │ d │
//! ```

use crate::blocks::half;
use crate::search::importance_at;
use crate::search::levels::{self, TernaryLevels};

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(66).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 64);
        for (line, out) in out.chunks_exact_mut(32).enumerate() {
            let quants = &block[line / 4 * 32..][..32];
            for (out, byte) in out.iter_mut().zip(quants) {
                *out = d * f32::from(((byte >> (line % 4 * 2)) & 3) as i8 - 1);
            }
        }
    }
}

/// Quantizes whole blocks; the lowest error that the search finds.
#[inline(always)]
pub fn search(numbers: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for (n, (x, out)) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(66)).enumerate() {
        let (d, levels) = levels::block::<TernaryLevels, 256>(x, importance_at(importance, n * 256, 256));
        out[..64].fill(0);
        for (n, level) in levels.iter().enumerate() {
            out[n / 128 * 32 + n % 32] |= ((level + 1.0) as u8) << (n % 128 / 32 * 2);
        }
        out[64..66].copy_from_slice(&d.to_le_bytes());
    }
}
