//! Input rows packed for GEMM into panels of eight (or four) rows, column by column.

use crate::MatrixView;
use crate::matmul::args::input_row;
use crate::matmul::scratch::grow;
use crate::simd::Simd;
use std::ops::Range;

/// Bytes of panels that are multiplied with all tiles before the next panels: half of an L2 of 1
/// MB.
const BLOCK_BYTES: usize = 512 << 10;

/// Columns packed at a time for large batches, rounded up to whole groups.
const BLOCK_COLS: usize = 2048;

/// Rows and columns to pack at a time; the columns are whole groups of `group` inputs.
pub(super) fn block_size(rows: usize, cols: usize, group: usize) -> (usize, usize) {
    // A single panel is not blocked: weights are read once either way, and blocking would store and
    // load the sums in between.
    if rows <= 8 {
        return (8, cols);
    }
    let cols = cols.min(BLOCK_COLS.next_multiple_of(group));
    ((BLOCK_BYTES / size_of::<f32>() / cols / 8).max(1) * 8, cols)
}

/// A row × column block packed into panels of at most `L::MR` rows; the last may have four. Padding
/// rows are zero.
pub(super) struct Panels<'a> {
    packed: &'a [f32],
    rows: Range<usize>,
    cols: usize,
    /// Maximum number of rows per panel.
    height: usize,
}

/// Four or eight packed rows.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    /// For each column, the elements of all rows.
    pub packed: &'a [f32],
    /// The first row.
    pub top: usize,
    /// Rows, padding included.
    pub height: usize,
}

impl<'a> Panels<'a> {
    /// Packs columns `cols` of rows `rows` into panels whose height fits the ISA's registers. Also
    /// returns `extra` more floats of the same memory.
    #[inline(always)]
    pub(super) fn new<L: Simd>(
        (x, row_ids): (&MatrixView<'_>, Option<&[u32]>),
        rows: Range<usize>,
        cols: &Range<usize>,
        extra: usize,
        memory: &'a mut Vec<f32>,
    ) -> (Panels<'a>, &'a mut [f32]) {
        let max_height = if L::MR >= 8 { 8 } else { 4 };
        let len = rows.len().next_multiple_of(max_height) * cols.len();
        let (packed, extra) = grow(memory, len + extra).split_at_mut(len);
        let mut rest = &mut packed[..];
        for top in rows.clone().step_by(max_height) {
            let count = (rows.end - top).min(max_height);
            let (panel, left) = rest.split_at_mut(height(count) * cols.len());
            panel.fill(0.0);
            for r in 0..count {
                let row = &x.row(input_row(row_ids, top + r))[cols.clone()];
                if height(count) == 8 { pack_row::<8>(row, panel, r) } else { pack_row::<4>(row, panel, r) }
            }
            rest = left;
        }
        (Panels { packed, rows, cols: cols.len(), height: max_height }, extra)
    }

    /// Maximum number of rows per panel.
    pub(super) fn height(&self) -> usize {
        self.height
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Panel<'a>> + use<'a> {
        let (mut rest, cols, max_height, end) = (self.packed, self.cols, self.height, self.rows.end);
        self.rows.clone().step_by(max_height).map(move |top| {
            let height = height((end - top).min(max_height));
            let (packed, left) = rest.split_at(height * cols);
            rest = left;
            Panel { packed, top, height }
        })
    }
}

/// Rows of a panel for `count` rows, padding included.
fn height(count: usize) -> usize {
    if count > 4 { 8 } else { 4 }
}

/// Writes row `r` of a panel of `R` rows.
#[inline(always)]
fn pack_row<const R: usize>(row: &[f32], panel: &mut [f32], r: usize) {
    for (column, element) in panel.chunks_exact_mut(R).zip(row) {
        column[r] = *element;
    }
}
