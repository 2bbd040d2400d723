//! What the block formats share: f16 fields, nibbles, extremes, the inverse of a scale.

use half::f16;

/// The f16 at a byte offset, as f32.
#[inline(always)]
pub(crate) fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Stores a number as f16 and returns what was stored: encoders choose codes against that, not against the exact scale.
pub(crate) fn put_half(out: &mut [u8], at: usize, value: f32) -> f32 {
    let rounded = f16::from_f32(value);
    out[at..at + 2].copy_from_slice(&rounded.to_le_bytes());
    rounded.to_f32()
}

/// `N` bytes from an offset.
#[inline(always)]
pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

/// The 32 codes of 16 bytes: the low nibbles are numbers 0–15, the high nibbles 16–31.
#[inline(always)]
pub(crate) fn nibbles(bytes: &[u8]) -> [u8; 32] {
    let bytes: [u8; 16] = bytes_at(bytes, 0);
    let mut codes = [0; 32];
    for i in 0..16 {
        codes[i] = bytes[i] & 15;
        codes[i + 16] = bytes[i] >> 4;
    }
    codes
}

/// The inverse of [`nibbles`]; only the low four bits of a code are stored.
pub(crate) fn put_nibbles(out: &mut [u8], codes: &[u8; 32]) {
    for i in 0..16 {
        out[i] = (codes[i] & 15) | ((codes[i + 16] & 15) << 4);
    }
}

/// The 32 codes of a fifth-bit word at `high` and 16 bytes of nibbles at `low`: bit i belongs to number i.
#[inline(always)]
pub(crate) fn five_bits(block: &[u8], high: usize, low: usize) -> [u8; 32] {
    let word = u32::from_le_bytes(bytes_at(block, high));
    let mut codes = nibbles(&block[low..]);
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= ((word >> i) as u8 & 1) << 4;
    }
    codes
}

/// The inverse of [`five_bits`].
pub(crate) fn put_five_bits(block: &mut [u8], high: usize, low: usize, codes: &[u8; 32]) {
    let word = codes.iter().enumerate().fold(0u32, |word, (i, code)| word | (u32::from(code >> 4) & 1) << i);
    block[high..high + 4].copy_from_slice(&word.to_le_bytes());
    put_nibbles(&mut block[low..], codes);
}

/// The number of the largest magnitude, with its sign; the first of equals. NaN is passed over.
pub(crate) fn extreme(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m })
}

/// Smallest and largest number. NaN is passed over; a block of nothing else gives infinities.
pub(crate) fn bounds(numbers: &[f32]) -> (f32, f32) {
    numbers.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)))
}

/// 1 / d, or 0 for a scale of 0: its codes are then all the middle one.
pub(crate) fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Scale and codes around a middle code: the number of largest magnitude becomes code 0, as the field does it.
pub(crate) fn symmetric(numbers: &[f32], middle: f32) -> (f32, [u8; 32]) {
    let d = extreme(numbers) / -middle;
    let id = inverse(d);
    let code = |i: usize| (numbers[i] * id + (middle + 0.5)).clamp(0.0, 2.0 * middle - 1.0) as u8;
    (d, std::array::from_fn(code))
}

/// Scale, minimum and codes from 0 to `levels`.
pub(crate) fn with_minimum(numbers: &[f32], levels: f32) -> (f32, f32, [u8; 32]) {
    let (min, max) = bounds(numbers);
    let d = (max - min) / levels;
    let id = inverse(d);
    (d, min, std::array::from_fn(|i| ((numbers[i] - min) * id + 0.5).clamp(0.0, levels) as u8))
}
