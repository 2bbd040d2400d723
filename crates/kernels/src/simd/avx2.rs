//! Sixteen lanes in two AVX2 registers, with AVX-VNNI dot products if the CPU has them.

use super::Simd;
use std::arch::x86_64::*;

pub(crate) use crate::isa::Avx2;

/// Applies an operation to both halves. The body is written out twice, since a closure that is not
/// inlined would be compiled without the ISA's instructions.
macro_rules! both {
    (|$a:ident| $body:expr, $x:expr) => {{
        let [low, high] = $x;
        [
            {
                let $a = low;
                $body
            },
            {
                let $a = high;
                $body
            },
        ]
    }};
    (|$a:ident, $b:ident| $body:expr, $x:expr, $y:expr) => {{
        let ([x0, x1], [y0, y1]) = ($x, $y);
        [
            {
                let ($a, $b) = (x0, y0);
                $body
            },
            {
                let ($a, $b) = (x1, y1);
                $body
            },
        ]
    }};
}

/// Adds to each 32-bit lane of `sum` four products of unsigned `a` and signed `b`. Without VNNI no
/// pair of products may exceed 32 767, since `vpmaddubsw` saturates their sum to 16 bits.
#[inline(always)]
unsafe fn dot_quads<const VNNI: bool>(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: intrinsics of the ISA, which callers have by the contract of `Simd`.
    unsafe {
        if VNNI {
            return _mm256_dpbusd_avx_epi32(sum, a, b);
        }
        let pairs = _mm256_maddubs_epi16(a, b);
        _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each is an intrinsic of the ISA, which callers have by the contract of `Simd`"
)]
impl<const VNNI: bool> Simd for Avx2<VNNI> {
    // Four rows are eight accumulators, half of the sixteen registers. The others hold integer
    // sums, inputs and quants.
    const MR: usize = 4;
    const FULL_BYTES: bool = VNNI;
    const TWO_TILES: bool = false;
    // Six rows are twelve accumulators. With two vectors of columns and a factor, fifteen of
    // sixteen registers are in use. Blocks of four rows took 7 to 20 % longer (Zen 4).
    // measured: docs/notes/attention-kernels.md "Attention kernels"
    const F32_ROWS: usize = 6;
    const NR_VECTORS: usize = 1;

    type I8x64 = [__m256i; 2];
    type I32x16 = [__m256i; 2];
    type F32x16 = [__m256; 2];
    type F32x8 = __m256;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [__m256i; 2] {
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, bytes: [__m256i; 2]) {
        unsafe {
            _mm256_storeu_si256(to.cast(), bytes[0]);
            _mm256_storeu_si256(to.add(32).cast(), bytes[1]);
        }
    }
    #[inline(always)]
    unsafe fn shift_mask<const SHIFT: u32, const UP: u32>(bytes: [__m256i; 2], mask: u8) -> [__m256i; 2] {
        // x86 has no shift of bytes: 16-bit lanes are shifted, and the mask drops the bits of the
        // neighboring byte. One shift, by the difference.
        let mask = mask << UP;
        unsafe {
            let mask = _mm256_set1_epi8(mask as i8);
            let down = _mm_cvtsi32_si128(SHIFT.saturating_sub(UP) as i32);
            let up = _mm_cvtsi32_si128(UP.saturating_sub(SHIFT) as i32);
            both!(|x| _mm256_and_si256(_mm256_sll_epi16(_mm256_srl_epi16(x, down), up), mask), bytes)
        }
    }
    // Shifts by a count in a register. For a `match` on the count, the compiler makes two copies of
    // the following code and spills.
    #[inline(always)]
    unsafe fn bit<const UP: u32>(bytes: [__m256i; 2], bit: usize) -> [__m256i; 2] {
        unsafe {
            let (down, up) = (_mm_cvtsi32_si128(bit as i32), _mm_cvtsi32_si128(UP as i32));
            let mask = _mm256_set1_epi8(1 << UP);
            both!(|x| _mm256_and_si256(_mm256_sll_epi16(_mm256_srl_epi16(x, down), up), mask), bytes)
        }
    }
    #[inline(always)]
    unsafe fn or(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { both!(|x, y| _mm256_or_si256(x, y), a, b) }
    }
    #[inline(always)]
    unsafe fn expand_bits(from: *const u8, value: u8) -> [__m256i; 2] {
        unsafe {
            // Byte i of a half tests bit i % 8 of byte i / 8.
            let pick =
                _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            both!(
                |at| {
                    let bits = from.add(at).cast::<i32>().read_unaligned();
                    let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), pick);
                    let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
                    _mm256_and_si256(set, _mm256_set1_epi8(value as i8))
                },
                [0, 4]
            )
        }
    }
    #[inline(always)]
    unsafe fn shuffle(table: &[i8; 16], indices: [__m256i; 2]) -> [__m256i; 2] {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            both!(|x| _mm256_shuffle_epi8(table, x), indices)
        }
    }
    #[inline(always)]
    unsafe fn zero() -> [__m256i; 2] {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> [__m256i; 2] {
        unsafe { [_mm256_set1_epi32(value); 2] }
    }
    #[inline(always)]
    unsafe fn dot(sum: [__m256i; 2], quants: [__m256i; 2], x: *const i8) -> [__m256i; 2] {
        unsafe {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            both!(|s, c| dot_quads::<VNNI>(s, c, x), sum, quants)
        }
    }
    #[inline(always)]
    unsafe fn bias128(numbers: [__m256i; 2]) -> [__m256i; 2] {
        if !VNNI {
            return numbers;
        }
        unsafe { both!(|n| _mm256_xor_si256(n, _mm256_set1_epi8(i8::MIN)), numbers) }
    }
    #[inline(always)]
    unsafe fn dot_biased(sum: [__m256i; 2], biased: [__m256i; 2], x: *const i8) -> [__m256i; 2] {
        unsafe {
            if VNNI {
                return Self::dot(sum, biased, x);
            }
            // Both operands signed: |w| · (sign(w) · x). A pair of products is at most 2 · 128 ·
            // 127, which fits 16 bits.
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            both!(|s, n| dot_quads::<false>(s, _mm256_abs_epi8(n), _mm256_sign_epi8(x, n)), sum, biased)
        }
    }
    #[inline(always)]
    unsafe fn init_acc(bias: i32) -> [__m256i; 2] {
        unsafe { [_mm256_set1_epi32(if VNNI { bias } else { 0 }); 2] }
    }
    #[inline(always)]
    unsafe fn dot_x_biased(sum: [__m256i; 2], numbers: [__m256i; 2], x: *const u8) -> [__m256i; 2] {
        unsafe {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            if VNNI {
                return both!(|s, n| dot_quads::<true>(s, x, n), sum, numbers);
            }
            // Undo the bias of x, then |w| · (sign(w) · x) as for biased quants.
            let x = _mm256_xor_si256(x, _mm256_set1_epi8(i8::MIN));
            both!(|s, n| dot_quads::<false>(s, _mm256_abs_epi8(n), _mm256_sign_epi8(x, n)), sum, numbers)
        }
    }
    #[inline(always)]
    unsafe fn load_init_acc(bias: *const i32) -> [__m256i; 2] {
        if !VNNI {
            return unsafe { Self::zero() };
        }
        unsafe { [_mm256_loadu_si256(bias.cast()), _mm256_loadu_si256(bias.add(8).cast())] }
    }
    #[inline(always)]
    unsafe fn to_f32(ints: [__m256i; 2]) -> [__m256; 2] {
        unsafe { both!(|x| _mm256_cvtepi32_ps(x), ints) }
    }
    #[inline(always)]
    unsafe fn splat_f32(value: f32) -> [__m256; 2] {
        unsafe { [_mm256_set1_ps(value); 2] }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> [__m256; 2] {
        unsafe { both!(|at| _mm256_cvtph_ps(_mm_loadu_si128(from.add(at).cast())), [0, 16]) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> [__m256; 2] {
        unsafe {
            both!(
                |at| {
                    let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(at).cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
                },
                [0, 16]
            )
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const u8) -> [[__m256; 2]; 2] {
        unsafe {
            let pairs = Self::load(from);
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            [
                both!(|x| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(x)), pairs),
                both!(|x| _mm256_castsi256_ps(_mm256_and_si256(x, mask)), pairs),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_fp8_pairs(from: *const u8) -> [[__m256; 2]; 2] {
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            // Each 16-bit lane has a pair of codes. The code in the upper byte, shifted right by
            // one, has the fields of an f16 (`E4M3_IN_F16`).
            let mask = _mm256_set1_epi16(super::E4M3_IN_F16);
            both!(
                |pairs| {
                    let halves = _mm256_and_si256(_mm256_srai_epi16::<1>(pairs), mask);
                    let upper = _mm256_extracti128_si256::<1>(halves);
                    [_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(upper)]
                },
                [_mm256_slli_epi16::<8>(pairs), pairs]
            )
        }
    }
    #[inline(always)]
    unsafe fn load_fp8_row(from: *const u8) -> [__m256; 2] {
        unsafe {
            let mask = _mm_set1_epi16(super::E4M3_IN_F16);
            both!(
                |at| {
                    let wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(from.add(at).cast()));
                    _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16::<7>(wide), mask))
                },
                [0, 8]
            )
        }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8, shift: u32, mask: u8) -> [__m256; 2] {
        unsafe {
            both!(
                |at| {
                    let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(at).cast()));
                    let moved = _mm256_srl_epi32(wide, _mm_cvtsi32_si128(shift as i32));
                    _mm256_cvtepi32_ps(_mm256_and_si256(moved, _mm256_set1_epi32(i32::from(mask))))
                },
                [0, 8]
            )
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> [__m256; 2] {
        unsafe {
            both!(|at| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(at).cast()))), [0, 8])
        }
    }
    #[inline(always)]
    unsafe fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { both!(|x, y| _mm256_add_ps(x, y), a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { both!(|x, y| _mm256_mul_ps(x, y), a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn mul_add_relaxed(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { Self::fma(a, b, c) }
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> [__m256; 2] {
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }
    #[inline(always)]
    unsafe fn store_f32(to: *mut f32, a: [__m256; 2]) {
        unsafe {
            _mm256_storeu_ps(to, a[0]);
            _mm256_storeu_ps(to.add(8), a[1]);
        }
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
    unsafe fn fnma(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_fnmadd_ps(a[0], b[0], c[0]), _mm256_fnmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn max_abs_bits(numbers: &[f32; 32]) -> u32 {
        unsafe {
            macro_rules! quarter {
                ($at:literal) => {{
                    let bits = _mm256_loadu_si256(numbers.as_ptr().add($at).cast());
                    _mm256_andnot_si256(_mm256_set1_epi32(super::SIGN as i32), bits)
                }};
            }
            let low = _mm256_max_epu32(quarter!(0), quarter!(8));
            let all = _mm256_max_epu32(low, _mm256_max_epu32(quarter!(16), quarter!(24)));
            let four = _mm_max_epu32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
            let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32::<0b00_00_00_01>(two))) as u32
        }
    }
    #[inline(always)]
    unsafe fn quantize(numbers: &[f32; 32], inverse_scale: f32, quants: &mut [i8; 32]) -> [i32; 2] {
        unsafe {
            let factor = _mm256_set1_ps(inverse_scale);
            macro_rules! quarter {
                ($at:literal) => {
                    _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(numbers.as_ptr().add($at)), factor))
                };
            }
            let [a, b, c, d] = [quarter!(0), quarter!(8), quarter!(16), quarter!(24)];
            // `vcvtps2dq` rounds to nearest even, as the scalar code does. The packs work within
            // 128-bit halves: restore the order.
            let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm256_storeu_si256(quants.as_mut_ptr().cast(), bytes);
            // Sums of 2, 4, 8 and 16 quants; each 128-bit half has one half of the block.
            let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
            let four = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            let eight = _mm256_add_epi32(four, _mm256_shuffle_epi32::<0b00_00_11_10>(four));
            let all = _mm256_add_epi32(eight, _mm256_shuffle_epi32::<0b00_00_00_01>(eight));
            let upper = _mm256_extracti128_si256::<1>(all);
            [_mm_cvtsi128_si32(_mm256_castsi256_si128(all)), _mm_cvtsi128_si32(upper)]
        }
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
