//! Dot products of codes in AVX2 and AVX-512.
#![allow(unsafe_code, reason = "intrinsics; the shells in `tiers` have checked that the processor has them")]

use super::body::{DotCodes, sum_strands};
use std::arch::x86_64::*;

/// 256 bits at a time.
pub(super) struct Avx2;

/// 512 bits at a time.
pub(super) struct Avx512;

impl DotCodes for Avx512 {
    #[inline(always)]
    fn products(codes: &[i8], scales: &[f32], inputs: &[i8], input_scales: &[f32]) -> f32 {
        // SAFETY: only reached from a shell that has checked for AVX-512.
        unsafe { products_avx512(codes, scales, inputs, input_scales) }
    }
}

impl DotCodes for Avx2 {
    #[inline(always)]
    fn products(codes: &[i8], scales: &[f32], inputs: &[i8], input_scales: &[f32]) -> f32 {
        // SAFETY: only reached from a shell that has checked for AVX2.
        unsafe { products_avx2(codes, scales, inputs, input_scales) }
    }
}

/// Blocks that all four slices hold.
#[inline(always)]
fn blocks(codes: &[i8], scales: &[f32], inputs: &[i8], input_scales: &[f32]) -> usize {
    (codes.len() / 32).min(inputs.len() / 32).min(scales.len() / 2).min(input_scales.len())
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
fn products_avx512(codes: &[i8], scales: &[f32], inputs: &[i8], input_scales: &[f32]) -> f32 {
    let mut strands = _mm512_setzero_ps();
    for b in 0..blocks(codes, scales, inputs, input_scales) {
        // SAFETY: block b lies inside all four slices.
        unsafe {
            let c = _mm512_cvtepi8_epi16(_mm256_loadu_si256(codes.as_ptr().add(b * 32).cast()));
            let v = _mm512_cvtepi8_epi16(_mm256_loadu_si256(inputs.as_ptr().add(b * 32).cast()));
            let pairs = _mm512_cvtepi32_ps(_mm512_madd_epi16(c, v));
            let input = *input_scales.get_unchecked(b);
            let low = _mm512_set1_ps(*scales.get_unchecked(2 * b) * input);
            let high = _mm512_set1_ps(*scales.get_unchecked(2 * b + 1) * input);
            let scale = _mm512_mask_blend_ps(0xff00, low, high);
            // not fused, so that every tier rounds alike
            strands = _mm512_add_ps(strands, _mm512_mul_ps(pairs, scale));
        }
    }
    let mut all = [0.0; 16];
    // SAFETY: sixteen numbers.
    unsafe { _mm512_storeu_ps(all.as_mut_ptr(), strands) };
    sum_strands(all)
}

#[inline]
#[target_feature(enable = "avx2")]
fn products_avx2(codes: &[i8], scales: &[f32], inputs: &[i8], input_scales: &[f32]) -> f32 {
    let mut first = _mm256_setzero_ps();
    let mut second = _mm256_setzero_ps();
    for b in 0..blocks(codes, scales, inputs, input_scales) {
        // SAFETY: block b lies inside all four slices.
        unsafe {
            let half = |bytes: &[i8], at: usize| {
                _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes.as_ptr().add(at).cast()))
            };
            let pairs = |at: usize| _mm256_cvtepi32_ps(_mm256_madd_epi16(half(codes, at), half(inputs, at)));
            let input = *input_scales.get_unchecked(b);
            let low = _mm256_set1_ps(*scales.get_unchecked(2 * b) * input);
            let high = _mm256_set1_ps(*scales.get_unchecked(2 * b + 1) * input);
            first = _mm256_add_ps(first, _mm256_mul_ps(pairs(b * 32), low));
            second = _mm256_add_ps(second, _mm256_mul_ps(pairs(b * 32 + 16), high));
        }
    }
    let mut all = [0.0; 16];
    // SAFETY: twice eight numbers.
    unsafe {
        _mm256_storeu_ps(all.as_mut_ptr(), first);
        _mm256_storeu_ps(all.as_mut_ptr().add(8), second);
    }
    sum_strands(all)
}
