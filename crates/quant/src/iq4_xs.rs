//! IQ4_XS: 256 weights in 136 bytes; sub-block g of 32: weight = d · (scale[g] − 32) · VALUES[quant].
//!
//! ```text
//! 0   2                              4                             8                                             136
//! │ d │ u16: upper 2 bits of scale g │ byte i: low 4 bits of scale │ 8 × 16 bytes: quant i | quant i+16 « 4 of g │
//! │   │ at bit 2·g                   │ 2·i | of scale 2·i+1 « 4    │ (values: those of IQ4_NL)                   │
//! ```

use crate::blocks::{bytes_at, extreme, half, nibbles, put_half, put_nibbles};
use crate::iq4_nl::{VALUES, fit, quants};
use crate::k_search::safe_inverse;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(136).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        let upper = u16::from_le_bytes(bytes_at(block, 2));
        for (g, out) in out.chunks_exact_mut(32).enumerate() {
            let low = (block[4 + g / 2] >> (g % 2 * 4)) & 15;
            let high = ((upper >> (2 * g)) & 3) as u8;
            let scale = d * f32::from((low | (high << 4)) as i8 - 32);
            for (out, quant) in out.iter_mut().zip(nibbles(&block[8 + g * 16..])) {
                *out = scale * f32::from(VALUES[usize::from(quant)]);
            }
        }
    }
}

pub(crate) fn encode(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(136)) {
        let fits: [f32; 8] = std::array::from_fn(|g| fit(&x[g * 32..(g + 1) * 32]));
        let d = put_half(out, 0, extreme(&fits) / -32.0);
        let id = safe_inverse(d);
        let mut upper = 0u16;
        out[4..8].fill(0);
        for (g, x) in x.chunks_exact(32).enumerate() {
            let scale = (fits[g] * id).round().clamp(-32.0, 31.0);
            let bits = (scale + 32.0) as u8;
            upper |= u16::from(bits >> 4) << (2 * g);
            out[4 + g / 2] |= (bits & 15) << (g % 2 * 4);
            put_nibbles(&mut out[8 + g * 16..], &quants(x, d * scale));
        }
        out[2..4].copy_from_slice(&upper.to_le_bytes());
    }
}
