//! Sixteen lanes: the few operations that products and attention are made of, for each instruction set.
//!
//! Every operation but [`mul_add_relaxed`](Simd::mul_add_relaxed) gives the same bits in every form: integers are exact, and each f32 operation rounds once.
#![allow(
    unsafe_code,
    reason = "vector instructions, and addresses that the shapes checked by callers keep in bounds"
)]

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod portable;

/// The bits of an f16 that an F8_E4M3 has: sign, the lower four of the exponent, the upper three of the mantissa.
const E4M3_IN_F16: i16 = 0xbf80_u16 as i16;

/// The sign of an f32.
const SIGN: u32 = 1 << 31;

/// Sixteen lanes of one instruction set.
///
/// # Safety
/// Callers run in code compiled for the instruction set, on a machine that has it; addresses are valid for what is read.
pub(crate) trait Simd {
    /// Most input rows that are multiplied with a tile at a time: 8, 4, 2 or 1, as registers allow.
    const MR: usize;

    /// Whether codes of [`dot`](Self::dot) may be whole bytes, from 0 to 255: where products are not added in 16 bits.
    const FULL_BYTES: bool;

    /// Whether registers suffice for two tiles of one input row.
    const TWO_TILES: bool;

    /// Vectors of columns that a block of a product of f32 matrices has.
    const NR_VECTORS: usize;

    /// 64 bytes: four for each lane.
    type I8x64: Copy;
    /// 16 × i32.
    type I32x16: Copy;
    /// 16 × f32.
    type F32x16: Copy;

    /// Loads 64 bytes.
    unsafe fn load(from: *const u8) -> Self::I8x64;
    /// Stores 64 bytes.
    unsafe fn store_bytes(to: *mut u8, bytes: Self::I8x64);
    /// `(byte >> SHIFT) & mask` of each byte, for masks that keep no bit from the neighbouring byte.
    #[inline(always)]
    unsafe fn shift_right_mask<const SHIFT: u32>(bytes: Self::I8x64, mask: u8) -> Self::I8x64 {
        // SAFETY: the caller's promise.
        unsafe { Self::shift_mask::<SHIFT, 0>(bytes, mask) }
    }
    /// The lowest of `mask`'s bits of each byte after shifting right by `SHIFT`, moved left by `UP`.
    unsafe fn shift_mask<const SHIFT: u32, const UP: u32>(bytes: Self::I8x64, mask: u8) -> Self::I8x64;
    /// Bytes or'ed.
    unsafe fn or(a: Self::I8x64, b: Self::I8x64) -> Self::I8x64;
    /// `value` in each byte whose bit is set among the 64 bits at `from`, else 0.
    unsafe fn expand_bits(from: *const u8, value: u8) -> Self::I8x64;
    /// The table's number at the code of each byte (0 to 15).
    unsafe fn shuffle(table: &[i8; 16], codes: Self::I8x64) -> Self::I8x64;

    /// Zeros.
    unsafe fn zero() -> Self::I32x16;
    /// One integer in all lanes.
    unsafe fn splat_i32(value: i32) -> Self::I32x16;
    /// sum + Σ of each lane's four unsigned codes (at most 63, or [bytes](Self::FULL_BYTES)) · the four inputs at `x`.
    unsafe fn dot(sum: Self::I32x16, codes: Self::I8x64, x: *const i8) -> Self::I32x16;
    /// Signed numbers in the form in which [`dot_biased`](Self::dot_biased) takes them: raised by 128 where products need unsigned ones.
    unsafe fn bias128(numbers: Self::I8x64) -> Self::I8x64;
    /// As [`dot`](Self::dot), with raised numbers. A sum begins with [`init_acc`](Self::init_acc).
    unsafe fn dot_biased(sum: Self::I32x16, biased: Self::I8x64, x: *const i8) -> Self::I32x16;
    /// What a sum of products of raised numbers begins with; `bias` is −128 · Σ inputs.
    unsafe fn init_acc(bias: i32) -> Self::I32x16;
    /// sum + Σ of each lane's four signed numbers (of magnitude at most 127) · the four inputs at `x` (from 1 to 255), less 128. A sum
    /// begins with [`load_init_acc`](Self::load_init_acc).
    unsafe fn dot_x_biased(sum: Self::I32x16, numbers: Self::I8x64, x: *const u8) -> Self::I32x16;
    /// What such a sum begins with; there is a `bias` for each lane, −128 · Σ of its numbers.
    unsafe fn load_init_acc(bias: *const i32) -> Self::I32x16;
    /// As f32: exact below 2^24.
    unsafe fn to_f32(ints: Self::I32x16) -> Self::F32x16;

    /// One number in all lanes.
    unsafe fn splat_f32(value: f32) -> Self::F32x16;
    /// Sixteen f16.
    unsafe fn load_f16(from: *const u8) -> Self::F32x16;
    /// Sixteen bf16.
    unsafe fn load_bf16(from: *const u8) -> Self::F32x16;
    /// 32 bf16 in pairs: the first of each pair, and the second.
    unsafe fn load_bf16_pairs(from: *const u8) -> [Self::F32x16; 2];
    /// 32 F8_E4M3 in pairs, but for NaN: 1/256 of the first of each pair, and of the second.
    unsafe fn load_fp8_pairs(from: *const u8) -> [Self::F32x16; 2];
    /// The same of 64: twice sixteen pairs.
    #[inline(always)]
    unsafe fn load_fp8(from: *const u8) -> [Self::F32x16; 4] {
        // SAFETY: the caller's promise.
        let ([a, b], [c, d]) = unsafe { (Self::load_fp8_pairs(from), Self::load_fp8_pairs(from.add(32))) };
        [a, b, c, d]
    }
    /// Sixteen u8, `(byte >> shift) & mask`.
    unsafe fn load_u8(from: *const u8, shift: u32, mask: u8) -> Self::F32x16;
    /// Sixteen i8.
    unsafe fn load_i8(from: *const u8) -> Self::F32x16;
    /// a · b.
    unsafe fn mul(a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    /// a · b + c, rounded once.
    unsafe fn fma(a: Self::F32x16, b: Self::F32x16, c: Self::F32x16) -> Self::F32x16;
    /// a · b + c, rounded once where the instruction set does that, else twice.
    unsafe fn mul_add_relaxed(a: Self::F32x16, b: Self::F32x16, c: Self::F32x16) -> Self::F32x16;
    /// Sixteen numbers from memory.
    unsafe fn load_f32(from: *const f32) -> Self::F32x16;
    /// Sixteen numbers to memory.
    unsafe fn store_f32(to: *mut f32, a: Self::F32x16);
    /// c − a · b, rounded once.
    unsafe fn fnma(a: Self::F32x16, b: Self::F32x16, c: Self::F32x16) -> Self::F32x16;
    /// The sixteen numbers.
    #[inline(always)]
    unsafe fn store(a: Self::F32x16) -> [f32; 16] {
        let mut out = [0.0; 16];
        // SAFETY: the caller's promise; sixteen numbers.
        unsafe { Self::store_f32(out.as_mut_ptr(), a) };
        out
    }
    /// The bits of the largest magnitude of 32 numbers. Those of NaN are above all.
    #[inline(always)]
    unsafe fn max_abs_bits(numbers: &[f32; 32]) -> u32 {
        // the bits of magnitudes sort like integers
        numbers.iter().fold(0, |largest, number| largest.max(number.to_bits() & !SIGN))
    }
    /// 32 numbers times `factor`, at most 127 then, rounded to nearest, even. Returns the sum of each half.
    #[inline(always)]
    unsafe fn quantize(numbers: &[f32; 32], factor: f32, codes: &mut [i8; 32]) -> [i32; 2] {
        let mut sums = [0; 2];
        for (i, (code, number)) in codes.iter_mut().zip(numbers).enumerate() {
            // adding 1.5 · 2^23 rounds to the nearest integer, even, and leaves it in the low bits
            *code = (number * factor + 12_582_912.0).to_bits() as i8;
            sums[i / 16] += i32::from(*code);
        }
        sums
    }
    /// Asks for a line of memory that will be read soon.
    unsafe fn prefetch(from: *const u8);
    /// Asks for a line of memory that will be read later, into the second-level cache.
    unsafe fn prefetch_far(from: *const u8);
}
