//! Q2_0: 64 weights in 18 bytes, weight = d · (quant − 1), two bits per quant: −d, 0, d or 2d.
//!
//! ```text
//! 0   2                                             18
//! │ d │ byte i: quants 4i … 4i+3, « 0, « 2, « 4, « 6 │
//! ```

use crate::blocks::half;
use crate::search::levels::{self, QuarterLevels};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 18], out: &mut [f32; 64]) {
    let d = half(block, 0);
    for (out, byte) in out.chunks_exact_mut(4).zip(&block[2..]) {
        for (place, out) in out.iter_mut().enumerate() {
            *out = f32::from((byte >> (2 * place) & 3) as i8 - 1) * d;
        }
    }
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 64], importance: Option<&[f32]>, out: &mut [u8; 18]) {
    let (d, levels) = levels::block::<QuarterLevels, 64>(x, importance);
    out[..2].copy_from_slice(&d.to_le_bytes());
    for (byte, levels) in out[2..].iter_mut().zip(levels.chunks_exact(4)) {
        *byte = 0;
        for (place, level) in levels.iter().enumerate() {
            *byte |= ((level + 1.0) as u8) << (2 * place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, from the block in ggml-common.h.
    #[test]
    fn two_bits_are_one_of_four_multiples_of_the_scale() {
        let mut block = [0b01_01_01_01; 18];
        block[..2].copy_from_slice(&half::f16::from_f32(1.5).to_le_bytes());
        (block[2], block[17]) = (0b11_10_01_00, 0b00_01_01_01);
        let mut out = [9.0; 64];
        decode(&block, &mut out);
        assert_eq!(out[..4], [-1.5, 0.0, 1.5, 3.0]);
        assert!(out[4..63].iter().all(|weight| *weight == 0.0) && out[63] == -1.5);
    }
}
