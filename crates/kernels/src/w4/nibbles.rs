//! Look-up of the eight 4-bit codes of sixteen words in a table of sixteen integers.
//!
//! A look-up serves E2M1 and integers alike. Decoding integers by a bias in the mantissa, as Marlin
//! does on GPUs, is as fast with AVX-512 in f32, faster with AVX2 and slower in f16 (measured:
//! docs/notes/gemv-and-gemm.md "4-bit weights with group scales").
#![allow(unsafe_code, reason = "vector instructions, and addresses that callers keep in bounds")]

use crate::simd::Simd;
use crate::simd::portable::PortableSimd;
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2::Avx2, avx512::Avx512};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Columns per vector.
pub(super) const LANES: usize = 16;

/// Look-ups of 4-bit codes in one ISA.
///
/// # Safety
/// As for [`Simd`].
pub(super) trait Nibbles: Simd {
    type Table: Copy;
    /// Sixteen words.
    type Words: Copy;

    unsafe fn table(values: &[i8; 16]) -> Self::Table;
    /// Loads sixteen words. ISAs that look up several codes per instruction do so here.
    unsafe fn load_words(from: *const u32, table: Self::Table) -> Self::Words;
    /// The values of code `J` (0 to 7) of each word.
    unsafe fn value<const J: u32>(words: Self::Words, table: Self::Table) -> Self::F32x16;
    type ByteTable: Copy;
    unsafe fn byte_table(values: &[u8; 16]) -> Self::ByteTable;
    /// Looks up all codes of sixteen words: bytes of codes 0, 2, 4, 6 of each word, and of codes 1,
    /// 3, 5, 7.
    unsafe fn shuffle_codes(words: Self::I8x64, table: Self::ByteTable) -> [Self::I8x64; 2];
    /// Sixteen zero points, which are at most 16.
    #[inline(always)]
    unsafe fn load_zeros(from: *const u8) -> Self::F32x16 {
        // SAFETY: sixteen bytes; the ISA by the trait's contract.
        unsafe { Self::load_i8(from) }
    }
}

impl Nibbles for PortableSimd {
    type Table = [i8; 16];
    type Words = [u32; LANES];

    #[inline(always)]
    unsafe fn table(values: &[i8; 16]) -> [i8; 16] {
        *values
    }
    #[inline(always)]
    unsafe fn load_words(from: *const u32, _table: [i8; 16]) -> [u32; LANES] {
        // SAFETY: sixteen words by the trait's contract.
        unsafe { from.cast::<[u32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn value<const J: u32>(words: [u32; LANES], table: [i8; 16]) -> [f32; LANES] {
        words.map(|word| f32::from(table[(word >> (4 * J) & 15) as usize]))
    }

    type ByteTable = [u8; 16];

    #[inline(always)]
    unsafe fn byte_table(values: &[u8; 16]) -> [u8; 16] {
        *values
    }
    #[inline(always)]
    unsafe fn shuffle_codes(words: [u8; 64], table: [u8; 16]) -> [[u8; 64]; 2] {
        [words.map(|byte| table[usize::from(byte & 15)]), words.map(|byte| table[usize::from(byte >> 4)])]
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each is an intrinsic of the ISA, which callers have by the contract of `Simd`"
)]
impl Nibbles for Avx2<false> {
    type Table = __m256i;
    /// The values of codes 0, 2, 4, 6 as bytes of eight words, then of codes 1, 3, 5, 7; twice.
    type Words = [[__m256i; 2]; 2];

    #[inline(always)]
    unsafe fn table(values: &[i8; 16]) -> __m256i {
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn load_words(from: *const u32, table: __m256i) -> [[__m256i; 2]; 2] {
        let mask = unsafe { _mm256_set1_epi8(15) };
        macro_rules! half {
            ($at:literal) => {{
                let words = unsafe { _mm256_loadu_si256(from.add($at).cast()) };
                unsafe {
                    [
                        _mm256_shuffle_epi8(table, _mm256_and_si256(words, mask)),
                        _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi32::<4>(words), mask)),
                    ]
                }
            }};
        }
        [half!(0), half!(8)]
    }
    #[inline(always)]
    unsafe fn value<const J: u32>(words: [[__m256i; 2]; 2], _table: __m256i) -> [__m256; 2] {
        macro_rules! half {
            ($half:literal) => {
                unsafe {
                    // The byte of the code, sign-extended: shifted to the top of its lane, then
                    // down arithmetically.
                    let up = _mm_cvtsi32_si128(24 - 8 * (J / 2) as i32);
                    let high = _mm256_sll_epi32(words[$half][(J % 2) as usize], up);
                    _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(high))
                }
            };
        }
        [half!(0), half!(1)]
    }

    type ByteTable = __m256i;

    #[inline(always)]
    unsafe fn byte_table(values: &[u8; 16]) -> __m256i {
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn shuffle_codes([a, b]: [__m256i; 2], table: __m256i) -> [[__m256i; 2]; 2] {
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let even = [_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)];
            let odd = [_mm256_srli_epi16::<4>(a), _mm256_srli_epi16::<4>(b)];
            let odd = [_mm256_and_si256(odd[0], mask), _mm256_and_si256(odd[1], mask)];
            [
                [_mm256_shuffle_epi8(table, even[0]), _mm256_shuffle_epi8(table, even[1])],
                [_mm256_shuffle_epi8(table, odd[0]), _mm256_shuffle_epi8(table, odd[1])],
            ]
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each is an intrinsic of the ISA, which callers have by the contract of `Simd`"
)]
impl Nibbles for Avx512 {
    type Table = __m512;
    type Words = __m512i;

    #[inline(always)]
    unsafe fn table(values: &[i8; 16]) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(values.as_ptr().cast()))) }
    }
    #[inline(always)]
    unsafe fn load_words(from: *const u32, _table: __m512) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn value<const J: u32>(words: __m512i, table: __m512) -> __m512 {
        unsafe {
            // No mask: the look-up ignores all but the lowest four bits of each lane.
            let codes = _mm512_srl_epi32(words, _mm_cvtsi32_si128(4 * J as i32));
            _mm512_permutexvar_ps(codes, table)
        }
    }

    /// The sixteen values four times. The look-up reads six bits of each byte, of which the upper
    /// two belong to the next code, so codes need no mask.
    type ByteTable = __m512i;

    #[inline(always)]
    unsafe fn byte_table(values: &[u8; 16]) -> __m512i {
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn shuffle_codes(words: __m512i, table: __m512i) -> [__m512i; 2] {
        unsafe {
            [
                _mm512_permutexvar_epi8(words, table),
                _mm512_permutexvar_epi8(_mm512_srli_epi16::<4>(words), table),
            ]
        }
    }
}
