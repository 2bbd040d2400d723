//! Q3_K: 256 weights in 110 bytes; sub-block g of 16: weight = d · scale[g] · (quant − 4).
//!
//! ```text
//! 0                                      32                                         96                    108  110
//! │ byte i, bit l: third bit of i + 32·l │ 2 × 32 bytes: quants i, i+32, i+64, i+96 │ 16 scales of 6 bits │ d  │
//! ```
//!
//! [`crate::k_scales::unpack_q3_scales`] describes how scales are packed.

use crate::blocks::{bytes_at, half};
use crate::k_scales::{pack_q3_scales, unpack_q3_scales};
use crate::search::levels::{self, IntegerLevels};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half(block, 108);
    let scales = unpack_q3_scales(&bytes_at(block, 96));
    for (g, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[g]);
        // Lower bits are laid out as in Q2_K. Byte i of the third bits has bit l for weight i +
        // 32·l.
        let thirds = &block[g % 2 * 16..][..16];
        let quants = &block[32 + g / 8 * 32 + g % 2 * 16..][..16];
        let (shift, bit) = (g % 8 / 2 * 2, g / 2);
        for ((out, byte), third) in out.iter_mut().zip(quants).zip(thirds) {
            let quant = ((byte >> shift) & 3) | (((third >> bit) & 1) << 2);
            *out = scale * f32::from(quant as i8 - 4);
        }
    }
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 110]) {
    // Six-bit scales with the zero point 32.
    let block = levels::super_block::<IntegerLevels<4>, 16, 16>(x, importance, 32.0);
    out[96..108].copy_from_slice(&pack_q3_scales(&block.scales));
    out[108..110].copy_from_slice(&block.d.to_le_bytes());
    out[..96].fill(0);
    for (n, level) in block.levels.iter().enumerate() {
        let quant = (level + 4.0) as u8;
        out[32 + n / 128 * 32 + n % 32] |= (quant & 3) << (n % 128 / 32 * 2);
        out[n % 32] |= (quant >> 2) << (n / 32);
    }
}
