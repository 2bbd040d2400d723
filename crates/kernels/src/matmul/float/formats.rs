//! Reading float formats from tiles, one vector of 64 bytes at a time.

use crate::simd::Simd;
use latent_types::TensorType;

/// A float format in tiles.
pub(super) trait FloatFormat {
    const TY: TensorType;
    /// Inputs per vector: at most four.
    const INPUTS: usize;
    /// [`load`](Self::load) divides weights by this; kernels multiply sums of products with it.
    const SCALE: f32 = 1.0;
    /// Whether a tile ends with a NaN flag per row (0 or NaN), the initial value of the row's
    /// accumulator.
    const NAN_FLAGS: bool = false;

    /// The weights of a vector, divided by [`SCALE`](Self::SCALE): [`INPUTS`](Self::INPUTS) times
    /// one input of sixteen rows.
    ///
    /// # Safety
    /// The caller is compiled for the ISA of `L`, and the CPU has it; there are 64 bytes at `from`.
    unsafe fn load<L: Simd>(from: *const u8) -> [L::F32x16; 4];
}

pub(super) struct Bf16Format;
impl FloatFormat for Bf16Format {
    const TY: TensorType = TensorType::BF16;
    const INPUTS: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Simd>(from: *const u8) -> [L::F32x16; 4] {
        // SAFETY: reads the 64 bytes of this function's contract.
        let [a, b] = unsafe { L::load_bf16_pairs(from) };
        [a, b, b, b]
    }
}

pub(super) struct F16Format;
impl FloatFormat for F16Format {
    const TY: TensorType = TensorType::F16;
    const INPUTS: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Simd>(from: *const u8) -> [L::F32x16; 4] {
        // SAFETY: reads the 64 bytes of this function's contract, 32 at a time.
        let (a, b) = unsafe { (L::load_f16(from), L::load_f16(from.add(32))) };
        [a, b, b, b]
    }
}

pub(super) struct F8E4M3Format;
impl FloatFormat for F8E4M3Format {
    const TY: TensorType = TensorType::F8_E4M3;
    const INPUTS: usize = 4;
    const SCALE: f32 = 256.0;
    // `load_fp8` decodes NaN codes to finite numbers: testing each vector for them would cost more
    // than a flag per row.
    const NAN_FLAGS: bool = true;
    #[inline(always)]
    unsafe fn load<L: Simd>(from: *const u8) -> [L::F32x16; 4] {
        // SAFETY: reads the 64 bytes of this function's contract.
        unsafe { L::load_fp8(from) }
    }
}
