//! Q8_K: 256 weights in 292 bytes, weight = d · quant. The sums serve dot products and take no part in decoding.
//!
//! ```text
//! 0       4            260                                         292
//! │ d f32 │ byte i: i8 │ 16 × i16: sum of quants 16·g to 16·g + 15 │
//! ```

use crate::blocks::{bytes_at, extreme, inverse};

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(292).zip(out.chunks_exact_mut(256)) {
        let d = f32::from_le_bytes(bytes_at(block, 0));
        for (out, quant) in out.iter_mut().zip(&block[4..260]) {
            *out = d * f32::from(*quant as i8);
        }
    }
}

pub(crate) fn encode(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(292)) {
        let extreme = extreme(x);
        let id = if extreme == 0.0 { 0.0 } else { -127.0 / extreme };
        out[..4].copy_from_slice(&inverse(id).to_le_bytes());
        let mut sums = [0i16; 16];
        for (n, &v) in x.iter().enumerate() {
            let quant = (v * id).round().clamp(-128.0, 127.0) as i8;
            out[4 + n] = quant as u8;
            sums[n / 16] += i16::from(quant);
        }
        for (out, sum) in out[260..].chunks_exact_mut(2).zip(sums) {
            out.copy_from_slice(&sum.to_le_bytes());
        }
    }
}
