//! IQ3_XXS: 256 weights in 98 bytes.
//! Sub-block g of 32: weight = d · (0.5 + scale[g]) / 2 · grid · sign.
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
use crate::search::grid::{self, GridScaling, QuantCodebook};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (n, out) in out.chunks_exact_mut(8).enumerate() {
        // Four sign indices of seven bits leave four bits for the scale. Each index serves two rows
        // of four.
        let word = u32::from_le_bytes(bytes_at(block, 66 + n / 4 * 4));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        let signs = even_signs((word >> (n % 4 * 7)) as u8);
        let (left, right) = out.split_at_mut(4);
        signed_row(left, scale, &grids::IQ3_XXS[usize::from(block[2 + 2 * n])], signs);
        signed_row(right, scale, &grids::IQ3_XXS[usize::from(block[3 + 2 * n])], signs >> 4);
    }
}

// (0.5 + scale) / 2 is the unit ½; 62 is the largest value of the grid. Seven sign bits imply the
// eighth.
static GRID: QuantCodebook<4, 256> = QuantCodebook::new(&grids::IQ3_XXS);
const FORM: GridScaling = GridScaling { unit: 0.5, top: 62.0, even: true };

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 98]) {
    let block = grid::super_block::<8, 8, 4, 256>(x, importance, &GRID, FORM);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    for n in 0..64 {
        out[2 + n] = block.rows[n] as u8;
    }
    for (g, out) in out[66..].chunks_exact_mut(4).enumerate() {
        let mut word = u32::from(block.scales[g]) << 28;
        for l in 0..4 {
            word |= u32::from(block.signs[g * 4 + l] & 127) << (7 * l);
        }
        out.copy_from_slice(&word.to_le_bytes());
    }
}
