//! Loading of cached rows for AVX512-BF16: converts some rows × one k-step at a time to bf16, and
//! interleaves them in pairs in the same pass.
#![allow(unsafe_code, reason = "vector instructions over addresses that callers keep in bounds")]

use super::{CachedRows, K_STEP, LoadedKv, store_pairs};
use crate::bf16::layout::pair;
use crate::kv_cache::{dequantize32, load_part, scale_of};
use crate::simd::avx512::Avx512;
use latent_types::{CacheRow, CacheType};
use std::arch::x86_64::*;

/// Loads a k-step of `R` rows: `R` lines of `loaded.rows`, and their pairs. Missing rows and
/// elements become zeros.
///
/// # Safety
/// As for [`Bf16Dot::qk`](super::Bf16Dot::qk).
#[inline(always)]
pub(super) unsafe fn load_block<N: KvFormat, const R: usize>(
    block: &CachedRows,
    first: usize,
    loaded: LoadedKv,
    step: usize,
) {
    let stored = &block.stored;
    if first + R <= block.count && step < N::whole_steps(stored) {
        // SAFETY: `R` rows and the k-step are whole, as just checked.
        return unsafe { load_block_whole::<N, R>(block, first, loaded, step) };
    }
    let mask = ((1u64 << (stored.width() - step * K_STEP).min(K_STEP)) - 1) as __mmask32;
    for two in (0..R).step_by(2) {
        // SAFETY: rows below `count`, of which the mask has only elements inside; room in `loaded`
        // by this function's contract.
        unsafe {
            let mut lines = [_mm512_setzero_si512(); 2];
            for (line, row) in lines.iter_mut().zip(first + two..block.count) {
                *line = N::part(stored, block.row(row), step, mask);
            }
            store::<R>((block.count, first), loaded, step, two, lines);
        }
    }
}

/// [`load_block`] of `R` rows that are all inside the block, and of a whole k-step. Without masks
/// it is few instructions, which run during products.
///
/// # Safety
/// As for [`Bf16Dot::qk`](super::Bf16Dot::qk); the rows are inside the block, and the k-step is
/// whole.
#[inline(always)]
pub(super) unsafe fn load_block_whole<N: KvFormat, const R: usize>(
    block: &CachedRows,
    first: usize,
    loaded: LoadedKv,
    step: usize,
) {
    let (stored, bytes) = (&block.stored, block.stride);
    let mut row = block.row(first);
    for two in (0..R).step_by(2) {
        // SAFETY: two of the `R` rows, and room in `loaded`, by this function's contract.
        unsafe {
            let lines = [N::whole(stored, row, step), N::whole(stored, row.wrapping_add(bytes), step)];
            store::<R>((block.count, first), loaded, step, two, lines);
        }
        row = row.wrapping_add(2 * bytes);
    }
}

/// Stores a k-step of two of the `R` rows, from the row `two` on.
///
/// # Safety
/// As for [`Bf16Dot::qk`](super::Bf16Dot::qk).
#[inline(always)]
unsafe fn store<const R: usize>(
    (count, first): (usize, usize),
    loaded: LoadedKv,
    step: usize,
    two: usize,
    [a, b]: [__m512i; 2],
) {
    // SAFETY: `loaded` has room for a line of each row, and for a line of each of two tiles of
    // pairs.
    unsafe {
        let out = loaded.rows.add((step * R + two) * K_STEP);
        _mm512_storeu_si512(out.cast(), a);
        _mm512_storeu_si512(out.add(K_STEP).cast(), b);
        if step * K_STEP < loaded.latent {
            store_pairs(a, b, loaded.pair(count, first + two, step));
        }
    }
}

/// A format of cached rows, and its conversion to bf16.
pub(super) trait KvFormat {
    /// Bytes of a k-step of a row.
    const BYTES: usize;

    /// Whether the content is loaded without the scale of its row.
    const DEFERS_SCALE: bool = false;

    /// Number of k-steps of a row that [`whole`](KvFormat::whole) can load.
    fn whole_steps(stored: &CacheRow) -> usize {
        stored.width() / K_STEP
    }

    /// Loads one of these k-steps in few instructions.
    ///
    /// # Safety
    /// `row` is the address of a row; the CPU has AVX512-BF16.
    #[inline(always)]
    unsafe fn whole(stored: &CacheRow, row: *const u8, step: usize) -> __m512i {
        // SAFETY: a whole k-step has all elements of the mask.
        unsafe { Self::part(stored, row, step, !0) }
    }

    /// Loads the elements of any k-step that are in the mask, and zeros for the others.
    ///
    /// # Safety
    /// `row` is the address of a row that has the elements of the mask; the CPU has AVX512-BF16.
    unsafe fn part(stored: &CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i;
}

/// Up to 32 elements of f16, selected by the mask, as bf16.
///
/// # Safety
/// They are at `from`; the CPU has AVX512-BF16.
#[inline(always)]
unsafe fn load_f16(from: *const u8, mask: __mmask32) -> __m512i {
    // SAFETY: elements of the mask by this function's contract; masked lanes are not read.
    unsafe {
        let halves = _mm512_maskz_loadu_epi16(mask, from.cast());
        let low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
        pair(low, _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(halves)))
    }
}

/// Rows of f16.
pub(super) struct F16Kv;

impl KvFormat for F16Kv {
    const BYTES: usize = 2 * K_STEP;

    #[inline(always)]
    unsafe fn part(_: &CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i {
        // SAFETY: the row has the elements of the mask.
        unsafe { load_f16(row.wrapping_add(step * Self::BYTES), mask) }
    }
}

/// Rows of bf16.
pub(super) struct Bf16Kv;

impl KvFormat for Bf16Kv {
    const BYTES: usize = 2 * K_STEP;

    #[inline(always)]
    unsafe fn part(_: &CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i {
        // SAFETY: the row has the elements of the mask; masked lanes are not read.
        unsafe { _mm512_maskz_loadu_epi16(mask, row.wrapping_add(step * Self::BYTES).cast()) }
    }
}

/// Rows of a quantized type: the latent, then a RoPE part of f16. In types with blocks, a k-step of
/// the latent is a block.
macro_rules! quantized_kv {
    ($name:ident, $ty:expr) => {
        pub(super) struct $name;

        impl KvFormat for $name {
            const BYTES: usize = match $ty.block() {
                Some((elements, bytes)) => K_STEP / elements * bytes,
                None => 0,
            };

            fn whole_steps(stored: &CacheRow) -> usize {
                let content = stored.content;
                // If quants end inside a k-step, only the k-steps before it are handled here;
                // `part` decodes the others.
                if content.is_multiple_of(K_STEP) { stored.width() / K_STEP } else { content / K_STEP }
            }

            #[inline(always)]
            unsafe fn whole(stored: &CacheRow, row: *const u8, step: usize) -> __m512i {
                let stored = CacheRow { ty: $ty, ..*stored };
                let (content, first) = (stored.content, step * K_STEP);
                // SAFETY: a whole k-step, of quants alone or, where the content is whole k-steps,
                // of f16 alone; a scale of the row ends it.
                unsafe {
                    if first >= content {
                        return load_f16(row.add(stored.content_bytes() + 2 * (first - content)), !0);
                    }
                    let scale = match stored.ty.has_row_scale() {
                        true => scale_of(std::slice::from_raw_parts(row, stored.bytes())),
                        false => 1.0,
                    };
                    let [low, high] = dequantize32::<Avx512>($ty, row, first, scale);
                    pair(low, high)
                }
            }

            #[inline(always)]
            unsafe fn part(stored: &CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i {
                // SAFETY: the row has the elements of the mask.
                unsafe { decode_step(*stored, row, step, mask) }
            }
        }
    };
}

quantized_kv!(Int8Kv, CacheType::Int8);
quantized_kv!(Q8Kv, CacheType::Q8_0);
quantized_kv!(Q4Kv, CacheType::Q4_0);
quantized_kv!(ScaledFp8Kv, CacheType::Fp8);

/// Rows of F8_E4M3 whose content is whole k-steps: see [`defers_scale`](super::defers_scale).
pub(super) struct Fp8Kv;

impl KvFormat for Fp8Kv {
    const BYTES: usize = K_STEP;

    const DEFERS_SCALE: bool = true;

    #[inline(always)]
    unsafe fn part(stored: &CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i {
        let first = step * K_STEP;
        // SAFETY: a whole k-step of codes, or elements of f16 of the mask, by this function's
        // contract.
        unsafe {
            match first.checked_sub(stored.content) {
                Some(rope) => load_f16(row.wrapping_add(stored.content + 2 * rope), mask),
                None => load_fp8(row.add(first)),
            }
        }
    }
}

/// The bf16 of the F8_E4M3 codes without sign: the lower bytes, and the upper bytes. Two look-ups
/// convert 32 codes, subnormals included.
static FP8_BYTES: [[u8; 128]; 2] = {
    let mut bytes = [[0; 128]; 2];
    let mut code = 0;
    while code < 128 {
        let (exponent, mantissa) = (code as u32 >> 3, code as u32 & 7);
        let value = match exponent {
            0 => mantissa as f32 / 512.0,
            _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
        };
        let [_, _, low, high] = value.to_bits().to_le_bytes();
        (bytes[0][code], bytes[1][code]) = (low, high);
        code += 1;
    }
    bytes
};

/// Each of 32 bytes, twice.
static TWICE: [u8; 64] = {
    let mut twice = [0; 64];
    let mut lane = 0;
    while lane < 64 {
        twice[lane] = lane as u8 / 2;
        lane += 1;
    }
    twice
};

/// 32 codes of F8_E4M3 as bf16, exactly. NaN codes give ±480.
///
/// # Safety
/// They are at `from`; the CPU has AVX-512 with VBMI.
#[inline(always)]
unsafe fn load_fp8(from: *const u8) -> __m512i {
    const LOWER_BYTES: __mmask64 = 0x5555_5555_5555_5555;
    macro_rules! table {
        ($byte:literal, $half:literal) => {
            _mm512_loadu_si512(FP8_BYTES[$byte].as_ptr().add(64 * $half).cast())
        };
    }
    // SAFETY: 32 bytes at `from` by this function's contract, and vectors of 64 bytes in tables.
    unsafe {
        let codes = _mm512_castsi256_si512(_mm256_loadu_si256(from.cast()));
        let codes = _mm512_permutexvar_epi8(_mm512_loadu_si512(TWICE.as_ptr().cast()), codes);
        // Bytes outside the mask stay unchanged: codes after the first look-up, lower bytes after
        // the second.
        let lower = _mm512_mask2_permutex2var_epi8(table!(0, 0), codes, LOWER_BYTES, table!(0, 1));
        let bits = _mm512_mask2_permutex2var_epi8(table!(1, 0), lower, !LOWER_BYTES, table!(1, 1));
        // bits | (codes & sign): the upper byte of each pair of equal bytes has the sign.
        _mm512_ternarylogic_epi64::<0xf8>(bits, codes, _mm512_set1_epi16(i16::MIN))
    }
}

crate::isa::isa_fn! { Avx512Bf16;
/// A k-step of a row of any type, decoded to f32 first.
// Not inlined: it runs only for the last k-step of a row and for last rows, and its code would
// bloat the loops of every format.
///
/// # Safety
/// `row` is the address of a row that has the elements of the mask; the CPU has AVX512-BF16.
#[inline(never)]
unsafe fn decode_step(stored: CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i {
    // SAFETY: the bytes of the row by this function's contract; sixteen elements of each half of
    // `wide`.
    unsafe {
        let row = std::slice::from_raw_parts(row, stored.bytes());
        let mut wide = [0.0; K_STEP];
        load_part(stored, row, step * K_STEP, &mut wide[..mask.trailing_ones() as usize]);
        pair(_mm512_loadu_ps(wide.as_ptr()), _mm512_loadu_ps(wide[16..].as_ptr()))
    }
}
}
