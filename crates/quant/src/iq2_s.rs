//! IQ2_S: 256 weights in 82 bytes; sub-block g of 16: weight = d · (0.5 + scale[g]) / 4 · grid · sign. Decode only.
//!
//! ```text
//! 0   2                          34                 66                                     74                    82
//! │ d │ 32 × low 8 bits of index │ 32 × 8 sign bits │ byte i: upper 2 bits of 4·i to 4·i+3 │ 8 × two scales of 4 │
//! ```

use crate::blocks::half;
use crate::grids;
use crate::iq_signs::signed_row;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(82).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        for (n, out) in out.chunks_exact_mut(8).enumerate() {
            let upper = (block[66 + n / 4] >> (n % 4 * 2)) & 3;
            let index = usize::from(block[2 + n]) | usize::from(upper) << 8;
            let code = (block[74 + n / 4] >> (n / 2 % 2 * 4)) & 15;
            let scale = d * (0.5 + f32::from(code)) * 0.25;
            signed_row(out, scale, &grids::IQ2_S[index], block[34 + n]);
        }
    }
}
