//! Sixteen lanes in plain Rust: the baseline tier, and the reference for the other ISAs.

use super::Simd;
use crate::widen;

/// Arrays of sixteen lanes. Needs no ISA.
pub(crate) struct PortableSimd;

/// An array from a function of the index. Closures are harmless here, since the baseline has no
/// features to lose.
#[inline(always)]
fn each<T: Copy + Default, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut out = [T::default(); N];
    for (i, out) in out.iter_mut().enumerate() {
        *out = f(i);
    }
    out
}

impl Simd for PortableSimd {
    // Baseline x86-64 has sixteen registers of four lanes: one accumulator takes four of them, so
    // every block has one row and one vector.
    const MR: usize = 1;
    const FULL_BYTES: bool = false;
    const TWO_TILES: bool = false;
    const F32_ROWS: usize = 1;
    const NR_VECTORS: usize = 1;
    const PREFETCHES: bool = false;

    type I8x64 = [u8; 64];
    type I32x16 = [i32; 16];
    type F32x16 = [f32; 16];
    type F32x8 = [f32; 8];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [u8; 64] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        unsafe { from.cast::<[u8; 64]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, bytes: [u8; 64]) {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        unsafe { to.cast::<[u8; 64]>().write_unaligned(bytes) }
    }
    #[inline(always)]
    unsafe fn shift_mask<const SHIFT: u32, const UP: u32>(bytes: [u8; 64], mask: u8) -> [u8; 64] {
        each(|i| ((bytes[i] >> SHIFT) & mask) << UP)
    }
    #[inline(always)]
    unsafe fn or(a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        each(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn expand_bits(from: *const u8, value: u8) -> [u8; 64] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        let bits = unsafe { from.cast::<[u8; 8]>().read_unaligned() };
        each(|i| if bits[i / 8] >> (i % 8) & 1 == 1 { value } else { 0 })
    }
    #[inline(always)]
    unsafe fn shuffle(table: &[i8; 16], indices: [u8; 64]) -> [u8; 64] {
        each(|i| table[usize::from(indices[i] & 15)] as u8)
    }
    #[inline(always)]
    unsafe fn zero() -> [i32; 16] {
        [0; 16]
    }
    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> [i32; 16] {
        [value; 16]
    }
    #[inline(always)]
    unsafe fn dot(sum: [i32; 16], quants: [u8; 64], x: *const i8) -> [i32; 16] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() }.map(i32::from);
        each(|r| sum[r] + (0..4).map(|i| i32::from(quants[4 * r + i]) * x[i]).sum::<i32>())
    }
    #[inline(always)]
    unsafe fn bias128(numbers: [u8; 64]) -> [u8; 64] {
        numbers
    }
    #[inline(always)]
    unsafe fn dot_biased(sum: [i32; 16], biased: [u8; 64], x: *const i8) -> [i32; 16] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() }.map(i32::from);
        each(|r| sum[r] + (0..4).map(|i| i32::from(biased[4 * r + i] as i8) * x[i]).sum::<i32>())
    }
    #[inline(always)]
    unsafe fn init_acc(_bias: i32) -> [i32; 16] {
        [0; 16]
    }
    #[inline(always)]
    unsafe fn dot_x_biased(sum: [i32; 16], numbers: [u8; 64], x: *const u8) -> [i32; 16] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        let x = unsafe { x.cast::<[u8; 4]>().read_unaligned() }.map(|x| i32::from(x) - 128);
        each(|r| sum[r] + (0..4).map(|i| i32::from(numbers[4 * r + i] as i8) * x[i]).sum::<i32>())
    }
    #[inline(always)]
    unsafe fn load_init_acc(_bias: *const i32) -> [i32; 16] {
        [0; 16]
    }
    #[inline(always)]
    unsafe fn to_f32(ints: [i32; 16]) -> [f32; 16] {
        each(|i| ints[i] as f32)
    }
    #[inline(always)]
    unsafe fn splat_f32(value: f32) -> [f32; 16] {
        [value; 16]
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> [f32; 16] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        let bytes = unsafe { from.cast::<[u8; 32]>().read_unaligned() };
        each(|i| widen::f16(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> [f32; 16] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        let bytes = unsafe { from.cast::<[u8; 32]>().read_unaligned() };
        each(|i| widen::bf16(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])))
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const u8) -> [[f32; 16]; 2] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        let pairs = unsafe { from.cast::<[[u8; 4]; 16]>().read_unaligned() };
        let half = |at: usize| each(|r| widen::bf16(u16::from_le_bytes([pairs[r][at], pairs[r][at + 1]])));
        [half(0), half(2)]
    }
    #[inline(always)]
    unsafe fn load_fp8_pairs(from: *const u8) -> [[f32; 16]; 2] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        let pairs = unsafe { from.cast::<[[u8; 2]; 16]>().read_unaligned() };
        let half = |code: u8| widen::f16((i16::from_le_bytes([0, code]) >> 1 & super::E4M3_IN_F16) as u16);
        [each(|r| half(pairs[r][0])), each(|r| half(pairs[r][1]))]
    }
    #[inline(always)]
    unsafe fn load_fp8_row(from: *const u8) -> [f32; 16] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        let codes = unsafe { from.cast::<[i8; 16]>().read_unaligned() };
        each(|i| widen::f16((i16::from(codes[i]) << 7 & super::E4M3_IN_F16) as u16))
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8, shift: u32, mask: u8) -> [f32; 16] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        let bytes = unsafe { from.cast::<[u8; 16]>().read_unaligned() };
        each(|i| f32::from((bytes[i] >> shift) & mask))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> [f32; 16] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        let bytes = unsafe { from.cast::<[u8; 16]>().read_unaligned() };
        each(|i| f32::from(bytes[i] as i8))
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        each(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn mul_add_relaxed(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        // Without FMA instructions, `mul_add` is a call of the math library per lane.
        each(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> [f32; 16] {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        unsafe { from.cast::<[f32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_f32(to: *mut f32, a: [f32; 16]) {
        // SAFETY: the address holds as many bytes by the contract of `Simd`.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn zero_f32x8() -> [f32; 8] {
        [0.0; 8]
    }
    #[inline(always)]
    unsafe fn load_f32x8(from: *const f32) -> [f32; 8] {
        // SAFETY: eight f32, by this method's contract.
        unsafe { from.cast::<[f32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_f32x8(to: *mut f32, a: [f32; 8]) {
        // SAFETY: eight f32, by this method's contract.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn mul_add_relaxed_x8(factor: f32, b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        each(|l| factor * b[l] + c[l])
    }
    #[inline(always)]
    unsafe fn fnma(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        each(|i| (-a[i]).mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}
    #[inline(always)]
    unsafe fn prefetch_far(_from: *const u8) {}
}
