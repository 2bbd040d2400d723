//! IQ2_XS: 256 weights in 74 bytes; sub-block g of 16: weight = d · (0.5 + scale[g]) / 4 · grid · sign. Decode only.
//!
//! ```text
//! 0   2                                                       66                                    74
//! │ d │ 32 × u16: 9 bits of grid index | 7 bits of sign index │ byte i: scale 2·i | scale 2·i+1 « 4 │
//! ```

use crate::blocks::{bytes_at, half};
use crate::grids;
use crate::iq_signs::{even_signs, signed_row};

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(74).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        for (n, out) in out.chunks_exact_mut(8).enumerate() {
            let word = u16::from_le_bytes(bytes_at(block, 2 + 2 * n));
            let code = (block[66 + n / 4] >> (n / 2 % 2 * 4)) & 15;
            let scale = d * (0.5 + f32::from(code)) * 0.25;
            signed_row(out, scale, &grids::IQ2_XS[usize::from(word & 511)], even_signs((word >> 9) as u8));
        }
    }
}
