//! Q8_0: 32 weights in 34 bytes, weight = d · quant.
//!
//! ```text
//! 0   2            34
//! │ d │ byte i: i8 │
//! ```

use crate::blocks::{extreme, half, inverse, put_half};

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(34).zip(out.chunks_exact_mut(32)) {
        let d = half(block, 0);
        for (out, quant) in out.iter_mut().zip(&block[2..]) {
            *out = d * f32::from(*quant as i8);
        }
    }
}

pub(crate) fn encode(numbers: &[f32], out: &mut [u8]) {
    for (numbers, out) in numbers.chunks_exact(32).zip(out.chunks_exact_mut(34)) {
        let d = extreme(numbers).abs() / 127.0;
        let id = inverse(d);
        put_half(out, 0, d);
        for (out, v) in out[2..].iter_mut().zip(numbers) {
            *out = (v * id).round() as i8 as u8;
        }
    }
}
