//! TQ2_0: 256 weights in 66 bytes, weight = d · (quant − 1), two bits per quant.
//!
//! ```text
//! 0                                                                 64  66
//! │ 2 × 32 bytes: byte i of a half holds quants i, i+32, i+64, i+96 │ d │
//! ```

use crate::blocks::half;
use crate::search::levels::{self, TernaryLevels};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half(block, 64);
    for (line, out) in out.chunks_exact_mut(32).enumerate() {
        let quants = &block[line / 4 * 32..][..32];
        for (out, byte) in out.iter_mut().zip(quants) {
            *out = d * f32::from(((byte >> (line % 4 * 2)) & 3) as i8 - 1);
        }
    }
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 66]) {
    let (d, levels) = levels::block::<TernaryLevels, 256>(x, importance);
    out[..64].fill(0);
    for (n, level) in levels.iter().enumerate() {
        out[n / 128 * 32 + n % 32] |= ((level + 1.0) as u8) << (n % 128 / 32 * 2);
    }
    out[64..66].copy_from_slice(&d.to_le_bytes());
}
