//! IQ2_S: 256 weights in 82 bytes.
//! Sub-block g of 16: weight = d · (0.5 + scale[g]) / 4 · grid · sign.
//!
//! ```text
//! 0   2                          34                 66                                     74                    82
//! │ d │ 32 × low 8 bits of index │ 32 × 8 sign bits │ byte i: upper 2 bits of 4·i to 4·i+3 │ 8 × two scales of 4 │
//! ```

use crate::blocks::half;
use crate::grids;
use crate::iq_signs::signed_row;
use crate::search::grid::{self, GridScaling, QuantCodebook};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (n, out) in out.chunks_exact_mut(8).enumerate() {
        let upper = (block[66 + n / 4] >> (n % 4 * 2)) & 3;
        let index = usize::from(block[2 + n]) | usize::from(upper) << 8;
        let code = (block[74 + n / 4] >> (n / 2 % 2 * 4)) & 15;
        let scale = d * (0.5 + f32::from(code)) * 0.25;
        signed_row(out, scale, &grids::IQ2_S[index], block[34 + n]);
    }
}

// (0.5 + scale) / 4 is the unit ¼; 43 is the largest value of the grid. All eight signs are stored,
// so their parity is free.
static GRID: QuantCodebook<8, 1024> = QuantCodebook::new(&grids::IQ2_S);
const FORM: GridScaling = GridScaling { unit: 0.25, top: 43.0, even: false };

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 82]) {
    let block = grid::super_block::<16, 2, 8, 1024>(x, importance, &GRID, FORM);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    out[66..74].fill(0);
    for n in 0..32 {
        out[2 + n] = block.rows[n] as u8;
        out[34 + n] = block.signs[n];
        out[66 + n / 4] |= ((block.rows[n] >> 8) as u8) << (n % 4 * 2);
    }
    for i in 0..8 {
        out[74 + i] = block.scales[2 * i] | (block.scales[2 * i + 1] << 4);
    }
}
