//! IQ2_XXS: 256 weights in 66 bytes; sub-block g of 32: weight = d · (0.5 + scale[g]) / 4 · grid · sign. Decode only.
//!
//! ```text
//! 0   2                                                                          66
//! │ d │ 8 × (4 grid indices u8, u32: 4 × 7 bits of sign index | 4 bits of scale) │
//! ```
//!
//! A grid index and a sign index give eight weights.

use crate::blocks::{bytes_at, half};
use crate::grids;
use crate::iq_signs::{even_signs, signed_row};

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(66).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        for (part, out) in block[2..].chunks_exact(8).zip(out.chunks_exact_mut(32)) {
            let word = u32::from_le_bytes(bytes_at(part, 4));
            let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
            for (l, out) in out.chunks_exact_mut(8).enumerate() {
                let row = &grids::IQ2_XXS[usize::from(part[l])];
                signed_row(out, scale, row, even_signs((word >> (7 * l)) as u8));
            }
        }
    }
}
