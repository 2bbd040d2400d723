//! Shared code of 4-bit products: arguments, their checks, scratch memory, and the columns after
//! the last whole vector.
//!
//! Kernels handle whole vectors of columns only. The remaining columns of weights are copied to a
//! padded vector.

use super::input::W4Input;
use super::matrix::{W4Matrix, WORD};
use super::nibbles::LANES;
use super::part::{self, PaddedColumns, W4ColumnBlock};
use crate::MatrixViewMut;
use std::ops::Range;

/// A share of a product.
#[derive(Clone)]
pub struct W4Args<'a, 'w> {
    /// The weight `[K, N]`.
    pub weight: &'a W4Matrix<'w>,
    /// The input `[M, K]` in the kernel's form.
    pub input: &'a W4Input<'a>,
    /// Rows of the input; from a multiple of the form's panel rows on.
    pub rows: Range<usize>,
    /// Inputs that are summed, from and to multiples of 8. All of K, or a slice of it.
    pub k: Range<usize>,
    /// Columns of the weight.
    pub columns: Range<usize>,
}

/// Scratch memory that kernels reuse between calls.
#[derive(Default)]
pub struct W4Scratch {
    pub(super) padded: PaddedColumns,
    pub(super) buffers: W4Buffers,
    /// Results of the padded columns.
    out: Vec<f32>,
}

/// Memory of one kernel.
#[derive(Default)]
pub(super) struct W4Buffers {
    /// Partial sums, or a decoded strip of f32.
    pub floats: Vec<f32>,
    /// A decoded strip of bf16.
    pub words: Vec<u32>,
}

/// A product: writes `rows` × `columns` results.
///
/// # Panics
/// When the ranges are not inside of weight, input and results, or the input has another form.
pub type W4MatmulFn = fn(&W4Args<'_, '_>, &mut MatrixViewMut<'_>, &mut W4Scratch);

/// A product with the columns of a block.
pub(super) type W4ProductFn = fn(&W4ColumnBlock<'_>, &W4Args<'_, '_>, &mut MatrixViewMut<'_>, &mut W4Buffers);

/// Calls `kernel` for the whole vectors of columns, and for the remaining columns.
pub(super) fn multiply(
    args: &W4Args<'_, '_>,
    y: &mut MatrixViewMut<'_>,
    scratch: &mut W4Scratch,
    kernel: W4ProductFn,
) {
    let W4Args { weight, input, rows, k, columns } = args;
    let shape = weight.shape();
    assert!(input.k() == shape.k, "{} inputs for K = {}", input.k(), shape.k);
    assert!(rows.start <= rows.end && rows.end <= input.rows(), "rows {rows:?} of {}", input.rows());
    assert!(columns.start <= columns.end && columns.end <= shape.n, "columns {columns:?} of {}", shape.n);
    let whole_words = k.start.is_multiple_of(WORD) && k.end.is_multiple_of(WORD);
    assert!(k.start <= k.end && k.end <= shape.k && whole_words, "inputs {k:?} of {}", shape.k);
    assert!((y.rows(), y.cols()) == (rows.len(), columns.len()), "results of another shape");
    // An empty slice of K: its partial sums are added, so they must be written.
    if k.is_empty() {
        (0..y.rows()).for_each(|row| y.row_mut(row).fill(0.0));
        return;
    }
    if rows.is_empty() {
        return;
    }
    let whole = part::whole_vectors(weight, columns);
    if whole.cols > 0 {
        kernel(&whole, args, &mut y.columns(0..whole.cols), &mut scratch.buffers);
    }
    if whole.cols < columns.len() {
        let part = part::last_columns(weight, columns, &mut scratch.padded);
        // Kernels write whole vectors, which could overwrite columns of another thread in `y`.
        scratch.out.resize(rows.len() * LANES, 0.0);
        let mut out = MatrixViewMut::new(&mut scratch.out, rows.len(), LANES, LANES);
        kernel(&part, args, &mut out, &mut scratch.buffers);
        for row in 0..rows.len() {
            let to = &mut y.row_mut(row)[whole.cols..];
            to.copy_from_slice(&out.row_mut(row)[..to.len()]);
        }
    }
}
