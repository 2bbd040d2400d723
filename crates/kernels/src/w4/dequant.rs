//! Decoding of weights to f32 or f16, without a product.

use super::decode::decode;
use super::matmul::W4Scratch;
use super::matrix::{W4Matrix, WORD};
use super::nibbles::{LANES, Nibbles};
use super::part::{self, W4ColumnBlock};
use super::table::W4DequantFn;
use crate::MatrixViewMut;
use crate::shape::{ShapeError, fits};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::ops::Range;

/// Decodes to the rows of `out`: whole vectors of columns.
pub(super) type W4DecodeFn = fn(&W4ColumnBlock<'_>, Range<usize>, &mut MatrixViewMut<'_>);

/// [`decode`] to checked rows.
///
/// # Panics
/// When `out` has another shape.
///
/// # Safety
/// The part has the inputs `k`. The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
pub(super) unsafe fn decode_rows<L: Nibbles>(
    part: &W4ColumnBlock<'_>,
    k: Range<usize>,
    out: &mut MatrixViewMut<'_>,
) {
    assert!((out.rows(), out.cols()) == (k.len(), part.cols), "rows of weights");
    // SAFETY: `out` has the rows, as just checked; the rest by this function's contract.
    unsafe { decode::<L>(part, k, 0..part.cols, out.raw_mut()) }
}

/// Decodes inputs `k` (from and to multiples of 8) of `columns` with a kernel for whole vectors. A
/// row of `out` is an input.
///
/// # Panics
/// When the ranges are not inside of the weight, or `out` has another shape.
pub(super) fn dequantize(
    (w, k, columns): (&W4Matrix<'_>, Range<usize>, Range<usize>),
    out: &mut MatrixViewMut<'_>,
    scratch: &mut W4Scratch,
    kernel: W4DecodeFn,
) {
    let shape = w.shape();
    let whole_words = k.start.is_multiple_of(WORD) && k.end.is_multiple_of(WORD);
    assert!(k.start <= k.end && k.end <= shape.k && whole_words, "inputs {k:?} of {}", shape.k);
    assert!(columns.start <= columns.end && columns.end <= shape.n, "columns {columns:?} of {}", shape.n);
    assert!((out.rows(), out.cols()) == (k.len(), columns.len()), "rows of weights");
    let whole = part::whole_vectors(w, &columns);
    if whole.cols > 0 {
        kernel(&whole, k.clone(), &mut out.columns(0..whole.cols));
    }
    if whole.cols < columns.len() {
        let part = part::last_columns(w, &columns, &mut scratch.padded);
        // One word of K at a time, in a buffer on the stack: the kernel writes sixteen columns.
        let mut padded = [0.0; WORD * LANES];
        for word in k.clone().step_by(WORD) {
            let mut eight = MatrixViewMut::new(&mut padded, WORD, LANES, LANES);
            kernel(&part, word..word + WORD, &mut eight);
            for i in 0..WORD {
                let to = &mut out.row_mut(word - k.start + i)[whole.cols..];
                to.copy_from_slice(&eight.row_mut(i)[..to.len()]);
            }
        }
    }
}

/// Columns that are decoded to f32 before they are rounded.
const BLOCK_COLS: usize = 256;

/// Decodes inputs `k` (from and to multiples of 8) of `columns` to f16, rounded to nearest even:
/// rows of `stride` elements in `out`.
///
/// # Panics
/// When the ranges are not inside of the weight.
pub fn w4_dequant_f16(
    kernel: W4DequantFn,
    (w, k, columns): (&W4Matrix<'_>, Range<usize>, Range<usize>),
    (out, stride): (&mut [f16], usize),
    scratch: &mut W4Scratch,
) -> Result<(), ShapeError> {
    fits("rows of f16 weights", (k.len(), columns.len(), stride), out.len())?;
    if k.len() > 1 && stride < columns.len() {
        return Err(ShapeError::Overlap { cols: columns.len(), stride });
    }
    // 8 KB, so that rounding reads what decoding has just written to L1.
    let mut floats = [0.0; WORD * BLOCK_COLS];
    for from in columns.clone().step_by(BLOCK_COLS) {
        let cols = from..(from + BLOCK_COLS).min(columns.end);
        for word in k.clone().step_by(WORD) {
            let mut eight = MatrixViewMut::new(&mut floats, WORD, cols.len(), BLOCK_COLS);
            kernel((w, word..word + WORD, cols.clone()), &mut eight, scratch);
            for i in 0..WORD {
                let to = &mut out[(word - k.start + i) * stride + cols.start - columns.start..][..cols.len()];
                to.convert_from_f32_slice(eight.row_mut(i));
            }
        }
    }
    Ok(())
}
