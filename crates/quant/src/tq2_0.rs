//! TQ2_0: 256 weights in 66 bytes, weight = d · (quant − 1), two bits per quant. Decode only.
//!
//! ```text
//! 0                                                                 64  66
//! │ 2 × 32 bytes: byte i of a half holds quants i, i+32, i+64, i+96 │ d │
//! ```

use crate::blocks::half;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(66).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 64);
        for (line, out) in out.chunks_exact_mut(32).enumerate() {
            let quants = &block[line / 4 * 32..][..32];
            for (out, byte) in out.iter_mut().zip(quants) {
                *out = d * f32::from(((byte >> (line % 4 * 2)) & 3) as i8 - 1);
            }
        }
    }
}
