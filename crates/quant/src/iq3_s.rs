//! IQ3_S: 256 weights in 110 bytes; sub-block g of 32: weight = d · (1 + 2 · scale[g]) · grid · sign. Decode only.
//!
//! ```text
//! 0   2                          66                              74                 106                   110
//! │ d │ 64 × low 8 bits of index │ byte i, bit l: ninth of 8·i+l │ 32 × 8 sign bits │ 4 × two scales of 4 │
//! ```

use crate::blocks::half;
use crate::grids;
use crate::iq_signs::signed_row;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(110).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        for (n, out) in out.chunks_exact_mut(4).enumerate() {
            let ninth = (block[66 + n / 8] >> (n % 8)) & 1;
            let index = usize::from(block[2 + n]) | usize::from(ninth) << 8;
            let code = (block[106 + n / 16] >> (n / 8 % 2 * 4)) & 15;
            let scale = d * f32::from(1 + 2 * code);
            signed_row(out, scale, &grids::IQ3_S[index], block[74 + n / 2] >> (n % 2 * 4));
        }
    }
}
