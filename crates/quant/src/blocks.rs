//! Helpers of the block formats: f16 fields, nibbles, fifth bits, scales.

use half::f16;

/// Dequantizes consecutive blocks.
#[inline(always)]
pub(crate) fn decode_blocks<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    // Arrays of constant length, so that each format's loops are unrolled and need no bounds
    // checks.
    for (block, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        decode(block, out);
    }
}

/// Quantizes consecutive blocks.
#[inline(always)]
pub(crate) fn encode_blocks<const BYTES: usize, const LEN: usize>(
    numbers: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    encode: impl Fn(&[f32; LEN], Option<&[f32]>, &mut [u8; BYTES]),
) {
    for (n, (numbers, out)) in numbers.as_chunks().0.iter().zip(out.as_chunks_mut().0).enumerate() {
        encode(numbers, importance.map(|all| &all[n * LEN..(n + 1) * LEN]), out);
    }
}

/// The f16 at a byte offset, as f32.
#[inline(always)]
pub(crate) fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Stores a value as f16.
pub(crate) fn put_half(out: &mut [u8], at: usize, value: f32) {
    out[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// `N` bytes from an offset.
#[inline(always)]
pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

/// The 32 quants of 16 bytes: low nibbles are quants 0–15, high nibbles 16–31.
#[inline(always)]
pub(crate) fn nibbles(bytes: &[u8]) -> [u8; 32] {
    let bytes: [u8; 16] = bytes_at(bytes, 0);
    let mut quants = [0; 32];
    for i in 0..16 {
        quants[i] = bytes[i] & 15;
        quants[i + 16] = bytes[i] >> 4;
    }
    quants
}

/// The inverse of [`nibbles`]; stores the low four bits of each quant.
pub(crate) fn put_nibbles(out: &mut [u8], quants: &[u8; 32]) {
    for i in 0..16 {
        out[i] = (quants[i] & 15) | ((quants[i + 16] & 15) << 4);
    }
}

/// The 32 quants of a fifth-bit word at `high` and 16 bytes of nibbles at `low`: bit i is the fifth
/// bit of quant i.
#[inline(always)]
pub(crate) fn five_bits(block: &[u8], high: usize, low: usize) -> [u8; 32] {
    let word = u32::from_le_bytes(bytes_at(block, high));
    let mut quants = nibbles(&block[low..]);
    for (i, quant) in quants.iter_mut().enumerate() {
        *quant |= ((word >> i) as u8 & 1) << 4;
    }
    quants
}

/// The inverse of [`five_bits`].
pub(crate) fn put_five_bits(block: &mut [u8], high: usize, low: usize, quants: &[u8; 32]) {
    let word =
        quants.iter().enumerate().fold(0u32, |word, (i, quant)| word | (u32::from(quant >> 4) & 1) << i);
    block[high..high + 4].copy_from_slice(&word.to_le_bytes());
    put_nibbles(&mut block[low..], quants);
}

/// The value of the largest magnitude, with its sign; the first of equals. Skips NaN.
pub(crate) fn extreme(numbers: &[f32]) -> f32 {
    // A comparison with NaN is false.
    numbers.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m })
}

/// 1 / d, or 0 for a scale of 0, so that all quants become the zero point.
pub(crate) fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Smallest and largest value. Skips NaN; a block of NaN alone gives infinities.
pub(crate) fn bounds(numbers: &[f32]) -> (f32, f32) {
    numbers.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)))
}

/// Scale and quants with the constant zero point `middle`. As in ggml, the value of largest
/// magnitude becomes quant 0: there is one more level below the zero point than above.
pub(crate) fn symmetric(numbers: &[f32; 32], middle: f32) -> (f32, [u8; 32]) {
    let d = extreme(numbers) / -middle;
    let id = inverse(d);
    // Adding ½ and truncating rounds halves up, as ggml does. The inverse is that of the exact
    // scale, not of the stored f16, also as in ggml.
    let quant = |i: usize| (numbers[i] * id + (middle + 0.5)).clamp(0.0, 2.0 * middle - 1.0) as u8;
    (d, std::array::from_fn(quant))
}

/// Scale, min and quants from 0 to `levels`.
pub(crate) fn with_minimum(numbers: &[f32; 32], levels: f32) -> (f32, f32, [u8; 32]) {
    let (min, max) = bounds(numbers);
    let d = (max - min) / levels;
    let id = inverse(d);
    (d, min, std::array::from_fn(|i| ((numbers[i] - min) * id + 0.5).clamp(0.0, levels) as u8))
}
