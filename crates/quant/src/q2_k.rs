//! Q2_K: 256 weights in 84 bytes; sub-block g of 16: weight = d · scale[g] · quant − dmin · min[g].
//!
//! ```text
//! 0                             16                                         80  82     84
//! │ byte g: scale g | min g « 4 │ 2 × 32 bytes: quants i, i+32, i+64, i+96 │ d │ dmin │
//! ```

use crate::blocks::half;
use crate::search::affine;

#[inline(always)]
pub(crate) fn decode(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (half(block, 80), half(block, 82));
    for (g, out) in out.chunks_exact_mut(16).enumerate() {
        let (scale, min) = (d * f32::from(block[g] & 15), dmin * f32::from(block[g] >> 4));
        // A half of 128 weights has 32 bytes. Byte i has the quants i, i + 32, i + 64 and i + 96,
        // so pairs of sub-blocks share a shift.
        let quants = &block[16 + g / 8 * 32 + g % 2 * 16..][..16];
        let shift = g % 8 / 2 * 2;
        for (out, byte) in out.iter_mut().zip(quants) {
            *out = scale * f32::from((byte >> shift) & 3) - min;
        }
    }
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 84]) {
    let block = affine::super_block::<16, 16>(x, importance, 3.0, 15.0);
    out[80..82].copy_from_slice(&block.d.to_le_bytes());
    out[82..84].copy_from_slice(&block.dmin.to_le_bytes());
    // Quants are merged by a bitwise or, so old contents must go.
    out[16..80].fill(0);
    for g in 0..16 {
        out[g] = block.scales[g] | (block.mins[g] << 4);
    }
    for (n, quant) in block.quants.iter().enumerate() {
        out[16 + n / 128 * 32 + n % 32] |= quant << (n % 128 / 32 * 2);
    }
}
