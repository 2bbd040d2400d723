//! IQ1_M: 256 weights in 56 bytes.
//! Sub-block g of 16: weight = d · (2 · scale[g] + 1) · (grid ± 1/8).
//!
//! ```text
//! 0                          32                                               48                                 56
//! │ 32 × low 8 bits of index │ 32 × 4 bits: upper 3 of index | sign of eighth │ 4 × u16: 4 × scale of 3 | 4 of d │
//! ```
//!
//! The f16 d is cut into the upper four bits of the four u16, lowest first. Every eight weights
//! have their own sign.

use crate::blocks::bytes_at;
use crate::search::shifted_grid;
use crate::{grids, iq1_s::DELTA};
use half::f16;

#[inline(always)]
pub(crate) fn decode(block: &[u8; 56], out: &mut [f32; 256]) {
    // Four scales of three bits leave four bits per word, which hold d: the format has no field for
    // it.
    let words: [u16; 4] = std::array::from_fn(|i| u16::from_le_bytes(bytes_at(block, 48 + 2 * i)));
    let bits = (0..4).fold(0, |bits, i| bits | (words[i] >> 12) << (4 * i));
    let d = f16::from_bits(bits).to_f32();
    for (n, out) in out.chunks_exact_mut(8).enumerate() {
        let scale = d * f32::from(2 * ((words[n / 8] >> (n / 2 % 4 * 3)) & 7) + 1);
        let upper = block[32 + n / 2] >> (n % 2 * 4);
        let delta = if upper & 8 == 0 { DELTA } else { -DELTA };
        let index = usize::from(block[n]) | usize::from(upper & 7) << 8;
        for (out, value) in out.iter_mut().zip(&grids::IQ1[index]) {
            *out = scale * (f32::from(*value) + delta);
        }
    }
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 56]) {
    let block = shifted_grid::super_block::<16, 2>(x, importance, false);
    out[32..48].fill(0);
    for n in 0..32 {
        let upper = (block.rows[n] >> 8) as u8 | u8::from(block.down[n]) << 3;
        out[n] = block.rows[n] as u8;
        out[32 + n / 2] |= upper << (n % 2 * 4);
    }
    for i in 0..4 {
        let mut word = (block.d.to_bits() >> (4 * i)) << 12;
        for l in 0..4 {
            word |= u16::from(block.scales[4 * i + l]) << (3 * l);
        }
        out[48 + 2 * i..50 + 2 * i].copy_from_slice(&word.to_le_bytes());
    }
}
