//! IQ1_S: 256 weights in 50 bytes; sub-block g of 32: weight = d · (2 · scale\[g\] + 1) · (grid ± 1/8). Decode only.
//!
//! ```text
//! 0   2                          34                                                                            50
//! │ d │ 32 × low 8 bits of index │ 8 × u16: 4 × upper 3 bits of index | 3 bits of scale g | sign of g's eighth │
//! ```

use crate::blocks::{bytes_at, half};
use crate::grids;

/// What moves every grid value up or down.
pub const DELTA: f32 = 0.125;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(50).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        for (n, out) in out.chunks_exact_mut(8).enumerate() {
            let word = u16::from_le_bytes(bytes_at(block, 34 + n / 4 * 2));
            let scale = d * f32::from(2 * ((word >> 12) & 7) + 1);
            let delta = if word & 0x8000 == 0 { DELTA } else { -DELTA };
            let index = usize::from(block[2 + n]) | usize::from((word >> (n % 4 * 3)) & 7) << 8;
            for (out, value) in out.iter_mut().zip(&grids::IQ1[index]) {
                *out = scale * (f32::from(*value) + delta);
            }
        }
    }
}
