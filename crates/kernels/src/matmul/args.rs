//! Arguments of matmul kernels.

use crate::{MatmulScratch, MatrixViewMut, QuantizedInput, WeightMatrix};
use std::ops::Range;

/// Operands of a matmul: `y[i][o − outputs.start] = Σ_k weight[o][k] · input[row_ids[i]][k]`.
pub struct MatmulArgs<'a, 'y> {
    /// Output features × input features.
    pub weight: &'a WeightMatrix<'a>,
    /// Input rows, in the activation type that the kernel's contract names.
    pub input: &'a QuantizedInput<'a>,
    /// The input row that each row of `y` reads; without it, row `i` reads input row `i`.
    pub row_ids: Option<&'a [u32]>,
    /// Which output features to compute: one per column of `y`.
    pub outputs: Range<usize>,
    /// Results. Every element is overwritten.
    pub y: &'a mut MatrixViewMut<'y>,
}

/// A matmul kernel. Panics when shapes do not fit, or when the CPU lacks the instructions of its
/// ISA.
pub type MatmulFn = fn(MatmulArgs<'_, '_>, &mut MatmulScratch);

/// The input row that output row `i` reads.
#[inline(always)]
pub(super) fn input_row(row_ids: Option<&[u32]>, i: usize) -> usize {
    row_ids.map_or(i, |row_ids| row_ids[i] as usize)
}
