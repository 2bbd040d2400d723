//! IQ2_XS: 256 weights in 74 bytes.
//! Sub-block g of 16: weight = d · (0.5 + scale[g]) / 4 · grid · sign.
//!
//! ```text
//! 0   2                                                       66                                    74
//! │ d │ 32 × u16: 9 bits of grid index | 7 bits of sign index │ byte i: scale 2·i | scale 2·i+1 « 4 │
//! ```

use crate::blocks::{bytes_at, half};
use crate::grids;
use crate::iq_signs::{even_signs, signed_row};
use crate::search::grid::{self, GridScaling, QuantCodebook};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (n, out) in out.chunks_exact_mut(8).enumerate() {
        let word = u16::from_le_bytes(bytes_at(block, 2 + 2 * n));
        let code = (block[66 + n / 4] >> (n / 2 % 2 * 4)) & 15;
        let scale = d * (0.5 + f32::from(code)) * 0.25;
        signed_row(out, scale, &grids::IQ2_XS[usize::from(word & 511)], even_signs((word >> 9) as u8));
    }
}

// (0.5 + scale) / 4 is the unit ¼; 43 is the largest value of the grid. Seven sign bits imply the
// eighth.
static GRID: QuantCodebook<8, 512> = QuantCodebook::new(&grids::IQ2_XS);
const FORM: GridScaling = GridScaling { unit: 0.25, top: 43.0, even: true };

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 74]) {
    let block = grid::super_block::<16, 2, 8, 512>(x, importance, &GRID, FORM);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    for n in 0..32 {
        let word = block.rows[n] | u16::from(block.signs[n] & 127) << 9;
        out[2 + 2 * n..4 + 2 * n].copy_from_slice(&word.to_le_bytes());
    }
    for i in 0..8 {
        out[66 + i] = block.scales[2 * i] | (block.scales[2 * i + 1] << 4);
    }
}
