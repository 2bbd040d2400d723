//! Sixteen lanes: the few operations that products and attention are made of, for each instruction set.
//!
//! Every operation but [`madd`](Lanes::madd) gives the same bits in every form: integers are exact, and each f32 operation rounds once.
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
pub(crate) trait Lanes {
    /// Most input rows that are multiplied with a tile at a time: 8, 4, 2 or 1, as registers allow.
    const ROWS: usize;

    /// Whether codes of [`dot`](Self::dot) may be whole bytes, from 0 to 255: where products are not added in 16 bits.
    const BYTES: bool;

    /// Whether registers suffice for two tiles of one input row.
    const PAIRS: bool;

    /// Vectors of columns that a block of a product of f32 matrices has.
    const VECTORS: usize;

    /// 64 bytes: four for each lane.
    type Bytes: Copy;
    /// 16 × i32.
    type Ints: Copy;
    /// 16 × f32.
    type Floats: Copy;

    /// Loads 64 bytes.
    unsafe fn load(from: *const u8) -> Self::Bytes;
    /// Stores 64 bytes.
    unsafe fn store_bytes(to: *mut u8, bytes: Self::Bytes);
    /// `(byte >> SHIFT) & mask` of each byte, for masks that keep no bit from the neighbouring byte.
    #[inline(always)]
    unsafe fn bits<const SHIFT: u32>(bytes: Self::Bytes, mask: u8) -> Self::Bytes {
        // SAFETY: the caller's promise.
        unsafe { Self::moved::<SHIFT, 0>(bytes, mask) }
    }
    /// The lowest of `mask`'s bits of each byte after shifting right by `SHIFT`, moved left by `UP`.
    unsafe fn moved<const SHIFT: u32, const UP: u32>(bytes: Self::Bytes, mask: u8) -> Self::Bytes;
    /// Bytes or'ed.
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `value` in each byte whose bit is set among the 64 bits at `from`, else 0.
    unsafe fn spread(from: *const u8, value: u8) -> Self::Bytes;
    /// The table's number at the code of each byte (0 to 15).
    unsafe fn look_up(table: &[i8; 16], codes: Self::Bytes) -> Self::Bytes;

    /// Zeros.
    unsafe fn zero() -> Self::Ints;
    /// One integer in all lanes.
    unsafe fn whole(value: i32) -> Self::Ints;
    /// sum + Σ of each lane's four unsigned codes (at most 63, or [bytes](Self::BYTES)) · the four inputs at `x`.
    unsafe fn dot(sum: Self::Ints, codes: Self::Bytes, x: *const i8) -> Self::Ints;
    /// Signed numbers in the form in which [`dot_raised`](Self::dot_raised) takes them: raised by 128 where products need unsigned ones.
    unsafe fn raised(numbers: Self::Bytes) -> Self::Bytes;
    /// As [`dot`](Self::dot), with raised numbers. A sum begins with [`start`](Self::start).
    unsafe fn dot_raised(sum: Self::Ints, raised: Self::Bytes, x: *const i8) -> Self::Ints;
    /// What a sum of products of raised numbers begins with; `bias` is −128 · Σ inputs.
    unsafe fn start(bias: i32) -> Self::Ints;
    /// sum + Σ of each lane's four signed numbers (of magnitude at most 127) · the four inputs at `x` (from 1 to 255), less 128. A sum
    /// begins with [`start_each`](Self::start_each).
    unsafe fn dot_lowered(sum: Self::Ints, numbers: Self::Bytes, x: *const u8) -> Self::Ints;
    /// What such a sum begins with; there is a `bias` for each lane, −128 · Σ of its numbers.
    unsafe fn start_each(bias: *const i32) -> Self::Ints;
    /// As f32: exact below 2^24.
    unsafe fn floats(ints: Self::Ints) -> Self::Floats;

    /// One number in all lanes.
    unsafe fn all(value: f32) -> Self::Floats;
    /// Sixteen f16.
    unsafe fn halves(from: *const u8) -> Self::Floats;
    /// Sixteen bf16.
    unsafe fn brains(from: *const u8) -> Self::Floats;
    /// 32 bf16 in pairs: the first of each pair, and the second.
    unsafe fn brain_pairs(from: *const u8) -> [Self::Floats; 2];
    /// 32 F8_E4M3 in pairs, but for NaN: 1/256 of the first of each pair, and of the second.
    unsafe fn eighth_pairs(from: *const u8) -> [Self::Floats; 2];
    /// The same of 64: twice sixteen pairs.
    #[inline(always)]
    unsafe fn eighths(from: *const u8) -> [Self::Floats; 4] {
        // SAFETY: the caller's promise.
        let ([a, b], [c, d]) = unsafe { (Self::eighth_pairs(from), Self::eighth_pairs(from.add(32))) };
        [a, b, c, d]
    }
    /// Sixteen u8, `(byte >> shift) & mask`.
    unsafe fn unsigned(from: *const u8, shift: u32, mask: u8) -> Self::Floats;
    /// Sixteen i8.
    unsafe fn signed(from: *const u8) -> Self::Floats;
    /// a · b.
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// a · b + c, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// a · b + c, rounded once where the instruction set does that, else twice.
    unsafe fn madd(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Sixteen numbers from memory.
    unsafe fn load_floats(from: *const f32) -> Self::Floats;
    /// Sixteen numbers to memory.
    unsafe fn store_floats(to: *mut f32, a: Self::Floats);
    /// c − a · b, rounded once.
    unsafe fn fnma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The sixteen numbers.
    #[inline(always)]
    unsafe fn store(a: Self::Floats) -> [f32; 16] {
        let mut out = [0.0; 16];
        // SAFETY: the caller's promise; sixteen numbers.
        unsafe { Self::store_floats(out.as_mut_ptr(), a) };
        out
    }
    /// The bits of the largest magnitude of 32 numbers. Those of NaN are above all.
    #[inline(always)]
    unsafe fn largest_bits(numbers: &[f32; 32]) -> u32 {
        // the bits of magnitudes sort like integers
        numbers.iter().fold(0, |largest, number| largest.max(number.to_bits() & !SIGN))
    }
    /// 32 numbers times `factor`, at most 127 then, rounded to nearest, even. Returns the sum of each half.
    #[inline(always)]
    unsafe fn codes(numbers: &[f32; 32], factor: f32, codes: &mut [i8; 32]) -> [i32; 2] {
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
