//! IQ3_S: 256 weights in 110 bytes.
//! Sub-block g of 32: weight = d · (1 + 2 · scale[g]) · grid · sign.
//!
//! ```text
//! 0   2                          66                              74                 106                   110
//! │ d │ 64 × low 8 bits of index │ byte i, bit l: ninth of 8·i+l │ 32 × 8 sign bits │ 4 × two scales of 4 │
//! ```

use crate::blocks::half;
use crate::grids;
use crate::iq_signs::signed_row;
use crate::search::grid::{self, GridScaling, QuantCodebook};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (n, out) in out.chunks_exact_mut(4).enumerate() {
        let ninth = (block[66 + n / 8] >> (n % 8)) & 1;
        let index = usize::from(block[2 + n]) | usize::from(ninth) << 8;
        let code = (block[106 + n / 16] >> (n / 8 % 2 * 4)) & 15;
        let scale = d * f32::from(1 + 2 * code);
        signed_row(out, scale, &grids::IQ3_S[index], block[74 + n / 2] >> (n % 2 * 4));
    }
}

// 1 + 2 · scale = (scale + ½) · 2, so the unit is 2; 15 is the largest value of the grid. All signs
// are stored, so their parity is free.
static GRID: QuantCodebook<4, 512> = QuantCodebook::new(&grids::IQ3_S);
const FORM: GridScaling = GridScaling { unit: 2.0, top: 15.0, even: false };

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 110]) {
    let block = grid::super_block::<8, 8, 4, 512>(x, importance, &GRID, FORM);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    out[66..74].fill(0);
    for n in 0..64 {
        out[2 + n] = block.rows[n] as u8;
        out[66 + n / 8] |= ((block.rows[n] >> 8) as u8) << (n % 8);
    }
    out[74..106].copy_from_slice(&block.signs);
    for i in 0..4 {
        out[106 + i] = block.scales[2 * i] | (block.scales[2 * i + 1] << 4);
    }
}
