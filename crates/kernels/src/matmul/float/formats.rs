//! How the floats of each format are read from tiles: a vector of 64 bytes of codes at a time.

use crate::simd::Lanes;
use latent_types::TensorType;

/// A format of plain floats in tiles.
pub(super) trait Wide {
    /// The format.
    const TY: TensorType;
    /// Inputs of a vector of codes: at most four.
    const INPUTS: usize;
    /// What sums of products are multiplied with.
    const FACTOR: f32 = 1.0;
    /// Whether a tile has a number for each row to begin its sums with.
    const MARKS: bool = false;

    /// The numbers of a vector, divided by [`FACTOR`](Self::FACTOR): [`INPUTS`](Self::INPUTS) times one input of sixteen rows.
    ///
    /// # Safety
    /// As for [`Lanes`]; there are 64 bytes.
    unsafe fn line<L: Lanes>(from: *const u8) -> [L::Floats; 4];
}

pub(super) struct Bf16;
impl Wide for Bf16 {
    const TY: TensorType = TensorType::BF16;
    const INPUTS: usize = 2;
    #[inline(always)]
    unsafe fn line<L: Lanes>(from: *const u8) -> [L::Floats; 4] {
        // SAFETY: the caller's promise.
        let [a, b] = unsafe { L::brain_pairs(from) };
        [a, b, b, b]
    }
}

pub(super) struct F16;
impl Wide for F16 {
    const TY: TensorType = TensorType::F16;
    const INPUTS: usize = 2;
    #[inline(always)]
    unsafe fn line<L: Lanes>(from: *const u8) -> [L::Floats; 4] {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe { (L::halves(from), L::halves(from.add(32))) };
        [a, b, b, b]
    }
}

pub(super) struct F8E4M3;
impl Wide for F8E4M3 {
    const TY: TensorType = TensorType::F8_E4M3;
    const INPUTS: usize = 4;
    const FACTOR: f32 = 256.0;
    const MARKS: bool = true;
    #[inline(always)]
    unsafe fn line<L: Lanes>(from: *const u8) -> [L::Floats; 4] {
        // SAFETY: the caller's promise.
        unsafe { L::eighths(from) }
    }
}
