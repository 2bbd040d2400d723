//! Q4_K: 256 weights in 144 bytes.
//! Sub-block g of 32: weight = d · scale[g] · quant − dmin · min[g].
//!
//! ```text
//! 0   2      4                            16                                       144
//! │ d │ dmin │ 8 scales, 8 mins of 6 bits │ 4 × 32 bytes: quant i | quant i+32 « 4 │
//! ```
//!
//! [`crate::k_scales::unpack_scales_mins`] describes how scales are packed.

use crate::blocks::{bytes_at, half};
use crate::k_scales::{pack_scales_mins, unpack_scales_mins};
use crate::search::affine;

#[inline(always)]
pub(crate) fn decode(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let (scales, mins) = unpack_scales_mins(&bytes_at(block, 4));
    for (g, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = (d * f32::from(scales[g]), dmin * f32::from(mins[g]));
        // Two sub-blocks share 32 bytes: the even one has the low nibbles.
        let shift = g % 2 * 4;
        for (out, byte) in out.iter_mut().zip(&block[16 + g / 2 * 32..][..32]) {
            *out = scale * f32::from((byte >> shift) & 15) - min;
        }
    }
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 144]) {
    let block = affine::super_block::<8, 32>(x, importance, 15.0, 63.0);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    out[2..4].copy_from_slice(&block.dmin.to_le_bytes());
    out[4..16].copy_from_slice(&pack_scales_mins(&block.scales, &block.mins));
    for (quants, out) in block.quants.chunks_exact(64).zip(out[16..].chunks_exact_mut(32)) {
        for i in 0..32 {
            out[i] = quants[i] | (quants[i + 32] << 4);
        }
    }
}
