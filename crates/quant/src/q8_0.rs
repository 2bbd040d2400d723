//! Q8_0: 32 weights in 34 bytes, weight = d · quant.
//!
//! ```text
//! 0   2            34
//! │ d │ byte i: i8 │
//! ```

use crate::blocks::{extreme, half, inverse, put_half};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (out, quant) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(*quant as i8);
    }
}

/// The only encoding, as in ggml; importances are ignored.
#[inline(always)]
pub(crate) fn search(numbers: &[f32; 32], _: Option<&[f32]>, out: &mut [u8; 34]) {
    let d = extreme(numbers).abs() / 127.0;
    let id = inverse(d);
    // As in ggml, quants are rounded with the exact scale, halves away from zero.
    put_half(out, 0, d);
    for (out, v) in out[2..].iter_mut().zip(numbers) {
        *out = (v * id).round() as i8 as u8;
    }
}
