//! Descriptions of kernels for 4-bit weights.

use super::input::W4Form;
use super::matmul::{W4MatmulFn, W4Scratch};
use super::matrix::{W4Matrix, W4Shape, WORD};
use crate::MatrixViewMut;
use latent_types::{ActivationType, Tier};
use std::ops::Range;

/// What a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum W4Entry {
    /// Many rows: strips are decoded into the cache.
    Gemm,
    /// Few rows: codes are decoded in registers.
    Fused,
    /// One unit of [`W4Stripes`](super::W4Stripes), into partial sums.
    Striped,
    /// Sums over slices of K.
    Reduce,
    /// Partial sums set to zero.
    Zero,
    /// Weights as floats.
    Dequant,
}

impl W4Entry {
    pub const ALL: [W4Entry; 6] =
        [W4Entry::Gemm, W4Entry::Fused, W4Entry::Striped, W4Entry::Reduce, W4Entry::Zero, W4Entry::Dequant];

    pub fn name(self) -> &'static str {
        match self {
            W4Entry::Gemm => "gemm",
            W4Entry::Fused => "fused",
            W4Entry::Striped => "striped",
            W4Entry::Reduce => "reduce",
            W4Entry::Zero => "zero",
            W4Entry::Dequant => "dequant",
        }
    }
}

/// Decodes inputs (from and to multiples of 8) and columns of a weight to f32. A row of the result
/// is an input.
///
/// # Panics
/// When the ranges are not inside of the weight, or the result has another shape.
pub type W4DequantFn =
    fn((&W4Matrix<'_>, Range<usize>, Range<usize>), &mut MatrixViewMut<'_>, &mut W4Scratch);

/// A kernel's function, by signature.
#[derive(Clone, Copy)]
pub enum W4Fn {
    /// A product, of all of K or a slice.
    Matmul(W4MatmulFn),
    /// Weights as f32; [`w4_dequant_f16`](super::w4_dequant_f16) takes it too.
    Dequant(W4DequantFn),
    /// [`w4_reduce`](super::w4_reduce) or [`w4_zero`](super::w4_zero), which select their ISA
    /// themselves.
    Plain,
}

/// A kernel and its contract.
#[derive(Clone, Copy)]
pub struct W4Kernel {
    /// The name, such as `avx2_w4_fused_f32`.
    pub name: &'static str,
    pub entry: W4Entry,
    /// The ISA that it is compiled for.
    pub tier: Tier,
    /// Precision of the inputs: f32 (or sixteen-bit integers), bf16, or 8-bit integers.
    pub activation: ActivationType,
    /// The layout of its input rows.
    pub form: W4Form,
    /// Whether groups must be multiples of 8.
    pub whole_words: bool,
    pub function: W4Fn,
}

impl W4Kernel {
    /// Whether it computes products with weights of this shape.
    pub fn takes(&self, shape: W4Shape) -> bool {
        !self.whole_words || shape.group.is_multiple_of(WORD)
    }
}
