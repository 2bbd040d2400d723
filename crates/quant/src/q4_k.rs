//! Q4_K: 256 weights in 144 bytes; sub-block g of 32: weight = d · scale[g] · quant − dmin · min[g].
//!
//! ```text
//! 0   2      4                            16                                       144
//! │ d │ dmin │ 8 scales, 8 mins of 6 bits │ 4 × 32 bytes: quant i | quant i+32 « 4 │
//! ```
//!
//! The scales are packed as [`crate::k_scales::unpack_scales_mins`] says.

use crate::blocks::{bytes_at, half, put_half};
use crate::k_scales::{pack_scales_mins, unpack_scales_mins};
use crate::k_search::{nearest, scales_and_mins};

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(144).zip(out.chunks_exact_mut(256)) {
        let (d, dmin) = (half(block, 0), half(block, 2));
        let (scales, mins) = unpack_scales_mins(&bytes_at(block, 4));
        for (g, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = (d * f32::from(scales[g]), dmin * f32::from(mins[g]));
            let shift = g % 2 * 4;
            for (out, byte) in out.iter_mut().zip(&block[16 + g / 2 * 32..][..32]) {
                *out = scale * f32::from((byte >> shift) & 15) - min;
            }
        }
    }
}

pub(crate) fn encode(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(144)) {
        let (scales, mins, d, dmin) = scales_and_mins::<8>(x, 15.0, 63.0);
        let (d, dmin) = (put_half(out, 0, d), put_half(out, 2, dmin));
        out[4..16].copy_from_slice(&pack_scales_mins(&scales, &mins));
        out[16..].fill(0);
        for (n, &v) in x.iter().enumerate() {
            let g = n / 32;
            let quant = nearest(v, d * f32::from(scales[g]), dmin * f32::from(mins[g]), 15.0);
            out[16 + g / 2 * 32 + n % 32] |= quant << (g % 2 * 4);
        }
    }
}
