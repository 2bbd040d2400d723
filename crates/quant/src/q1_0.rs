//! Q1_0: 128 weights in 18 bytes, weight = d if the bit is set, else −d.
//!
//! ```text
//! 0   2                                         18
//! │ d │ byte i: bits of weights 8i … 8i+7, « 0…7 │
//! ```

use crate::blocks::half;
use crate::search::levels::{self, SignLevels};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = half(block, 0);
    for (out, byte) in out.chunks_exact_mut(8).zip(&block[2..]) {
        for (bit, out) in out.iter_mut().enumerate() {
            *out = if byte >> bit & 1 == 1 { d } else { -d };
        }
    }
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 128], importance: Option<&[f32]>, out: &mut [u8; 18]) {
    // The best scale for given signs is the weighted mean magnitude.
    let (d, levels) = levels::block::<SignLevels, 128>(x, importance);
    out[..2].copy_from_slice(&d.to_le_bytes());
    for (byte, levels) in out[2..].iter_mut().zip(levels.chunks_exact(8)) {
        *byte = 0;
        for (bit, level) in levels.iter().enumerate() {
            *byte |= u8::from(*level > 0.0) << bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, from the block in ggml-common.h.
    #[test]
    fn a_set_bit_is_the_scale_and_a_clear_one_its_negative() {
        let mut block = [0; 18];
        block[..2].copy_from_slice(&half::f16::from_f32(0.75).to_le_bytes());
        (block[2], block[17]) = (0b0000_0101, 0b1000_0000);
        let mut out = [0.0; 128];
        decode(&block, &mut out);
        let set: Vec<usize> = (0..128).filter(|i| out[*i] == 0.75).collect();
        assert_eq!(set, [0, 2, 127]);
        assert_eq!(out.iter().filter(|weight| **weight == -0.75).count(), 125);
    }
}
