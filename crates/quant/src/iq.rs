//! IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S: decode only. Codes choose rows of a table ([`crate::grids`]).
//!
//! ```text
//! IQ2_XXS  d f16 | 8 × (4 × u8 row, u32: 4 × 7 bits of signs, 4 bits of scale)
//! IQ2_XS   d f16 | 32 × u16 (9 bits of row, 7 of signs) | 8 × two 4-bit scales
//! IQ2_S    d f16 | 32 × u8 row | 32 × u8 signs | 8 × four 2-bit upper rows | 8 × two 4-bit scales
//! IQ3_XXS  d f16 | 64 × u8 row | 8 × u32 (4 × 7 bits of signs, 4 bits of scale)
//! IQ3_S    d f16 | 64 × u8 row | 8 × eight upper bits | 32 × u8 signs | 4 × two 4-bit scales
//! IQ1_S    d f16 | 32 × u8 row | 8 × u16 (4 × 3 upper bits of row, 3 bits of scale, 1 of shift)
//! IQ1_M    32 × u8 row | 16 × two (3 upper bits of row, 1 of shift) | 4 × u16 (4 × 3 bits of scale, 4 bits of d)
//! ```

use crate::grids;
use half::f16;

const LEVELS_2: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
const LEVELS_3_XXS: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
const LEVELS_3_S: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
const LEVELS_1: [f32; 4] = [-1.0, 0.0, 1.0, 0.0];

/// How far IQ1 shifts its levels.
const DELTA: f32 = 0.125;

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn u16_at(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Eight signs from seven bits: the eighth makes their number even.
fn even_signs(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | ((bits.count_ones() as u8 & 1) << 7)
}

/// Numbers of one table row times scale and sign: as many as `out` has.
fn signed(out: &mut [f32], row: u16, bits: u32, levels: &[f32], scale: f32, signs: u8) {
    let mask = (1u16 << bits) - 1;
    for (i, out) in out.iter_mut().enumerate() {
        let level = levels[usize::from((row >> (bits * i as u32)) & mask)];
        let value = scale * level;
        *out = if (signs >> i) & 1 == 1 { -value } else { value };
    }
}

fn nibble(bytes: &[u8], i: usize) -> f32 {
    f32::from((bytes[i / 2] >> (4 * (i % 2))) & 15)
}

pub(crate) fn decode_iq2_xxs(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(66).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        for (g, out) in out.chunks_exact_mut(32).enumerate() {
            let rows = &block[2 + 8 * g..];
            let word = u32_at(block, 2 + 8 * g + 4);
            let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
            for (i, out) in out.chunks_exact_mut(8).enumerate() {
                signed(
                    out,
                    grids::IQ2_XXS[usize::from(rows[i])],
                    2,
                    &LEVELS_2,
                    scale,
                    even_signs(word >> (7 * i)),
                );
            }
        }
    }
}

pub(crate) fn decode_iq2_xs(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(74).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let code = u16_at(&block[2..66], i);
            let scale = d * (0.5 + nibble(&block[66..], i / 2)) * 0.25;
            let row = grids::IQ2_XS[usize::from(code & 511)];
            signed(out, row, 2, &LEVELS_2, scale, even_signs(u32::from(code >> 9)));
        }
    }
}

pub(crate) fn decode_iq2_s(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(82).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        let (rows, signs, high, scales) = (&block[2..34], &block[34..66], &block[66..74], &block[74..82]);
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let row = usize::from(rows[i]) | usize::from((high[i / 4] >> (2 * (i % 4))) & 3) << 8;
            let scale = d * (0.5 + nibble(scales, i / 2)) * 0.25;
            signed(out, grids::IQ2_S[row], 2, &LEVELS_2, scale, signs[i]);
        }
    }
}

pub(crate) fn decode_iq3_xxs(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(98).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        for (g, out) in out.chunks_exact_mut(32).enumerate() {
            let word = u32_at(block, 66 + 4 * g);
            let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
            for (i, out) in out.chunks_exact_mut(4).enumerate() {
                let row = grids::IQ3_XXS[usize::from(block[2 + 8 * g + i])];
                let signs = even_signs(word >> (7 * (i / 2))) >> (4 * (i % 2));
                signed(out, row, 3, &LEVELS_3_XXS, scale, signs);
            }
        }
    }
}

pub(crate) fn decode_iq3_s(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(110).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        let (rows, high, signs, scales) = (&block[2..66], &block[66..74], &block[74..106], &block[106..110]);
        for (i, out) in out.chunks_exact_mut(4).enumerate() {
            let row = usize::from(rows[i]) | usize::from((high[i / 8] >> (i % 8)) & 1) << 8;
            let scale = d * (1.0 + 2.0 * nibble(scales, i / 8));
            signed(out, grids::IQ3_S[row], 3, &LEVELS_3_S, scale, signs[i / 2] >> (4 * (i % 2)));
        }
    }
}

/// Numbers of one row of IQ1: scale · (level + shift).
fn shifted(out: &mut [f32], row: usize, scale: f32, negative: bool) {
    let delta = if negative { -DELTA } else { DELTA };
    for (i, out) in out.iter_mut().enumerate() {
        *out = scale * (LEVELS_1[usize::from((grids::IQ1[row] >> (2 * i)) & 3)] + delta);
    }
}

pub(crate) fn decode_iq1_s(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(50).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let high = u16_at(&block[34..50], i / 4);
            let scale = d * f32::from(2 * ((high >> 12) & 7) + 1);
            let row = usize::from(block[2 + i]) | usize::from((high >> (3 * (i % 4))) & 7) << 8;
            shifted(out, row, scale, high & 0x8000 != 0);
        }
    }
}

pub(crate) fn decode_iq1_m(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(56).zip(out.chunks_exact_mut(256)) {
        let scales = &block[48..56];
        let part = |i: usize| (u16_at(scales, i) & 0xf000) >> (12 - 4 * i);
        let d = f16::from_bits(part(0) | part(1) | part(2) | part(3)).to_f32();
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let high = block[32 + i / 2] >> (4 * (i % 2));
            let scale = (u16_at(scales, i / 8) >> (3 * (i / 2 % 4))) & 7;
            let row = usize::from(block[i]) | usize::from(high & 7) << 8;
            shifted(out, row, d * f32::from(2 * scale + 1), high & 8 != 0);
        }
    }
}
