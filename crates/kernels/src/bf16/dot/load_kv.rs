//! Cached rows as factors for vectors: rounded to bf16, a step of some rows at a time, and interleaved in pairs in the same pass.
#![allow(unsafe_code, reason = "vector instructions over addresses that callers keep in bounds")]

use super::{Block, K_STEP, LoadedKv, store_pairs};
use crate::attention::{load_part, scale_of, widen_codes};
use crate::bf16::layout::pair;
use crate::simd::avx512::Avx512;
use latent_types::CacheRow;
use std::arch::x86_64::*;

/// A step of `R` rows of a block as bf16: so many lines of `loaded.rows`, and their pairs. Rows and numbers that are missing are zeros.
///
/// # Safety
/// As for [`Bf16Dot::qk`](super::Bf16Dot::qk).
#[inline(always)]
pub(super) unsafe fn load_block<N: KvFormat, const R: usize>(
    block: &Block,
    first: usize,
    loaded: LoadedKv,
    step: usize,
) {
    let stored = &block.stored;
    if first + R <= block.count && step < N::beside(stored) {
        // SAFETY: rows and numbers are there, as just seen.
        return unsafe { load_block_whole::<N, R>(block, first, loaded, step) };
    }
    let mask = ((1u64 << (stored.width() - step * K_STEP).min(K_STEP)) - 1) as __mmask32;
    for two in (0..R).step_by(2) {
        // SAFETY: room by the caller's promise.
        unsafe {
            let mut lines = [_mm512_setzero_si512(); 2];
            for (line, row) in lines.iter_mut().zip(first + two..block.count) {
                *line = N::part(stored, block.row(row), step, mask);
            }
            put::<R>((block.count, first), loaded, step, two, lines);
        }
    }
}

/// [`load_block`] where all rows are there, of a step that is read beside products.
///
/// # Safety
/// As for [`Bf16Dot::qk`](super::Bf16Dot::qk).
#[inline(always)]
pub(super) unsafe fn load_block_whole<N: KvFormat, const R: usize>(
    block: &Block,
    first: usize,
    loaded: LoadedKv,
    step: usize,
) {
    let (stored, bytes) = (&block.stored, block.stored.bytes());
    let mut row = block.row(first);
    for two in (0..R).step_by(2) {
        // SAFETY: room by the caller's promise.
        unsafe {
            let lines = [N::whole(stored, row, step), N::whole(stored, row.wrapping_add(bytes), step)];
            put::<R>((block.count, first), loaded, step, two, lines);
        }
        row = row.wrapping_add(2 * bytes);
    }
}

/// Writes a step of two rows of `R`, the `two`-th on.
///
/// # Safety
/// As for [`Bf16Dot::qk`](super::Bf16Dot::qk).
#[inline(always)]
unsafe fn put<const R: usize>(
    (count, first): (usize, usize),
    loaded: LoadedKv,
    step: usize,
    two: usize,
    [a, b]: [__m512i; 2],
) {
    // SAFETY: a line of each row, and of each of two tiles of pairs.
    unsafe {
        let out = loaded.rows.add((step * R + two) * K_STEP);
        _mm512_storeu_si512(out.cast(), a);
        _mm512_storeu_si512(out.add(K_STEP).cast(), b);
        if step * K_STEP < loaded.latent {
            store_pairs(a, b, loaded.pair(count, first + two, step));
        }
    }
}

/// How numbers of cached rows become bf16.
pub(super) trait KvFormat {
    /// Bytes of a step of a row.
    const BYTES: usize;

    /// Steps of a row that [`whole`](KvFormat::whole) reads.
    fn beside(stored: &CacheRow) -> usize {
        stored.width() / K_STEP
    }

    /// One of these steps: few instructions.
    ///
    /// # Safety
    /// The row lies there; the processor has AVX-512 with BF16.
    #[inline(always)]
    unsafe fn whole(stored: &CacheRow, row: *const u8, step: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { Self::part(stored, row, step, !0) }
    }

    /// Any step of a row, where the mask has numbers.
    ///
    /// # Safety
    /// The row lies there, and has the numbers of the mask; the processor has AVX-512 with BF16.
    unsafe fn part(stored: &CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i;
}

/// 32 numbers of f16, where the mask has them.
///
/// # Safety
/// They lie there; the processor has AVX-512 with BF16.
#[inline(always)]
unsafe fn load_f16(from: *const u8, mask: __mmask32) -> __m512i {
    // SAFETY: the caller's promise; masked lanes are not read.
    unsafe {
        let halves = _mm512_maskz_loadu_epi16(mask, from.cast());
        let low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
        pair(low, _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(halves)))
    }
}

/// Rows of f16.
pub(super) struct F16;

impl KvFormat for F16 {
    const BYTES: usize = 2 * K_STEP;

    #[inline(always)]
    unsafe fn part(_: &CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { load_f16(row.wrapping_add(step * Self::BYTES), mask) }
    }
}

/// Rows of bf16.
pub(super) struct Bf16;

impl KvFormat for Bf16 {
    const BYTES: usize = 2 * K_STEP;

    #[inline(always)]
    unsafe fn part(_: &CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i {
        // SAFETY: the caller's promise; masked lanes are not read.
        unsafe { _mm512_maskz_loadu_epi16(mask, row.wrapping_add(step * Self::BYTES).cast()) }
    }
}

/// Rows whose latents are codes, before rope parts of f16.
pub(super) struct Int8;

impl KvFormat for Int8 {
    const BYTES: usize = K_STEP;

    fn beside(stored: &CacheRow) -> usize {
        let content = stored.content;
        if content.is_multiple_of(K_STEP) { stored.width() / K_STEP } else { content / K_STEP }
    }

    #[inline(always)]
    unsafe fn whole(stored: &CacheRow, row: *const u8, step: usize) -> __m512i {
        let (codes, number) = (stored.content, step * K_STEP);
        // SAFETY: the caller's promise: whole steps of codes, or of halves that begin with one.
        unsafe {
            if number >= codes {
                return load_f16(row.add(2 * number - codes), !0);
            }
            let scale = scale_of(std::slice::from_raw_parts(row, stored.bytes()));
            let codes = row.add(number);
            pair(widen_codes::<Avx512>(codes, scale), widen_codes::<Avx512>(codes.add(16), scale))
        }
    }

    #[inline(always)]
    unsafe fn part(stored: &CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { decoded(*stored, row, step, mask) }
    }
}

crate::isa::isa_fn! { Avx512Bf16;
/// A step of a row of any type: by way of f32.
///
/// # Safety
/// The row lies there, and has the numbers of the mask.
#[inline(never)]
unsafe fn decoded(stored: CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let row = std::slice::from_raw_parts(row, stored.bytes());
        let mut wide = [0.0; K_STEP];
        load_part(stored, row, step * K_STEP, &mut wide[..mask.trailing_ones() as usize]);
        pair(_mm512_loadu_ps(wide.as_ptr()), _mm512_loadu_ps(wide[16..].as_ptr()))
    }
}
}
