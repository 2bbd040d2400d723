//! Partial sums of slices of K: addition in the order of the slices, and initialization.

use crate::MatrixViewMut;
use crate::tiers::tiers;
use std::ops::Range;

tiers! {
    /// Sets partial sums to zero. Empty slices of K, which no kernel computes, need it.
    pub fn w4_zero(partials: &mut [f32]) {
        partials.fill(0.0);
    }
}

tiers! {
    /// Adds `to.len()` partial sums of each slice, in the order of the slices.
    // The order is fixed, so the bits do not depend on which thread computed a slice, or when.
    fn add_slices(partials: &[f32], slice: usize, from: usize, to: &mut [f32]) {
        to.copy_from_slice(&partials[from..][..to.len()]);
        for partial in partials.chunks_exact(slice).skip(1) {
            let partial = &partial[from..][..to.len()];
            for (sum, partial) in to.iter_mut().zip(partial) {
                *sum += partial;
            }
        }
    }
}

/// The sums over all slices of the columns `columns` of rows of `n` results. `partials` has all
/// rows of the first slice, then all of the next. `y` has all rows of those columns.
///
/// # Panics
/// When `y` has other columns, or `partials` is not one or more whole slices of `y`'s rows.
pub fn w4_reduce(partials: &[f32], n: usize, columns: Range<usize>, y: &mut MatrixViewMut<'_>) {
    let slice = y.rows() * n;
    if slice == 0 || columns.is_empty() {
        return;
    }
    assert!(columns.end <= n && y.cols() == columns.len(), "columns {columns:?} of {n}");
    assert!(!partials.is_empty() && partials.len().is_multiple_of(slice), "{} partial sums", partials.len());
    for row in 0..y.rows() {
        add_slices(partials, slice, row * n + columns.start, y.row_mut(row));
    }
}
