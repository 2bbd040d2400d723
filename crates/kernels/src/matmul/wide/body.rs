//! Products of f32 rows with tiles of floats, written once for all instruction sets.
//!
//! An output is y = Σ over runs of 128 inputs (or as many as share a factor), in order, of factor · (Σ over the run, in order, of
//! weight · input). Each multiplication and addition is one operation, rounded once, where the instruction set has that: AVX2 and AVX-512
//! give the same bits, for any number of rows and any share of the outputs. The inputs are not rounded.

use super::formats::Wide;
use super::panels::{Panel, Panels, fit};
use crate::lanes::Lanes;
use crate::matmul::body::source;
use crate::{Rows, RowsMut, Scratch, WeightMatrix};
use quant::tiles::{Plane, ROWS, TileLayout};
use std::ops::Range;

/// Inputs that are summed before their sum is added to those of others, where no factors say otherwise.
const RUN: usize = 128;

/// Runs of one row that are summed side by side, so that no addition waits for the one before.
const SIDE: usize = 4;

/// Bytes ahead of the codes that are asked for from the second-level cache.
const AHEAD: usize = 2048;

/// A weight as these products see it.
pub(super) struct Matrix<'a, 'w> {
    w: &'a WeightMatrix<'w>,
    layout: TileLayout,
    /// Inputs of a run.
    pub run: usize,
}

/// Sixteen rows of a weight.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// The vectors of codes.
    pub codes: *const u8,
    /// What the sums begin with.
    marks: *const f32,
    /// A factor for each run, where there are any.
    factors: Option<&'a [f32]>,
}

impl<'a, 'w> Matrix<'a, 'w> {
    /// A weight in tiles of the format, and the row of the tiles that is its first.
    #[inline(always)]
    pub(super) fn new<F: Wide>(w: &'a WeightMatrix<'w>) -> Option<(Matrix<'a, 'w>, usize)> {
        let (layout, first) = w.tile_layout()?;
        assert!(w.ty == F::TY, "{} for {}", w.ty, F::TY);
        Some((Matrix { w, layout, run: w.scales().map_or(RUN, |scales| scales.cols) }, first))
    }

    /// The tile at `index`.
    #[inline(always)]
    pub(super) fn tile(&self, index: usize) -> Tile<'_> {
        let bytes = &self.w.bytes[index * self.layout.tile_bytes()..][..self.layout.tile_bytes()];
        Tile {
            codes: bytes.as_ptr(),
            marks: bytes[self.layout.start(Plane::Factors).min(bytes.len())..].as_ptr().cast(),
            factors: self.w.scales().map(|scales| scales.of_row(index * ROWS, self.w.cols)),
        }
    }
}

impl Tile<'_> {
    /// The factor of run `r`.
    #[inline(always)]
    pub(super) fn factor<F: Wide>(&self, r: usize) -> f32 {
        self.factors.map_or(F::FACTOR, |factors| factors[r] * F::FACTOR)
    }

    /// Whether a row of the tile, of a format with marks, holds a NaN.
    #[inline(always)]
    pub(super) fn holds_nan(&self) -> bool {
        // SAFETY: a tile of a format with marks ends with sixteen of them, and any bits are a number.
        unsafe { self.marks.cast::<[f32; ROWS]>().read_unaligned() }.iter().any(|mark| mark.is_nan())
    }

    /// What the sums of sixteen outputs begin with.
    ///
    /// # Safety
    /// As for [`Lanes`]; the tile is one of the format.
    #[inline(always)]
    unsafe fn begin<L: Lanes, F: Wide>(&self) -> L::Floats {
        // SAFETY: the caller's promise; a tile of a format with marks ends with sixteen.
        unsafe { if F::MARKS { L::load_floats(self.marks) } else { L::all(0.0) } }
    }
}

/// `y[i][o − outs.start]` for all rows i (of `x`, by way of `index`).
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn multiply<L: Lanes, F: Wide>(
    w: &WeightMatrix<'_>,
    x: &Rows<'_>,
    index: Option<&[u32]>,
    outs: Range<usize>,
    y: &mut RowsMut<'_>,
    scratch: &mut Scratch,
) {
    let Some((matrix, first)) = Matrix::new::<F>(w) else { return };
    assert!(x.cols() == w.cols, "{} inputs for {}", x.cols(), w.cols);
    assert!(outs.end <= w.rows && y.cols() == outs.len(), "outputs {outs:?} of {}", w.rows);
    let outs = first + outs.start..first + outs.end;
    let tiles = outs.start / ROWS..outs.end.div_ceil(ROWS);
    if y.rows() == 1 || L::ROWS == 1 {
        for row in 0..y.rows() {
            let x = x.row(source(index, row));
            for t in tiles.clone() {
                // SAFETY: the row is as long as those of the tile, as asserted above.
                let sums = unsafe { one_row::<L, F>(&matrix, &matrix.tile(t), x) };
                put(&sums, t, &outs, y.row_mut(row));
            }
        }
        return;
    }
    let (block_rows, block_cols) = fit(y.rows(), w.cols, matrix.run);
    for top in (0..y.rows()).step_by(block_rows) {
        let rows = top..(top + block_rows).min(y.rows());
        for left in (0..w.cols).step_by(block_cols) {
            let cols = left..(left + block_cols).min(w.cols);
            let panels = Panels::new::<L>(x, index, rows.clone(), &cols, &mut scratch.numbers);
            let mut t = tiles.start;
            while t < tiles.end {
                let vectors = (tiles.end - t).min(L::VECTORS);
                for panel in panels.iter() {
                    macro_rules! block {
                        ($r:literal, $v:literal) => {{
                            let place = Place { cols: &cols, rows: &rows, outs: &outs };
                            // SAFETY: the panel has as many rows, and columns of the matrix; the tiles are there.
                            unsafe { several_rows::<L, F, $r, $v>(&matrix, t, panel, &place, y) }
                        }};
                    }
                    match (panel.height, vectors) {
                        (8, 2..) => block!(8, 2),
                        (8, _) => block!(8, 1),
                        (_, 2..) => block!(4, 2),
                        _ => block!(4, 1),
                    }
                }
                t += vectors;
            }
        }
    }
}

/// Those of the sums of tile `t` that are among the outputs.
#[inline(always)]
fn put(sums: &[f32; ROWS], t: usize, outs: &Range<usize>, row: &mut [f32]) {
    let lanes = outs.start.max(t * ROWS)..outs.end.min((t + 1) * ROWS);
    row[lanes.start - outs.start..lanes.end - outs.start]
        .copy_from_slice(&sums[lanes.start - t * ROWS..lanes.end - t * ROWS]);
}

/// The opposite of [`put`].
#[inline(always)]
fn take(t: usize, outs: &Range<usize>, row: &[f32]) -> [f32; ROWS] {
    let mut sums = [0.0; ROWS];
    let lanes = outs.start.max(t * ROWS)..outs.end.min((t + 1) * ROWS);
    sums[lanes.start - t * ROWS..lanes.end - t * ROWS]
        .copy_from_slice(&row[lanes.start - outs.start..lanes.end - outs.start]);
    sums
}

/// Sixteen outputs of one row, several runs side by side.
///
/// # Safety
/// As for [`Lanes`]; the tile is one of the matrix, whose rows are as long as `x`.
#[inline(always)]
unsafe fn one_row<L: Lanes, F: Wide>(matrix: &Matrix<'_, '_>, tile: &Tile<'_>, x: &[f32]) -> [f32; ROWS] {
    let (run, next) = (matrix.run, matrix.layout.tile_bytes());
    let line = |run: usize| run / F::INPUTS * 64;
    // SAFETY: the caller's promise; runs are whole vectors but for the last one, of whose last vector nothing is used that is not there.
    unsafe {
        let mut total = tile.begin::<L, F>();
        let mut at = 0;
        macro_rules! runs {
            ($side:expr) => {
                while x.len() - at >= $side * run {
                    let (codes, x) = (tile.codes.add(line(at)), x.as_ptr().add(at));
                    let mut sums = [L::all(0.0); $side];
                    for i in 0..run / F::INPUTS {
                        for (s, sum) in sums.iter_mut().enumerate() {
                            let from = codes.add(line(s * run) + i * 64);
                            // the same vector of the next tile
                            L::prefetch_far(from.wrapping_add(next));
                            let numbers = F::line::<L>(from);
                            for k in 0..F::INPUTS {
                                let x = L::all(*x.add(s * run + i * F::INPUTS + k));
                                *sum = L::madd(numbers[k], x, *sum);
                            }
                        }
                    }
                    for (s, sum) in sums.into_iter().enumerate() {
                        total = L::madd(sum, L::all(tile.factor::<F>(at / run + s)), total);
                    }
                    at += $side * run;
                }
            };
        }
        runs!(SIDE);
        runs!(1);
        if at < x.len() {
            let sums = last_run::<L, F, 1, 1>(&[*tile], x.as_ptr().add(at), at, x.len() - at);
            total = L::madd(sums[0][0], L::all(tile.factor::<F>(at / run)), total);
        }
        L::store(total)
    }
}

/// Which columns of the inputs, which rows, and which outputs take part.
struct Place<'a> {
    cols: &'a Range<usize>,
    rows: &'a Range<usize>,
    outs: &'a Range<usize>,
}

/// Outputs of `V` tiles from `t` on of `R` rows. The sums go on from `y` unless the columns are the first.
///
/// # Safety
/// As for [`Lanes`]; the panel has `R` rows of the columns, which begin with a run, and the tiles are there.
#[inline(always)]
unsafe fn several_rows<L: Lanes, F: Wide, const R: usize, const V: usize>(
    matrix: &Matrix<'_, '_>,
    t: usize,
    panel: Panel<'_>,
    place: &Place<'_>,
    y: &mut RowsMut<'_>,
) {
    let Place { cols, rows, outs } = place;
    let tiles: [Tile<'_>; V] = std::array::from_fn(|v| matrix.tile(t + v));
    // what the first rows read comes from memory, what the others read from the second-level cache
    let next = if panel.top == rows.start { V * matrix.layout.tile_bytes() } else { 0 };
    let there = R.min(rows.end - panel.top);
    let mut totals = [[[0.0; ROWS]; R]; V];
    // SAFETY: the caller's promise.
    unsafe {
        for v in 0..V {
            for r in 0..there {
                totals[v][r] = if cols.start > 0 {
                    take(t + v, outs, y.row_mut(panel.top + r))
                } else {
                    L::store(tiles[v].begin::<L, F>())
                };
            }
        }
        for from in (*cols).clone().step_by(matrix.run) {
            let len = matrix.run.min(cols.end - from);
            let x = panel.numbers.as_ptr().add((from - cols.start) * R);
            let sums = if len < matrix.run {
                last_run::<L, F, R, V>(&tiles, x, from, len)
            } else {
                whole_run::<L, F, R, V>(&tiles, x, from, len, next)
            };
            for v in 0..V {
                let factor = L::all(tiles[v].factor::<F>(from / matrix.run));
                for r in 0..R {
                    let total = totals[v][r].as_mut_ptr();
                    L::store_floats(total, L::madd(sums[v][r], factor, L::load_floats(total)));
                }
            }
        }
    }
    for (v, totals) in totals.iter().enumerate() {
        for (r, sums) in totals[..there].iter().enumerate() {
            put(sums, t + v, outs, y.row_mut(panel.top + r));
        }
    }
}

/// The sums of `len` inputs from `from` on, a number of whole vectors: `x` has `R` rows. Memory is asked for: what lies `next` bytes
/// on, or, where that is 0, from the second-level cache what comes soon.
///
/// # Safety
/// As for [`several_rows`].
#[inline(always)]
unsafe fn whole_run<L: Lanes, F: Wide, const R: usize, const V: usize>(
    tiles: &[Tile<'_>; V],
    x: *const f32,
    from: usize,
    len: usize,
    next: usize,
) -> [[L::Floats; R]; V] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[L::all(0.0); R]; V];
        for i in 0..len / F::INPUTS {
            let mut numbers = [[L::all(0.0); 4]; V];
            for v in 0..V {
                let codes = tiles[v].codes.add((from / F::INPUTS + i) * 64);
                if next > 0 {
                    L::prefetch_far(codes.wrapping_add(next));
                } else {
                    L::prefetch(codes.wrapping_add(AHEAD));
                }
                numbers[v] = F::line::<L>(codes);
            }
            for k in 0..F::INPUTS {
                add::<L, R, V>(&numbers, k, x.add((i * F::INPUTS + k) * R), &mut sums);
            }
        }
        sums
    }
}

/// The sums of the last inputs, `len` from `from` on, which need not be whole vectors.
///
/// # Safety
/// As for [`several_rows`].
#[inline(always)]
unsafe fn last_run<L: Lanes, F: Wide, const R: usize, const V: usize>(
    tiles: &[Tile<'_>; V],
    x: *const f32,
    from: usize,
    len: usize,
) -> [[L::Floats; R]; V] {
    // SAFETY: the caller's promise; tiles are filled up to whole vectors.
    unsafe {
        let mut sums = [[L::all(0.0); R]; V];
        for i in (0..len).step_by(F::INPUTS) {
            let mut numbers = [[L::all(0.0); 4]; V];
            for v in 0..V {
                numbers[v] = F::line::<L>(tiles[v].codes.add((from + i) / F::INPUTS * 64));
            }
            for k in 0..F::INPUTS.min(len - i) {
                add::<L, R, V>(&numbers, k, x.add((i + k) * R), &mut sums);
            }
        }
        sums
    }
}

/// Adds the products of one input.
///
/// # Safety
/// As for [`Lanes`]; there are `R` numbers at `x`.
#[inline(always)]
unsafe fn add<L: Lanes, const R: usize, const V: usize>(
    numbers: &[[L::Floats; 4]; V],
    k: usize,
    x: *const f32,
    sums: &mut [[L::Floats; R]; V],
) {
    for r in 0..R {
        // SAFETY: the caller's promise.
        unsafe {
            let x = L::all(*x.add(r));
            for v in 0..V {
                sums[v][r] = L::madd(numbers[v][k], x, sums[v][r]);
            }
        }
    }
}
