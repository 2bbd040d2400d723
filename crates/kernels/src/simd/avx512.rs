//! Sixteen lanes in one AVX-512 register, with VNNI dot products.

use super::Simd;
use std::arch::x86_64::*;

pub(crate) use crate::isa::Avx512;

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each is an intrinsic of the ISA, which callers have by the contract of `Simd`"
)]
impl Simd for Avx512 {
    // 32 registers: eight rows are eight accumulators, and the quants of a sub-block eight more.
    const MR: usize = 8;
    const FULL_BYTES: bool = true;
    const TWO_TILES: bool = true;
    // Eight rows × two vectors are sixteen accumulators, more than two FMA units with a latency of
    // four cycles need.
    const F32_ROWS: usize = 8;
    const NR_VECTORS: usize = 2;

    type I8x64 = __m512i;
    type I32x16 = __m512i;
    type F32x16 = __m512;
    type F32x8 = __m256;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, bytes: __m512i) {
        unsafe { _mm512_storeu_si512(to.cast(), bytes) }
    }
    #[inline(always)]
    unsafe fn shift_mask<const SHIFT: u32, const UP: u32>(bytes: __m512i, mask: u8) -> __m512i {
        // One shift of 16-bit lanes by the difference; the mask drops the bits of the neighboring
        // byte.
        let mask = mask << UP;
        unsafe {
            let shifted = if SHIFT >= UP {
                _mm512_srl_epi16(bytes, _mm_cvtsi32_si128((SHIFT - UP.min(SHIFT)) as i32))
            } else {
                _mm512_sll_epi16(bytes, _mm_cvtsi32_si128((UP - SHIFT.min(UP)) as i32))
            };
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }
    // Rotates by a count in a register: a `match` on the count is a jump per vector, and halved the
    // decode speed of Q3_K. The rotation of 32-bit lanes moves the bit within its byte, and the
    // compiler merges the mask with the `or` that follows into one `vpternlog`.
    // measured: docs/notes/gemv-and-gemm.md "Rows per kernel"
    #[inline(always)]
    unsafe fn bit<const UP: u32>(bytes: __m512i, bit: usize) -> __m512i {
        unsafe {
            let up = _mm512_set1_epi32(UP as i32 - bit as i32);
            _mm512_and_si512(_mm512_rolv_epi32(bytes, up), _mm512_set1_epi8((1u8 << UP) as i8))
        }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn expand_bits(from: *const u8, value: u8) -> __m512i {
        unsafe { _mm512_maskz_set1_epi8(from.cast::<u64>().read_unaligned(), value as i8) }
    }
    #[inline(always)]
    unsafe fn shuffle(table: &[i8; 16], indices: __m512i) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, indices)
        }
    }
    #[inline(always)]
    unsafe fn zero() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(value) }
    }
    #[inline(always)]
    unsafe fn dot(sum: __m512i, quants: __m512i, x: *const i8) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sum, quants, _mm512_set1_epi32(x.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn bias128(numbers: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(numbers, _mm512_set1_epi8(i8::MIN)) }
    }
    #[inline(always)]
    unsafe fn dot_biased(sum: __m512i, biased: __m512i, x: *const i8) -> __m512i {
        unsafe { Self::dot(sum, biased, x) }
    }
    #[inline(always)]
    unsafe fn init_acc(bias: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(bias) }
    }
    #[inline(always)]
    unsafe fn dot_x_biased(sum: __m512i, numbers: __m512i, x: *const u8) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(x.cast::<i32>().read_unaligned()), numbers) }
    }
    #[inline(always)]
    unsafe fn load_init_acc(bias: *const i32) -> __m512i {
        unsafe { _mm512_loadu_si512(bias.cast()) }
    }
    #[inline(always)]
    unsafe fn to_f32(ints: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(ints) }
    }
    #[inline(always)]
    unsafe fn splat_f32(value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const u8) -> [__m512; 2] {
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let upper = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(upper)]
        }
    }
    #[inline(always)]
    unsafe fn load_fp8_pairs(from: *const u8) -> [__m512; 2] {
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            // Each 16-bit lane has a pair of codes. The code in the upper byte, shifted right by
            // one, has the fields of an f16 (`E4M3_IN_F16`).
            let mask = _mm256_set1_epi16(super::E4M3_IN_F16);
            let first = _mm256_and_si256(_mm256_srai_epi16::<1>(_mm256_slli_epi16::<8>(pairs)), mask);
            let second = _mm256_and_si256(_mm256_srai_epi16::<1>(pairs), mask);
            [_mm512_cvtph_ps(first), _mm512_cvtph_ps(second)]
        }
    }
    #[inline(always)]
    unsafe fn load_fp8(from: *const u8) -> [__m512; 4] {
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let mask = _mm512_set1_epi16(super::E4M3_IN_F16);
            let first = _mm512_and_si512(_mm512_srai_epi16::<1>(_mm512_slli_epi16::<8>(pairs)), mask);
            let second = _mm512_and_si512(_mm512_srai_epi16::<1>(pairs), mask);
            [
                _mm512_cvtph_ps(_mm512_castsi512_si256(first)),
                _mm512_cvtph_ps(_mm512_castsi512_si256(second)),
                _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(first)),
                _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(second)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_fp8_row(from: *const u8) -> __m512 {
        unsafe {
            let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
            _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(super::E4M3_IN_F16)))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8, shift: u32, mask: u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let moved = _mm512_srl_epi32(wide, _mm_cvtsi32_si128(shift as i32));
            _mm512_cvtepi32_ps(_mm512_and_si512(moved, _mm512_set1_epi32(i32::from(mask))))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn mul_add_relaxed(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_f32(to: *mut f32, a: __m512) {
        unsafe { _mm512_storeu_ps(to, a) }
    }
    #[inline(always)]
    unsafe fn zero_f32x8() -> __m256 {
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn load_f32x8(from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_f32x8(to: *mut f32, a: __m256) {
        unsafe { _mm256_storeu_ps(to, a) }
    }
    #[inline(always)]
    unsafe fn mul_add_relaxed_x8(factor: f32, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(_mm256_set1_ps(factor), b, c) }
    }
    #[inline(always)]
    unsafe fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max_abs_bits(numbers: &[f32; 32]) -> u32 {
        unsafe { super::avx2::Avx2::<false>::max_abs_bits(numbers) }
    }
    #[inline(always)]
    unsafe fn quantize(numbers: &[f32; 32], inverse_scale: f32, quants: &mut [i8; 32]) -> [i32; 2] {
        // 32 elements are two vectors of this ISA, and packing and summing across lanes take fewer
        // instructions at half the width.
        unsafe { super::avx2::Avx2::<false>::quantize(numbers, inverse_scale, quants) }
    }
    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_far(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }
}
