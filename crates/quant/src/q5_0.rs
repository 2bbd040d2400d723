//! Q5_0: 32 weights in 22 bytes, weight = d · (quant − 16).
//!
//! ```text
//! 0   2                        6                                    22
//! │ d │ u32, bit i: fifth of i │ byte i: nibble i | nibble i+16 « 4 │
//! ```

use crate::blocks::{five_bits, half, put_five_bits, put_half, symmetric};
use crate::search::levels::{self, IntegerLevels};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (out, quant) in out.iter_mut().zip(five_bits(block, 2, 6)) {
        *out = d * f32::from(quant as i8 - 16);
    }
}

pub(crate) fn encode(numbers: &[f32; 32], _: Option<&[f32]>, out: &mut [u8; 22]) {
    let (d, quants) = symmetric(numbers, 16.0);
    put_half(out, 0, d);
    put_five_bits(out, 2, 6, &quants);
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 32], importance: Option<&[f32]>, out: &mut [u8; 22]) {
    // Levels from −16 to 15; the stored quant is the level plus the zero point of 16.
    let (d, levels) = levels::block::<IntegerLevels<16>, 32>(x, importance);
    out[..2].copy_from_slice(&d.to_le_bytes());
    let mut quants = [0; 32];
    for i in 0..32 {
        quants[i] = (levels[i] + 16.0) as u8;
    }
    put_five_bits(out, 2, 6, &quants);
}
