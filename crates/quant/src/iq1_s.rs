//! IQ1_S: 256 weights in 50 bytes.
//! Sub-block g of 32: weight = d · (2 · scale\[g\] + 1) · (grid ± 1/8).
//!
//! ```text
//! 0   2                          34                                                                            50
//! │ d │ 32 × low 8 bits of index │ 8 × u16: 4 × upper 3 bits of index | 3 bits of scale g | sign of g's eighth │
//! ```

use crate::blocks::{bytes_at, half};
use crate::grids;
use crate::search::shifted_grid;

pub use crate::search::shifted_grid::DELTA;

#[inline(always)]
pub(crate) fn decode(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (n, out) in out.chunks_exact_mut(8).enumerate() {
        // A sub-block of 32 is four grid rows, which share a scale and the sign of the shift. 2048
        // rows need eleven bits of index.
        let word = u16::from_le_bytes(bytes_at(block, 34 + n / 4 * 2));
        let scale = d * f32::from(2 * ((word >> 12) & 7) + 1);
        let delta = if word & 0x8000 == 0 { DELTA } else { -DELTA };
        let index = usize::from(block[2 + n]) | usize::from((word >> (n % 4 * 3)) & 7) << 8;
        for (out, value) in out.iter_mut().zip(&grids::IQ1[index]) {
            *out = scale * (f32::from(*value) + delta);
        }
    }
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 50]) {
    let block = shifted_grid::super_block::<8, 4>(x, importance, true);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    for g in 0..8 {
        let mut word = u16::from(block.scales[g]) << 12 | u16::from(block.down[g * 4]) << 15;
        for l in 0..4 {
            out[2 + g * 4 + l] = block.rows[g * 4 + l] as u8;
            word |= (block.rows[g * 4 + l] >> 8) << (3 * l);
        }
        out[34 + 2 * g..36 + 2 * g].copy_from_slice(&word.to_le_bytes());
    }
}
