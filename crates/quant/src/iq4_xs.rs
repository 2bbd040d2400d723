//! IQ4_XS: 256 weights in 136 bytes.
//! Sub-block g of 32: weight = d · (scale[g] − 32) · VALUES[quant].
//!
//! ```text
//! 0   2                              4                             8                                             136
//! │ d │ u16: upper 2 bits of scale g │ byte i: low 4 bits of scale │ 8 × 16 bytes: quant i | quant i+16 « 4 of g │
//! │   │ at bit 2·g                   │ 2·i | of scale 2·i+1 « 4    │ (values: those of IQ4_NL)                   │
//! ```

use crate::blocks::{bytes_at, half, nibbles, put_nibbles};
use crate::iq4_nl::{Iq4Table, VALUES, quants_of};
use crate::search::levels;

#[inline(always)]
pub(crate) fn decode(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let upper = u16::from_le_bytes(bytes_at(block, 2));
    for (g, out) in out.chunks_exact_mut(32).enumerate() {
        // Six-bit scales with the zero point 32, in two fields.
        let low = (block[4 + g / 2] >> (g % 2 * 4)) & 15;
        let high = ((upper >> (2 * g)) & 3) as u8;
        let scale = d * f32::from((low | (high << 4)) as i8 - 32);
        for (out, quant) in out.iter_mut().zip(nibbles(&block[8 + g * 16..])) {
            *out = scale * f32::from(VALUES[usize::from(quant)]);
        }
    }
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 136]) {
    let block = levels::super_block::<Iq4Table, 8, 32>(x, importance, 32.0);
    let mut upper = 0u16;
    out[4..8].fill(0);
    for g in 0..8 {
        let bits = (block.scales[g] + 32) as u8;
        upper |= u16::from(bits >> 4) << (2 * g);
        out[4 + g / 2] |= (bits & 15) << (g % 2 * 4);
        put_nibbles(&mut out[8 + g * 16..], &quants_of(&block.levels[g * 32..(g + 1) * 32]));
    }
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    out[2..4].copy_from_slice(&upper.to_le_bytes());
}
