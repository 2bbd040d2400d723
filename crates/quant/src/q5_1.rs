//! Q5_1: 32 weights in 24 bytes, weight = d · quant + m.
//!
//! ```text
//! 0   2   4                        8                                    24
//! │ d │ m │ u32, bit i: fifth of i │ byte i: nibble i | nibble i+16 « 4 │
//! ```

use crate::blocks::{five_bits, half, put_five_bits, put_half, with_minimum};
use crate::search::affine;

#[inline(always)]
pub(crate) fn decode(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    for (out, quant) in out.iter_mut().zip(five_bits(block, 4, 8)) {
        *out = d * f32::from(quant) + m;
    }
}

pub(crate) fn encode(numbers: &[f32; 32], _: Option<&[f32]>, out: &mut [u8; 24]) {
    let (d, m, quants) = with_minimum(numbers, 31.0);
    put_half(out, 0, d);
    put_half(out, 2, m);
    put_five_bits(out, 4, 8, &quants);
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 32], importance: Option<&[f32]>, out: &mut [u8; 24]) {
    let (d, m, quants) = affine::block(x, importance, 31.0);
    out[..2].copy_from_slice(&d.to_le_bytes());
    out[2..4].copy_from_slice(&m.to_le_bytes());
    put_five_bits(out, 4, 8, &quants);
}
