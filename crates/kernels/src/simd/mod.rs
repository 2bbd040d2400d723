//! Vectors of sixteen f32 or i32 lanes: the operations that matmul and attention kernels consist
//! of, implemented for each ISA.
//!
//! Every operation but [`mul_add_relaxed`](Simd::mul_add_relaxed) gives the same bits on every ISA:
//! integers are exact, and each f32 operation rounds once.
#![allow(
    unsafe_code,
    reason = "vector instructions, and addresses that the shapes checked by callers keep in bounds"
)]

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod portable;

/// The bits of an f16 that an F8_E4M3 provides: sign, the lower four exponent bits, the upper three
/// mantissa bits. A sign-extended code has them after a shift by 7. The f16 is the code's value /
/// 256, subnormals included.
// The exponent biases are 15 and 7, hence 2^-8. The detour over f16 costs a shift, a mask and
// `vcvtph2ps`. Expanding to f32 instead would need a multiplication to normalize subnormals, and
// that takes 45 ns for a subnormal operand.
// measured: docs/notes/quant-formats.md "Formats and their accuracy"
const E4M3_IN_F16: i16 = 0xbf80_u16 as i16;

/// The sign bit of an f32.
const SIGN: u32 = 1 << 31;

/// Sixteen-lane vectors of one ISA. Implementors are the ISA's zero-sized token, used as a type
/// argument.
///
/// # Safety
/// All methods are `unsafe` for two reasons. They use the ISA's instructions: the caller must be
/// compiled for the ISA ([`isa_fn`](crate::isa::isa_fn), or inlined into such a function) and run
/// on a CPU that has it, which the token proves. Methods with an address read or write the number
/// of bytes in their description there, at any alignment.
pub(crate) trait Simd {
    /// Maximum number of input rows that share a tile in registers: 8, 4, 2 or 1, limited by the
    /// number of registers.
    const MR: usize;

    /// Whether quants of [`dot`](Self::dot) may be full bytes, from 0 to 255. False if the ISA sums
    /// pairs of products in 16 bits, which would saturate.
    const FULL_BYTES: bool;

    /// Whether GEMV has registers for two tiles.
    const TWO_TILES: bool;

    /// Maximum number of rows per block of the f32 GEMM: 8, 6, 4 or 1, limited by the number of
    /// registers.
    const F32_ROWS: usize;

    /// Vectors of columns per block of the f32 GEMM.
    const NR_VECTORS: usize;

    /// Whether prefetches have an effect. If not, kernels for different prefetch orders would be
    /// identical, so only one is compiled.
    const PREFETCHES: bool = true;

    /// 64 × i8 or u8: four per lane.
    type I8x64: Copy;
    type I32x16: Copy;
    type F32x16: Copy;
    /// 8 × f32, for matrices of at most eight columns.
    type F32x8: Copy;

    /// Loads 64 bytes.
    unsafe fn load(from: *const u8) -> Self::I8x64;
    unsafe fn store_bytes(to: *mut u8, bytes: Self::I8x64);
    /// `(byte >> SHIFT) & mask` of each byte, for masks that drop the bits shifted in from the
    /// neighboring byte.
    #[inline(always)]
    unsafe fn shift_right_mask<const SHIFT: u32>(bytes: Self::I8x64, mask: u8) -> Self::I8x64 {
        // SAFETY: a register operation; the ISA by the trait's contract.
        unsafe { Self::shift_mask::<SHIFT, 0>(bytes, mask) }
    }
    /// `((byte >> SHIFT) & mask) << UP` of each byte, for the same masks.
    unsafe fn shift_mask<const SHIFT: u32, const UP: u32>(bytes: Self::I8x64, mask: u8) -> Self::I8x64;
    /// Bit `bit` (0 to 7) of each byte, moved to bit `UP`.
    #[inline(always)]
    unsafe fn bit<const UP: u32>(bytes: Self::I8x64, bit: usize) -> Self::I8x64 {
        // SAFETY: register operations; the ISA by the trait's contract.
        unsafe {
            match bit {
                0 => Self::shift_mask::<0, UP>(bytes, 1),
                1 => Self::shift_mask::<1, UP>(bytes, 1),
                2 => Self::shift_mask::<2, UP>(bytes, 1),
                3 => Self::shift_mask::<3, UP>(bytes, 1),
                4 => Self::shift_mask::<4, UP>(bytes, 1),
                5 => Self::shift_mask::<5, UP>(bytes, 1),
                6 => Self::shift_mask::<6, UP>(bytes, 1),
                _ => Self::shift_mask::<7, UP>(bytes, 1),
            }
        }
    }
    /// Bitwise or.
    unsafe fn or(a: Self::I8x64, b: Self::I8x64) -> Self::I8x64;
    /// `value` in each byte whose bit is set among the 64 bits at `from`, else 0.
    unsafe fn expand_bits(from: *const u8, value: u8) -> Self::I8x64;
    /// Looks up each byte (0 to 15) in a table.
    unsafe fn shuffle(table: &[i8; 16], indices: Self::I8x64) -> Self::I8x64;

    unsafe fn zero() -> Self::I32x16;
    /// One integer in all lanes.
    unsafe fn splat_i32(value: i32) -> Self::I32x16;
    /// sum + Σ of each lane's four unsigned quants (at most 63, or [full bytes](Self::FULL_BYTES))
    /// · the four inputs at `x`.
    unsafe fn dot(sum: Self::I32x16, quants: Self::I8x64, x: *const i8) -> Self::I32x16;
    /// Signed quants in the form that [`dot_biased`](Self::dot_biased) takes: biased by 128 where
    /// the dot product needs unsigned bytes.
    unsafe fn bias128(quants: Self::I8x64) -> Self::I8x64;
    /// As [`dot`](Self::dot), with biased quants and an accumulator that starts as
    /// [`init_acc`](Self::init_acc).
    unsafe fn dot_biased(sum: Self::I32x16, biased: Self::I8x64, x: *const i8) -> Self::I32x16;
    /// Initial accumulator for biased quants, given −128 · Σ inputs.
    unsafe fn init_acc(bias: i32) -> Self::I32x16;
    /// sum + Σ of each lane's four signed quants (magnitude at most 127) · the four inputs at `x`,
    /// which are biased by 128 (1 to 255). An accumulator starts as
    /// [`load_init_acc`](Self::load_init_acc).
    unsafe fn dot_x_biased(sum: Self::I32x16, quants: Self::I8x64, x: *const u8) -> Self::I32x16;
    /// Initial accumulator for biased inputs, given −128 · Σ quants of each lane.
    unsafe fn load_init_acc(bias: *const i32) -> Self::I32x16;
    /// Converts to f32; exact below 2^24.
    unsafe fn to_f32(ints: Self::I32x16) -> Self::F32x16;

    /// One f32 in all lanes.
    unsafe fn splat_f32(value: f32) -> Self::F32x16;
    /// Loads sixteen f16.
    unsafe fn load_f16(from: *const u8) -> Self::F32x16;
    /// Loads sixteen bf16.
    unsafe fn load_bf16(from: *const u8) -> Self::F32x16;
    /// Loads sixteen pairs of bf16: the first of each pair, then the second.
    unsafe fn load_bf16_pairs(from: *const u8) -> [Self::F32x16; 2];
    /// Loads sixteen pairs of F8_E4M3, divided by 256: the first of each pair, then the second. NaN
    /// codes give finite values.
    unsafe fn load_fp8_pairs(from: *const u8) -> [Self::F32x16; 2];
    /// The same for 64: twice sixteen pairs.
    #[inline(always)]
    unsafe fn load_fp8(from: *const u8) -> [Self::F32x16; 4] {
        // SAFETY: 64 bytes, read 32 at a time; the ISA by the trait's contract.
        let ([a, b], [c, d]) = unsafe { (Self::load_fp8_pairs(from), Self::load_fp8_pairs(from.add(32))) };
        [a, b, c, d]
    }
    /// Loads sixteen F8_E4M3, divided by 256. NaN codes give finite values.
    unsafe fn load_fp8_row(from: *const u8) -> Self::F32x16;
    /// Loads sixteen u8 as `(byte >> shift) & mask`.
    unsafe fn load_u8(from: *const u8, shift: u32, mask: u8) -> Self::F32x16;
    /// Loads sixteen i8.
    unsafe fn load_i8(from: *const u8) -> Self::F32x16;
    unsafe fn add(a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    unsafe fn mul(a: Self::F32x16, b: Self::F32x16) -> Self::F32x16;
    /// a · b + c, rounded once.
    unsafe fn fma(a: Self::F32x16, b: Self::F32x16, c: Self::F32x16) -> Self::F32x16;
    /// a · b + c, rounded once if the ISA has FMA, else twice.
    unsafe fn mul_add_relaxed(a: Self::F32x16, b: Self::F32x16, c: Self::F32x16) -> Self::F32x16;
    /// Loads sixteen f32.
    unsafe fn load_f32(from: *const f32) -> Self::F32x16;
    /// Stores sixteen f32.
    unsafe fn store_f32(to: *mut f32, a: Self::F32x16);
    /// Eight zeros.
    unsafe fn zero_f32x8() -> Self::F32x8;
    /// Loads eight f32.
    unsafe fn load_f32x8(from: *const f32) -> Self::F32x8;
    /// Stores eight f32.
    unsafe fn store_f32x8(to: *mut f32, a: Self::F32x8);
    /// As [`mul_add_relaxed`](Self::mul_add_relaxed), `factor` in all lanes.
    unsafe fn mul_add_relaxed_x8(factor: f32, b: Self::F32x8, c: Self::F32x8) -> Self::F32x8;
    /// c − a · b, rounded once.
    unsafe fn fnma(a: Self::F32x16, b: Self::F32x16, c: Self::F32x16) -> Self::F32x16;
    /// The lanes as an array.
    #[inline(always)]
    unsafe fn store(a: Self::F32x16) -> [f32; 16] {
        let mut out = [0.0; 16];
        // SAFETY: the array has room for sixteen f32; the ISA by the trait's contract.
        unsafe { Self::store_f32(out.as_mut_ptr(), a) };
        out
    }
    /// The bits of the largest magnitude among 32 floats. NaN counts as larger than infinity.
    #[inline(always)]
    unsafe fn max_abs_bits(numbers: &[f32; 32]) -> u32 {
        // The bits of magnitudes sort like integers.
        numbers.iter().fold(0, |largest, number| largest.max(number.to_bits() & !SIGN))
    }
    /// Quantizes 32 floats: number · `inverse_scale`, of magnitude at most 127, rounded to nearest
    /// even. Returns the sum of each half's quants.
    #[inline(always)]
    unsafe fn quantize(numbers: &[f32; 32], inverse_scale: f32, quants: &mut [i8; 32]) -> [i32; 2] {
        let mut sums = [0; 2];
        for (i, (quant, number)) in quants.iter_mut().zip(numbers).enumerate() {
            // Adding 1.5 · 2^23 rounds to the nearest integer, ties to even, and leaves it in the
            // low bits.
            *quant = (number * inverse_scale + 12_582_912.0).to_bits() as i8;
            sums[i / 16] += i32::from(*quant);
        }
        sums
    }
    /// Prefetches a cache line to L1. Never faults for any address.
    unsafe fn prefetch(from: *const u8);
    /// Prefetches a cache line to L2. Never faults for any address.
    unsafe fn prefetch_far(from: *const u8);
}
