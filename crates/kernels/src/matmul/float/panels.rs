//! Inputs as products of many rows read them: the numbers of eight rows for each column, one column after the other.

use crate::Rows;
use crate::matmul::body::{grow, source};
use crate::simd::Simd;
use std::ops::Range;

/// Bytes of panels that are multiplied with all tiles of a share before the next panels: a part of the second-level cache.
const BYTES: usize = 512 << 10;

/// Columns that are taken at once where there are many rows: some multiple of any run.
const COLUMNS: usize = 2048;

/// Rows and columns that panels are made of at once, the columns a multiple of `run`.
pub(super) fn fit(rows: usize, cols: usize, run: usize) -> (usize, usize) {
    if rows <= 8 {
        return (8, cols);
    }
    let cols = cols.min(COLUMNS.next_multiple_of(run));
    ((BYTES / size_of::<f32>() / cols / 8).max(1) * 8, cols)
}

/// Some columns of some rows, in panels of eight rows, or four; the last one has four where those are enough. Rows that are missing are
/// zeros.
pub(super) struct Panels<'a> {
    numbers: &'a [f32],
    rows: Range<usize>,
    cols: usize,
    /// Rows of a panel at most.
    wide: usize,
}

/// The numbers of four or eight rows.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    /// Those of all rows for each column.
    pub numbers: &'a [f32],
    /// Which rows they are.
    pub top: usize,
    /// How many, those that are missing included.
    pub height: usize,
}

impl<'a> Panels<'a> {
    /// The columns `cols` of the rows `rows` (by way of `index`), for as many rows at a time as the instruction set has registers for; and
    /// `others` more numbers of the same memory.
    #[inline(always)]
    pub(super) fn new<L: Simd>(
        x: &Rows<'_>,
        index: Option<&[u32]>,
        rows: Range<usize>,
        cols: &Range<usize>,
        others: usize,
        memory: &'a mut Vec<f32>,
    ) -> (Panels<'a>, &'a mut [f32]) {
        let wide = if L::MR >= 8 { 8 } else { 4 };
        let len = rows.len().next_multiple_of(wide) * cols.len();
        let (numbers, others) = grow(memory, len + others).split_at_mut(len);
        let mut rest = &mut numbers[..];
        for top in rows.clone().step_by(wide) {
            let count = (rows.end - top).min(wide);
            let (panel, left) = rest.split_at_mut(height(count) * cols.len());
            panel.fill(0.0);
            for r in 0..count {
                let line = &x.row(source(index, top + r))[cols.clone()];
                if height(count) == 8 { put::<8>(line, panel, r) } else { put::<4>(line, panel, r) }
            }
            rest = left;
        }
        (Panels { numbers, rows, cols: cols.len(), wide }, others)
    }

    /// Rows of a panel at most.
    pub(super) fn wide(&self) -> usize {
        self.wide
    }

    /// All panels.
    pub(super) fn iter(&self) -> impl Iterator<Item = Panel<'a>> + use<'a> {
        let (mut rest, cols, wide, end) = (self.numbers, self.cols, self.wide, self.rows.end);
        self.rows.clone().step_by(wide).map(move |top| {
            let height = height((end - top).min(wide));
            let (numbers, left) = rest.split_at(height * cols);
            rest = left;
            Panel { numbers, top, height }
        })
    }
}

/// Rows of a panel that holds so many.
fn height(count: usize) -> usize {
    if count > 4 { 8 } else { 4 }
}

/// A line of a panel of `R` rows.
#[inline(always)]
fn put<const R: usize>(line: &[f32], panel: &mut [f32], r: usize) {
    for (column, number) in panel.chunks_exact_mut(R).zip(line) {
        column[r] = *number;
    }
}
