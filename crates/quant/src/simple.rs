//! The formats of 32 numbers: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! ```text
//! Q4_0  d f16 | 16 × (code i, code i + 16)          number = d · (code − 8)
//! Q4_1  d f16 | m f16 | 16 × nibbles                number = d · code + m
//! Q5_0  d f16 | fifth bits u32 | 16 × nibbles       number = d · (code − 16)
//! Q5_1  d f16 | m f16 | fifth bits u32 | 16 × nibbles  number = d · code + m
//! Q8_0  d f16 | 32 × i8                             number = d · code
//! ```

use half::f16;

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn put_half(out: &mut [u8], at: usize, value: f32) {
    out[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Nibbles: the low halves are numbers 0–15, the high halves 16–31.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 }
}

pub(crate) fn decode_q4_0(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(18).zip(out.chunks_exact_mut(32)) {
        let d = half(block, 0);
        for (i, out) in out.iter_mut().enumerate() {
            *out = d * (f32::from(nibble(&block[2..], i)) - 8.0);
        }
    }
}

pub(crate) fn decode_q4_1(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(20).zip(out.chunks_exact_mut(32)) {
        let (d, m) = (half(block, 0), half(block, 2));
        for (i, out) in out.iter_mut().enumerate() {
            *out = d * f32::from(nibble(&block[4..], i)) + m;
        }
    }
}

fn fifth(block: &[u8], at: usize, i: usize) -> u8 {
    ((block[at + i / 8] >> (i % 8)) & 1) << 4
}

pub(crate) fn decode_q5_0(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(22).zip(out.chunks_exact_mut(32)) {
        let d = half(block, 0);
        for (i, out) in out.iter_mut().enumerate() {
            *out = d * (f32::from(nibble(&block[6..], i) | fifth(block, 2, i)) - 16.0);
        }
    }
}

pub(crate) fn decode_q5_1(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(24).zip(out.chunks_exact_mut(32)) {
        let (d, m) = (half(block, 0), half(block, 2));
        for (i, out) in out.iter_mut().enumerate() {
            *out = d * f32::from(nibble(&block[8..], i) | fifth(block, 4, i)) + m;
        }
    }
}

pub(crate) fn decode_q8_0(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(34).zip(out.chunks_exact_mut(32)) {
        let d = half(block, 0);
        for (out, code) in out.iter_mut().zip(&block[2..]) {
            *out = d * f32::from(*code as i8);
        }
    }
}

/// The number of the largest magnitude, with its sign.
fn extreme(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m })
}

fn bounds(numbers: &[f32]) -> (f32, f32) {
    numbers.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)))
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Writes codes 0–15 as nibbles.
fn put_nibbles(out: &mut [u8], codes: &[u8; 32]) {
    for i in 0..16 {
        out[i] = (codes[i] & 15) | ((codes[i + 16] & 15) << 4);
    }
}

fn put_fifth(out: &mut [u8], codes: &[u8; 32]) {
    out[..4].fill(0);
    for (i, code) in codes.iter().enumerate() {
        out[i / 8] |= ((code >> 4) & 1) << (i % 8);
    }
}

fn symmetric(numbers: &[f32], middle: f32) -> (f32, [u8; 32]) {
    let d = extreme(numbers) / -middle;
    let id = inverse(d);
    let code = |i: usize| (numbers[i] * id + middle + 0.5).clamp(0.0, 2.0 * middle - 1.0) as u8;
    (d, std::array::from_fn(code))
}

fn with_minimum(numbers: &[f32], levels: f32) -> (f32, f32, [u8; 32]) {
    let (min, max) = bounds(numbers);
    let d = (max - min) / levels;
    let id = inverse(d);
    (d, min, std::array::from_fn(|i| ((numbers[i] - min) * id + 0.5).clamp(0.0, levels) as u8))
}

pub(crate) fn encode_q4_0(numbers: &[f32], out: &mut [u8]) {
    for (numbers, out) in numbers.chunks_exact(32).zip(out.chunks_exact_mut(18)) {
        let (d, codes) = symmetric(numbers, 8.0);
        put_half(out, 0, d);
        put_nibbles(&mut out[2..], &codes);
    }
}

pub(crate) fn encode_q4_1(numbers: &[f32], out: &mut [u8]) {
    for (numbers, out) in numbers.chunks_exact(32).zip(out.chunks_exact_mut(20)) {
        let (d, m, codes) = with_minimum(numbers, 15.0);
        put_half(out, 0, d);
        put_half(out, 2, m);
        put_nibbles(&mut out[4..], &codes);
    }
}

pub(crate) fn encode_q5_0(numbers: &[f32], out: &mut [u8]) {
    for (numbers, out) in numbers.chunks_exact(32).zip(out.chunks_exact_mut(22)) {
        let (d, codes) = symmetric(numbers, 16.0);
        put_half(out, 0, d);
        put_fifth(&mut out[2..], &codes);
        put_nibbles(&mut out[6..], &codes);
    }
}

pub(crate) fn encode_q5_1(numbers: &[f32], out: &mut [u8]) {
    for (numbers, out) in numbers.chunks_exact(32).zip(out.chunks_exact_mut(24)) {
        let (d, m, codes) = with_minimum(numbers, 31.0);
        put_half(out, 0, d);
        put_half(out, 2, m);
        put_fifth(&mut out[4..], &codes);
        put_nibbles(&mut out[8..], &codes);
    }
}

pub(crate) fn encode_q8_0(numbers: &[f32], out: &mut [u8]) {
    for (numbers, out) in numbers.chunks_exact(32).zip(out.chunks_exact_mut(34)) {
        let d = extreme(numbers).abs() / 127.0;
        let id = inverse(d);
        put_half(out, 0, d);
        for (out, v) in out[2..].iter_mut().zip(numbers) {
            *out = (v * id).round() as i8 as u8;
        }
    }
}
