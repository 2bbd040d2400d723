//! Q5_K: 256 weights in 176 bytes; sub-block g of 32: weight = d · scale[g] · quant − dmin · min[g].
//!
//! ```text
//! 0   2      4                            16                               48                                         176
//! │ d │ dmin │ 8 scales, 8 mins of 6 bits │ byte i, bit g: fifth of i+32·g │ 4 × 32 bytes: nibble i | nibble i+32 « 4 │
//! ```
//!
//! The scales are packed as [`crate::k_scales::unpack_scales_mins`] says.

use crate::blocks::{bytes_at, half, put_half};
use crate::k_scales::{pack_scales_mins, unpack_scales_mins};
use crate::k_search::{nearest, scales_and_mins};

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(176).zip(out.chunks_exact_mut(256)) {
        let (d, dmin) = (half(block, 0), half(block, 2));
        let (scales, mins) = unpack_scales_mins(&bytes_at(block, 4));
        for (g, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = (d * f32::from(scales[g]), dmin * f32::from(mins[g]));
            let (shift, low, fifths) = (g % 2 * 4, &block[48 + g / 2 * 32..][..32], &block[16..48]);
            for ((out, byte), fifth) in out.iter_mut().zip(low).zip(fifths) {
                let quant = ((byte >> shift) & 15) | (((fifth >> g) & 1) << 4);
                *out = scale * f32::from(quant) - min;
            }
        }
    }
}

pub(crate) fn encode(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(176)) {
        let (scales, mins, d, dmin) = scales_and_mins::<8>(x, 31.0, 63.0);
        let (d, dmin) = (put_half(out, 0, d), put_half(out, 2, dmin));
        out[4..16].copy_from_slice(&pack_scales_mins(&scales, &mins));
        out[16..].fill(0);
        for (n, &v) in x.iter().enumerate() {
            let g = n / 32;
            let quant = nearest(v, d * f32::from(scales[g]), dmin * f32::from(mins[g]), 31.0);
            out[48 + g / 2 * 32 + n % 32] |= (quant & 15) << (g % 2 * 4);
            out[16 + n % 32] |= (quant >> 4) << g;
        }
    }
}
