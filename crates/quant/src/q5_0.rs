//! Q5_0: 32 weights in 22 bytes, weight = d · (quant − 16).
//!
//! ```text
//! 0   2                        6                                    22
//! │ d │ u32, bit i: fifth of i │ byte i: nibble i | nibble i+16 « 4 │
//! ```

use crate::blocks::{five_bits, half, put_five_bits, put_half, symmetric};
use crate::search::importance_at;
use crate::search::levels::{self, IntegerLevels};

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(22).zip(out.chunks_exact_mut(32)) {
        let d = half(block, 0);
        for (out, quant) in out.iter_mut().zip(five_bits(block, 2, 6)) {
            *out = d * f32::from(quant as i8 - 16);
        }
    }
}

pub(crate) fn encode(numbers: &[f32], out: &mut [u8]) {
    for (numbers, out) in numbers.chunks_exact(32).zip(out.chunks_exact_mut(22)) {
        let (d, quants) = symmetric(numbers, 16.0);
        put_half(out, 0, d);
        put_five_bits(out, 2, 6, &quants);
    }
}

/// Quantizes whole blocks; the lowest error that the search finds.
#[inline(always)]
pub fn search(numbers: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for (n, (x, out)) in numbers.chunks_exact(32).zip(out.chunks_exact_mut(22)).enumerate() {
        let (d, levels) = levels::block::<IntegerLevels<16>, 32>(x, importance_at(importance, n * 32, 32));
        out[..2].copy_from_slice(&d.to_le_bytes());
        let mut quants = [0; 32];
        for i in 0..32 {
            quants[i] = (levels[i] + 16.0) as u8;
        }
        put_five_bits(out, 2, 6, &quants);
    }
}
