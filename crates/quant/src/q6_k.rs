//! Q6_K: 256 weights in 210 bytes; sub-block g of 16: weight = d · scale[g] · (quant − 32).
//!
//! ```text
//! 0                                          128                                       192             208  210
//! │ 2 × 64 bytes: nibble i | nibble i+64 « 4 │ 2 × 32 bytes: upper of i, +32, +64, +96 │ 16 × scale i8 │ d  │
//! ```

use crate::blocks::half;
use crate::search::levels::{self, IntegerLevels};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half(block, 208);
    for (g, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(block[192 + g] as i8);
        // A half of 128 weights has four lines of 32. Sub-block g is in half g/8, in line (g mod
        // 8)/2.
        let (part, line, start) = (g / 8, g % 8 / 2, g % 2 * 16);
        let low = &block[part * 64 + line % 2 * 32 + start..][..16];
        let high = &block[128 + part * 32 + start..][..16];
        let (low_shift, high_shift) = (line / 2 * 4, line * 2);
        for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
            let quant = ((low >> low_shift) & 15) | (((high >> high_shift) & 3) << 4);
            *out = scale * f32::from(quant as i8 - 32);
        }
    }
}

#[inline(always)]
pub(crate) fn search(x: &[f32; 256], importance: Option<&[f32]>, out: &mut [u8; 210]) {
    // Scales are signed bytes.
    let block = levels::super_block::<IntegerLevels<32>, 16, 16>(x, importance, 128.0);
    out[208..210].copy_from_slice(&block.d.to_le_bytes());
    for (out, scale) in out[192..208].iter_mut().zip(block.scales) {
        *out = scale as u8;
    }
    out[..192].fill(0);
    for (n, level) in block.levels.iter().enumerate() {
        let quant = (level + 32.0) as u8;
        let (part, line, l) = (n / 128, n % 128 / 32, n % 32);
        out[part * 64 + line % 2 * 32 + l] |= (quant & 15) << (line / 2 * 4);
        out[128 + part * 32 + l] |= (quant >> 4) << (2 * line);
    }
}
