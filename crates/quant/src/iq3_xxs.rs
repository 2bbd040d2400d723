//! IQ3_XXS: 256 weights in 98 bytes; sub-block g of 32: weight = d · (0.5 + scale[g]) / 2 · grid · sign. Decode only.
//!
//! ```text
//! 0   2                                    66                                                      98
//! │ d │ 64 grid indices u8, 4 weights each │ 8 × u32: 4 × 7 bits of sign index | 4 bits of scale g │
//! ```
//!
//! A sign index serves eight weights: two grid rows.

use crate::blocks::{bytes_at, half};
use crate::grids;
use crate::iq_signs::{even_signs, signed_row};

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(98).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        for (n, out) in out.chunks_exact_mut(8).enumerate() {
            let word = u32::from_le_bytes(bytes_at(block, 66 + n / 4 * 4));
            let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
            let signs = even_signs((word >> (n % 4 * 7)) as u8);
            let (left, right) = out.split_at_mut(4);
            signed_row(left, scale, &grids::IQ3_XXS[usize::from(block[2 + 2 * n])], signs);
            signed_row(right, scale, &grids::IQ3_XXS[usize::from(block[3 + 2 * n])], signs >> 4);
        }
    }
}
