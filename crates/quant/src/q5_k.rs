//! Q5_K: 256 weights in 176 bytes.
//! Sub-block g of 32: weight = d · scale[g] · quant − dmin · min[g].
//!
//! ```text
//! 0   2      4                            16                               48                                         176
//! │ d │ dmin │ 8 scales, 8 mins of 6 bits │ byte i, bit g: fifth of i+32·g │ 4 × 32 bytes: nibble i | nibble i+32 « 4 │
//! ```
//!
//! [`crate::k_scales::unpack_scales_mins`] describes how scales are packed.

use crate::blocks::{bytes_at, half};
use crate::k_scales::{pack_scales_mins, unpack_scales_mins};
use crate::search::affine;

#[inline(always)]
pub(crate) fn decode(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let (scales, mins) = unpack_scales_mins(&bytes_at(block, 4));
    for (g, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = (d * f32::from(scales[g]), dmin * f32::from(mins[g]));
        // Nibbles as in Q4_K. Byte i of the fifth bits has bit g for weight i of sub-block g.
        let (shift, low, fifths) = (g % 2 * 4, &block[48 + g / 2 * 32..][..32], &block[16..48]);
        for ((out, byte), fifth) in out.iter_mut().zip(low).zip(fifths) {
            let quant = ((byte >> shift) & 15) | (((fifth >> g) & 1) << 4);
            *out = scale * f32::from(quant) - min;
        }
    }
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 176]) {
    let block = affine::super_block::<8, 32>(x, importance, 31.0, 63.0);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    out[2..4].copy_from_slice(&block.dmin.to_le_bytes());
    out[4..16].copy_from_slice(&pack_scales_mins(&block.scales, &block.mins));
    out[16..48].fill(0);
    let (fifths, low) = out[16..].split_at_mut(32);
    for (g, (quants, low)) in block.quants.chunks_exact(64).zip(low.chunks_exact_mut(32)).enumerate() {
        for i in 0..32 {
            low[i] = (quants[i] & 15) | (quants[i + 32] << 4);
            fifths[i] |= (quants[i] >> 4) << (2 * g) | (quants[i + 32] >> 4) << (2 * g + 1);
        }
    }
}
