//! Q8_K: 256 weights in 292 bytes, weight = d · quant. The sums are for dot products in ggml;
//! decoding ignores them.
//!
//! ```text
//! 0       4            260                                         292
//! │ d f32 │ byte i: i8 │ 16 × i16: sum of quants 16·g to 16·g + 15 │
//! ```

use crate::blocks::{bytes_at, extreme, inverse};

#[inline(always)]
pub(crate) fn decode(block: &[u8; 292], out: &mut [f32; 256]) {
    let d = f32::from_le_bytes(bytes_at(block, 0));
    for (out, quant) in out.iter_mut().zip(&block[4..260]) {
        *out = d * f32::from(*quant as i8);
    }
}

/// The only encoding; importances are ignored.
#[inline(always)]
pub(crate) fn search(x: &[f32; 256], _: Option<&[f32]>, out: &mut [u8; 292]) {
    let extreme = extreme(x);
    // As in ggml, the extreme weight becomes −127, so that d has the opposite sign.
    let id = if extreme == 0.0 { 0.0 } else { -127.0 / extreme };
    out[..4].copy_from_slice(&inverse(id).to_le_bytes());
    let mut sums = [0i16; 16];
    for (n, &v) in x.iter().enumerate() {
        // The weight opposite to the extreme one may be as large, and rounds to 127 at most.
        let quant = (v * id).round().clamp(-128.0, 127.0) as i8;
        out[4 + n] = quant as u8;
        sums[n / 16] += i16::from(quant);
    }
    for (out, sum) in out[260..].chunks_exact_mut(2).zip(sums) {
        out.copy_from_slice(&sum.to_le_bytes());
    }
}
