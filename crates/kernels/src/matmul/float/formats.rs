//! How the floats of each format are read from tiles: a vector of 64 bytes of codes at a time.

use crate::simd::Simd;
use latent_types::TensorType;

/// A format of plain floats in tiles.
pub(super) trait FloatFormat {
    /// The format.
    const TY: TensorType;
    /// Inputs of a vector of codes: at most four.
    const INPUTS: usize;
    /// What sums of products are multiplied with.
    const FACTOR: f32 = 1.0;
    /// Whether a tile has a number for each row to begin its sums with.
    const NAN_FLAGS: bool = false;

    /// The numbers of a vector, divided by [`FACTOR`](Self::FACTOR): [`INPUTS`](Self::INPUTS) times one input of sixteen rows.
    ///
    /// # Safety
    /// As for [`Simd`]; there are 64 bytes.
    unsafe fn line<L: Simd>(from: *const u8) -> [L::F32x16; 4];
}

pub(super) struct Bf16;
impl FloatFormat for Bf16 {
    const TY: TensorType = TensorType::BF16;
    const INPUTS: usize = 2;
    #[inline(always)]
    unsafe fn line<L: Simd>(from: *const u8) -> [L::F32x16; 4] {
        // SAFETY: the caller's promise.
        let [a, b] = unsafe { L::load_bf16_pairs(from) };
        [a, b, b, b]
    }
}

pub(super) struct F16;
impl FloatFormat for F16 {
    const TY: TensorType = TensorType::F16;
    const INPUTS: usize = 2;
    #[inline(always)]
    unsafe fn line<L: Simd>(from: *const u8) -> [L::F32x16; 4] {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe { (L::load_f16(from), L::load_f16(from.add(32))) };
        [a, b, b, b]
    }
}

pub(super) struct F8E4M3;
impl FloatFormat for F8E4M3 {
    const TY: TensorType = TensorType::F8_E4M3;
    const INPUTS: usize = 4;
    const FACTOR: f32 = 256.0;
    const NAN_FLAGS: bool = true;
    #[inline(always)]
    unsafe fn line<L: Simd>(from: *const u8) -> [L::F32x16; 4] {
        // SAFETY: the caller's promise.
        unsafe { L::load_fp8(from) }
    }
}
