//! Q4_1: 32 weights in 20 bytes, weight = d · quant + m.
//!
//! ```text
//! 0   2   4                                  20
//! │ d │ m │ byte i: quant i | quant i+16 « 4 │
//! ```

use crate::blocks::{half, nibbles, put_half, put_nibbles, with_minimum};
use crate::search::affine;

#[inline(always)]
pub(crate) fn decode(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    for (out, quant) in out.iter_mut().zip(nibbles(&block[4..])) {
        *out = d * f32::from(quant) + m;
    }
}

pub(crate) fn encode(numbers: &[f32; 32], _: Option<&[f32]>, out: &mut [u8; 20]) {
    let (d, m, quants) = with_minimum(numbers, 15.0);
    put_half(out, 0, d);
    put_half(out, 2, m);
    put_nibbles(&mut out[4..], &quants);
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 32], importance: Option<&[f32]>, out: &mut [u8; 20]) {
    let (d, m, quants) = affine::block(x, importance, 15.0);
    out[..2].copy_from_slice(&d.to_le_bytes());
    out[2..4].copy_from_slice(&m.to_le_bytes());
    put_nibbles(&mut out[4..], &quants);
}
