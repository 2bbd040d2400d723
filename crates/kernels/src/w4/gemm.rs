//! GEMM for many input rows: a strip of weights is decoded to f32 once, and multiplied with all
//! rows while it is in the cache.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::decode::decode;
use super::nibbles::{LANES, Nibbles};
use super::part::W4ColumnBlock;
use crate::gemm::{LeftOperand, gemm};
use crate::{MatrixView, MatrixViewMut};
use std::ops::Range;

/// Columns of a strip.
const STRIP_COLS: usize = 4 * LANES;

/// Inputs of a strip: 64 × 64 f32 are 16 KB, half of the smallest L1.
const STRIP_INPUTS: usize = 64;

/// y = x · W for the columns of `part`, over the inputs `k` (from and to multiples of 8).
///
/// # Panics
/// When the shapes differ.
///
/// # Safety
/// The part has the inputs `k`. The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(super) unsafe fn strips<L: Nibbles>(
    part: &W4ColumnBlock<'_>,
    x: &MatrixView<'_>,
    k: Range<usize>,
    y: &mut MatrixViewMut<'_>,
    strip: &mut Vec<f32>,
) {
    assert!(x.rows() == y.rows() && k.end <= x.cols() && y.cols() == part.cols, "shapes of a product");
    strip.resize(STRIP_COLS * STRIP_INPUTS, 0.0);
    let (rows, stride) = x.parts();
    for from in (0..part.cols).step_by(STRIP_COLS) {
        let cols = from..(from + STRIP_COLS).min(part.cols);
        let mut y = y.columns(cols.clone());
        for first in k.clone().step_by(STRIP_INPUTS) {
            let inputs = first..(first + STRIP_INPUTS).min(k.end);
            // SAFETY: the strip has room for the inputs and columns, which the part has by this
            // function's contract, as is the ISA.
            unsafe {
                decode::<L>(part, inputs.clone(), cols.clone(), (strip.as_mut_ptr(), STRIP_COLS));
                prefetch_below::<L>(part, inputs.end, cols.clone());
                let left = LeftOperand::Rows(&rows[inputs.start.min(rows.len())..], stride);
                gemm::<L>(inputs.len(), left, (strip, STRIP_COLS), &mut y, first > k.start);
            }
        }
    }
}

/// Prefetches the words of the strip below, which arrive while the current strip is multiplied.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(super) unsafe fn prefetch_below<L: Nibbles>(part: &W4ColumnBlock<'_>, input: usize, cols: Range<usize>) {
    for word in input / 8..(input + STRIP_INPUTS) / 8 {
        for col in cols.clone().step_by(LANES) {
            let from = part.words.as_ptr().wrapping_add(word * part.stride + part.first + col);
            // SAFETY: a prefetch never faults; the ISA by this function's contract.
            unsafe { L::prefetch_far(from.cast()) }
        }
    }
}
