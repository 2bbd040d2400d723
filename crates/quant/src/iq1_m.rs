//! IQ1_M: 256 weights in 56 bytes; sub-block g of 16: weight = d · (2 · scale[g] + 1) · (grid ± 1/8). Decode only.
//!
//! ```text
//! 0                          32                                               48                                 56
//! │ 32 × low 8 bits of index │ 32 × 4 bits: upper 3 of index | sign of eighth │ 4 × u16: 4 × scale of 3 | 4 of d │
//! ```
//!
//! The f16 d is cut into the upper four bits of the four u16, lowest first. Every eight weights have their own sign.

use crate::blocks::bytes_at;
use crate::{grids, iq1_s::DELTA};
use half::f16;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(56).zip(out.chunks_exact_mut(256)) {
        let words: [u16; 4] = std::array::from_fn(|i| u16::from_le_bytes(bytes_at(block, 48 + 2 * i)));
        let bits = (0..4).fold(0, |bits, i| bits | (words[i] >> 12) << (4 * i));
        let d = f16::from_bits(bits).to_f32();
        for (n, out) in out.chunks_exact_mut(8).enumerate() {
            let scale = d * f32::from(2 * ((words[n / 8] >> (n / 2 % 4 * 3)) & 7) + 1);
            let upper = block[32 + n / 2] >> (n % 2 * 4);
            let delta = if upper & 8 == 0 { DELTA } else { -DELTA };
            let index = usize::from(block[n]) | usize::from(upper & 7) << 8;
            for (out, value) in out.iter_mut().zip(&grids::IQ1[index]) {
                *out = scale * (f32::from(*value) + delta);
            }
        }
    }
}
