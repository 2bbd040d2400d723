//! Q4_0: 32 weights in 18 bytes, weight = d · (quant − 8).
//!
//! ```text
//! 0   2                                  18
//! │ d │ byte i: quant i | quant i+16 « 4 │
//! ```

use crate::blocks::{half, nibbles, put_half, put_nibbles, symmetric};
use crate::search::levels::{self, IntegerLevels};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (out, quant) in out.iter_mut().zip(nibbles(&block[2..])) {
        *out = d * f32::from(quant as i8 - 8);
    }
}

pub(crate) fn encode(numbers: &[f32; 32], _: Option<&[f32]>, out: &mut [u8; 18]) {
    let (d, quants) = symmetric(numbers, 8.0);
    put_half(out, 0, d);
    put_nibbles(&mut out[2..], &quants);
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 32], importance: Option<&[f32]>, out: &mut [u8; 18]) {
    // Levels from −8 to 7; the stored quant is the level plus the zero point of 8.
    let (d, levels) = levels::block::<IntegerLevels<8>, 32>(x, importance);
    out[..2].copy_from_slice(&d.to_le_bytes());
    let mut quants = [0; 32];
    for i in 0..32 {
        quants[i] = (levels[i] + 8.0) as u8;
    }
    put_nibbles(&mut out[2..], &quants);
}
