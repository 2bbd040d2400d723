//! The quantized content of cached rows, per type, in scalar code and in vectors.

use crate::activation::code_scale;
use crate::simd::Simd;
use half::f16;
use latent_quant::f8_e4m3;
use latent_types::{CACHE_BLOCK, CacheType};

/// Quants of `int8` are stored biased by 128 (offset binary): VNNI multiplies unsigned by signed
/// bytes, and the queries are the signed operand.
const QUANT_BIAS: f32 = 128.0;

/// Zero point of `q4_0`.
const MIDDLE: f32 = 8.0;

/// The largest finite F8_E4M3.
const FP8_MAX: f32 = 448.0;

/// [`Simd::load_fp8_row`] divides by this. It is a power of two, so multiplying a row's scale with
/// it first changes no bits of the result.
const FP8_SCALE: f32 = 256.0;

/// 1.5 · 2^23: adding it rounds to the nearest integer, ties to even, and leaves the integer in the
/// low bits.
const ROUNDING: f32 = 12_582_912.0;

/// Quantizes the content of a row; `scale` receives the row's scale in types that have one.
pub(super) fn store(ty: CacheType, elements: &[f32], out: &mut [u8], scale: &mut [u8]) {
    let row_scale = match ty {
        CacheType::Q8_0 => return blocks(elements, out, quantize_q8),
        CacheType::Q4_0 => return blocks(elements, out, quantize_q4),
        CacheType::Fp8 => quantize_fp8(elements, out),
        _ => quantize_int8(elements, out),
    };
    scale.copy_from_slice(&row_scale.to_le_bytes());
}

/// The largest magnitude; NaN if an element is NaN.
#[inline(always)]
fn largest(elements: &[f32]) -> f32 {
    // Bits of magnitudes compare like integers, and those of NaN are the largest.
    // As signed integers, since baseline x86-64 (SSE2) compares no unsigned ones.
    let largest = elements.iter().map(|v| (v.to_bits() & 0x7fff_ffff).cast_signed()).fold(0, i32::max);
    f32::from_bits(largest.cast_unsigned())
}

/// Quantizes to −127 … 127, biased by 128. Returns the scale.
#[inline(always)]
fn quantize_int8(elements: &[f32], quants: &mut [u8]) -> f32 {
    let Some((scale, inverse)) = code_scale(largest(elements)) else {
        quants.fill(QUANT_BIAS as u8);
        return f32::NAN;
    };
    for (quant, v) in quants.iter_mut().zip(elements) {
        // Flipping bit 7 adds the bias.
        *quant = ((v * inverse + ROUNDING).to_bits() as u8) ^ 0x80;
    }
    scale
}

/// Quantizes to F8_E4M3 such that the largest magnitude becomes [`FP8_MAX`]. Returns the scale.
#[inline(always)]
fn quantize_fp8(elements: &[f32], codes: &mut [u8]) -> f32 {
    let largest = largest(elements);
    if !largest.is_finite() {
        codes.fill(0);
        return f32::NAN;
    }
    let inverse = FP8_MAX / largest;
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    for (code, v) in codes.iter_mut().zip(elements) {
        *code = fp8_code(v * inverse);
    }
    largest / FP8_MAX
}

/// The code nearest to a number of at most about 448, ties to even. Branch-free, so that the loop
/// over a row vectorizes.
#[inline(always)]
fn fp8_code(number: f32) -> u8 {
    let bits = number.to_bits();
    let size = f32::from_bits(bits & 0x7fff_ffff);
    // Below 2^-6, the smallest normal number, a code is a multiple of 2^-9.
    let small = (size * 512.0 + ROUNDING).to_bits() & 0xff;
    // Above, round the mantissa to three bits, and replace f32's exponent bias of 127 by 7. 0x7e is
    // 448; the next code, 0x7f, is NaN.
    let rounded = (size.to_bits() + 0x7_ffff + (size.to_bits() >> 20 & 1)) >> 20;
    let normal = rounded.wrapping_sub(120 << 3).min(0x7e);
    let code = if size < 0.015_625 { small } else { normal };
    code as u8 | (bits >> 24) as u8 & 0x80
}

/// Quantizes blocks of 32 elements; the last one is padded with zeros.
#[inline(always)]
fn blocks(elements: &[f32], out: &mut [u8], quantize: impl Fn(&[f32; CACHE_BLOCK], &mut [u8]) -> f16) {
    let bytes = out.len() / elements.len().div_ceil(CACHE_BLOCK).max(1);
    for (elements, out) in elements.chunks(CACHE_BLOCK).zip(out.chunks_exact_mut(bytes.max(1))) {
        let mut block = [0.0; CACHE_BLOCK];
        block[..elements.len()].copy_from_slice(elements);
        let (scale, quants) = out.split_at_mut(size_of::<f16>());
        scale.copy_from_slice(&quantize(&block, quants).to_le_bytes());
    }
}

/// The scale as f16, and its inverse; NaN and 0 for a block that is not finite.
#[inline(always)]
fn block_scale(scale: f32) -> (f16, f32) {
    // The inverse of the rounded scale: dequantization multiplies by the rounded one. It is
    // infinite for a scale that rounds to 0.
    let stored = f16::from_f32(scale);
    let inverse = stored.to_f32().recip();
    match stored.is_finite() {
        true => (stored, if inverse.is_finite() { inverse } else { 0.0 }),
        false => (f16::NAN, 0.0),
    }
}

#[inline(always)]
fn quantize_q8(elements: &[f32; CACHE_BLOCK], quants: &mut [u8]) -> f16 {
    let (scale, inverse) = block_scale(largest(elements) / 127.0);
    for (quant, v) in quants.iter_mut().zip(elements) {
        // A scale that was rounded down to f16 may map the largest element to 128, which wraps to
        // −128.
        *quant = ((v * inverse).clamp(-127.0, 127.0) + ROUNDING).to_bits() as u8;
    }
    scale
}

/// The element of the largest magnitude becomes −8, as in GGUF files: the range is −8 to 7, so this
/// sign uses all of it.
#[inline(always)]
fn quantize_q4(elements: &[f32; CACHE_BLOCK], quants: &mut [u8]) -> f16 {
    let all = largest(elements);
    let extreme = elements.iter().copied().find(|v| v.abs() == all).unwrap_or(all);
    let (scale, inverse) = block_scale(extreme / -MIDDLE);
    let quant =
        |v: f32| (((v * inverse).clamp(-MIDDLE, MIDDLE - 1.0) + MIDDLE + ROUNDING).to_bits() & 15) as u8;
    for (i, byte) in quants.iter_mut().enumerate() {
        *byte = quant(elements[i]) | quant(elements[i + CACHE_BLOCK / 2]) << 4;
    }
    scale
}

#[inline(always)]
fn scale_at(block: &[u8]) -> f32 {
    crate::widen::f16(u16::from_le_bytes([block[0], block[1]]))
}

/// Dequantizes elements of the content from `first` on; `scale` is the row's, in types that have
/// one.
#[inline(always)]
pub(super) fn load(ty: CacheType, content: &[u8], scale: f32, first: usize, out: &mut [f32]) {
    let len = out.len();
    match ty {
        CacheType::Q8_0 => {
            in_blocks(2 + CACHE_BLOCK, content, first, out, |block, i| f32::from(block[2 + i].cast_signed()))
        }
        CacheType::Q4_0 => in_blocks(2 + CACHE_BLOCK / 2, content, first, out, |block, i| {
            let byte = block[2 + i % (CACHE_BLOCK / 2)];
            f32::from(if i < CACHE_BLOCK / 2 { byte & 15 } else { byte >> 4 }) - MIDDLE
        }),
        CacheType::Fp8 => {
            for (out, code) in out.iter_mut().zip(&content[first..first + len]) {
                *out = f8_e4m3::value(*code) * scale;
            }
        }
        _ => {
            for (out, quant) in out.iter_mut().zip(&content[first..first + len]) {
                *out = (f32::from(*quant) - QUANT_BIAS) * scale;
            }
        }
    }
}

#[inline(always)]
fn in_blocks(
    bytes: usize,
    content: &[u8],
    first: usize,
    out: &mut [f32],
    quant: impl Fn(&[u8], usize) -> f32,
) {
    let (mut at, mut rest) = (first, out);
    while !rest.is_empty() {
        let block = &content[at / CACHE_BLOCK * bytes..][..bytes];
        let (scale, from) = (scale_at(block), at % CACHE_BLOCK);
        let (now, later) = rest.split_at_mut(rest.len().min(CACHE_BLOCK - from));
        at += now.len();
        for (i, out) in now.iter_mut().enumerate() {
            *out = quant(block, from + i) * scale;
        }
        rest = later;
    }
}

/// (quant − zero) · scale.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
unsafe fn scaled<S: Simd>(quants: S::F32x16, zero: f32, scale: f32) -> S::F32x16 {
    // SAFETY: the caller is compiled for `S`.
    unsafe {
        // Quants are small integers, so the difference is exact with and without FMA, and the bits
        // are the same on every ISA.
        let centered = S::mul_add_relaxed(quants, S::splat_f32(1.0), S::splat_f32(-zero));
        S::mul(centered, S::splat_f32(scale))
    }
}

/// Dequantizes 32 elements of the content from `at` on, a multiple of 32; `scale` is the row's, in
/// types that have one.
///
/// # Safety
/// As for [`Simd`]; the content has these elements.
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
pub(crate) unsafe fn dequantize32<S: Simd>(
    ty: CacheType,
    content: *const u8,
    at: usize,
    scale: f32,
) -> [S::F32x16; 2] {
    let (elements, bytes) = ty.block().unwrap_or((1, 1));
    let from = content.wrapping_add(at / elements * bytes);
    // SAFETY: the content has the bytes of 32 elements and their scale, and the caller is compiled
    // for `S`, by this function's contract.
    unsafe {
        match ty {
            CacheType::Q8_0 => {
                let scale = S::splat_f32(scale_at(&from.cast::<[u8; 2]>().read()));
                let quants = from.add(2);
                [S::mul(S::load_i8(quants), scale), S::mul(S::load_i8(quants.add(16)), scale)]
            }
            CacheType::Q4_0 => {
                let scale = scale_at(&from.cast::<[u8; 2]>().read());
                let quants = from.add(2);
                [
                    scaled::<S>(S::load_u8(quants, 0, 15), MIDDLE, scale),
                    scaled::<S>(S::load_u8(quants, 4, 15), MIDDLE, scale),
                ]
            }
            CacheType::Fp8 => {
                let scale = S::splat_f32(FP8_SCALE * scale);
                [S::mul(S::load_fp8_row(from), scale), S::mul(S::load_fp8_row(from.add(16)), scale)]
            }
            _ => [
                scaled::<S>(S::load_u8(from, 0, 0xff), QUANT_BIAS, scale),
                scaled::<S>(S::load_u8(from.add(16), 0, 0xff), QUANT_BIAS, scale),
            ],
        }
    }
}

/// [`load`] of all elements, in vectors.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
pub(super) unsafe fn widen<S: Simd>(ty: CacheType, content: &[u8], scale: f32, out: &mut [f32]) {
    let (elements, bytes) = ty.block().unwrap_or((1, 1));
    assert!(content.len() >= out.len().div_ceil(elements) * bytes, "{} elements of {ty}", out.len());
    let whole = out.len() / CACHE_BLOCK * CACHE_BLOCK;
    let (vectors, rest) = out.split_at_mut(whole);
    macro_rules! each {
        ($ty:expr) => {
            for (i, out) in vectors.chunks_exact_mut(CACHE_BLOCK).enumerate() {
                // SAFETY: 32 elements at `out`, whose quants the content has, as asserted; the
                // caller is compiled for `S`.
                unsafe {
                    let [low, high] = dequantize32::<S>($ty, content.as_ptr(), i * CACHE_BLOCK, scale);
                    S::store_f32(out.as_mut_ptr(), low);
                    S::store_f32(out.as_mut_ptr().add(16), high);
                }
            }
        };
    }
    // A constant type for each loop, so that the `match` in `dequantize32` is resolved at compile
    // time.
    match ty {
        CacheType::Q8_0 => each!(CacheType::Q8_0),
        CacheType::Q4_0 => each!(CacheType::Q4_0),
        CacheType::Fp8 => each!(CacheType::Fp8),
        _ => each!(CacheType::Int8),
    }
    load(ty, content, scale, whole, rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_fp8_are_the_nearest() {
        for step in -9000..=9000i32 {
            for number in [step as f32 / 20.0, step as f32 / 300_000.0, step as f32 / 64.0] {
                let number = number.clamp(-FP8_MAX, FP8_MAX);
                let (found, truth) = (fp8_code(number), f8_e4m3::code(number));
                assert!(f8_e4m3::value(found) == f8_e4m3::value(truth), "{number}: {found:#x}, {truth:#x}");
            }
        }
        for code in (0..=255u8).filter(|code| code & 0x7f != 0x7f) {
            let value = f8_e4m3::value(code);
            assert_eq!(f8_e4m3::value(fp8_code(value)), value, "{code:#x}");
        }
    }
}
