//! IQ2_XXS: 256 weights in 66 bytes.
//! Sub-block g of 32: weight = d · (0.5 + scale[g]) / 4 · grid · sign.
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
use crate::search::grid::{self, GridScaling, QuantCodebook};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (part, out) in block[2..].chunks_exact(8).zip(out.chunks_exact_mut(32)) {
        // Four sign indices of seven bits leave four bits for the scale.
        let word = u32::from_le_bytes(bytes_at(part, 4));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for (l, out) in out.chunks_exact_mut(8).enumerate() {
            let row = &grids::IQ2_XXS[usize::from(part[l])];
            signed_row(out, scale, row, even_signs((word >> (7 * l)) as u8));
        }
    }
}

// (0.5 + scale) / 4 is the unit ¼; 43 is the largest value of the grid. Seven sign bits imply the
// eighth.
static GRID: QuantCodebook<8, 256> = QuantCodebook::new(&grids::IQ2_XXS);
const FORM: GridScaling = GridScaling { unit: 0.25, top: 43.0, even: true };

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 66]) {
    let block = grid::super_block::<8, 4, 8, 256>(x, importance, &GRID, FORM);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    for (g, out) in out[2..].chunks_exact_mut(8).enumerate() {
        let mut word = u32::from(block.scales[g]) << 28;
        for l in 0..4 {
            out[l] = block.rows[g * 4 + l] as u8;
            word |= u32::from(block.signs[g * 4 + l] & 127) << (7 * l);
        }
        out[4..].copy_from_slice(&word.to_le_bytes());
    }
}
