//! Q2_K: 256 weights in 84 bytes; sub-block g of 16: weight = d · scale[g] · quant − dmin · min[g].
//!
//! ```text
//! 0                             16                                         80  82     84
//! │ byte g: scale g | min g « 4 │ 2 × 32 bytes: quants i, i+32, i+64, i+96 │ d │ dmin │
//! ```

use crate::blocks::{half, put_half};
use crate::k_search::{nearest, scales_and_mins};

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(84).zip(out.chunks_exact_mut(256)) {
        let (d, dmin) = (half(block, 80), half(block, 82));
        for (g, out) in out.chunks_exact_mut(16).enumerate() {
            let (scale, min) = (d * f32::from(block[g] & 15), dmin * f32::from(block[g] >> 4));
            let quants = &block[16 + g / 8 * 32 + g % 2 * 16..][..16];
            let shift = g % 8 / 2 * 2;
            for (out, byte) in out.iter_mut().zip(quants) {
                *out = scale * f32::from((byte >> shift) & 3) - min;
            }
        }
    }
}

pub(crate) fn encode(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(84)) {
        let (scales, mins, d, dmin) = scales_and_mins::<16>(x, 3.0, 15.0);
        let (d, dmin) = (put_half(out, 80, d), put_half(out, 82, dmin));
        out[16..80].fill(0);
        for g in 0..16 {
            out[g] = scales[g] | (mins[g] << 4);
        }
        for (n, &v) in x.iter().enumerate() {
            let quant = nearest(v, d * f32::from(scales[n / 16]), dmin * f32::from(mins[n / 16]), 3.0);
            out[16 + n / 128 * 32 + n % 32] |= quant << (n % 128 / 32 * 2);
        }
    }
}
