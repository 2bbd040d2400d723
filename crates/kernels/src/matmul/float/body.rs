//! Products of f32 rows with tiles of floats, written once for all instruction sets.
//!
//! An output is y = Σ over runs of 128 inputs (or as many as share a factor), in order, of factor · (Σ over the run, in order, of
//! weight · input). Each multiplication and addition is one operation, rounded once, where the instruction set has that: AVX2 and AVX-512
//! give the same bits, for any number of rows and any share of the outputs. The inputs are not rounded.

use super::formats::FloatFormat;
use super::panels::{Panels, fit};
use crate::matmul::body::source;
use crate::simd::Simd;
use crate::{MatmulArgs, Rows, RowsMut, Scratch, WeightMatrix};
use latent_quant::tiles::{Plane, ROWS, TileLayout};
use std::ops::Range;

/// Inputs that are summed before their sum is added to those of others, where no factors say otherwise.
const RUN: usize = 128;

/// Runs of one row that are summed side by side, so that no addition waits for the one before.
const ACCUMULATORS: usize = 4;

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
    nan_flags: *const f32,
    /// A factor for each run, where there are any.
    factors: Option<&'a [f32]>,
}

impl<'a, 'w> Matrix<'a, 'w> {
    /// A weight in tiles of the format, and the row of the tiles that is its first.
    #[inline(always)]
    pub(super) fn new<F: FloatFormat>(w: &'a WeightMatrix<'w>) -> Option<(Matrix<'a, 'w>, usize)> {
        let (layout, first) = w.tile_layout()?;
        assert!(w.ty() == F::TY, "{} for {}", w.ty(), F::TY);
        Some((Matrix { w, layout, run: w.scales().map_or(RUN, |scales| scales.cols) }, first))
    }

    /// The tile at `index`.
    #[inline(always)]
    pub(super) fn tile(&self, index: usize) -> Tile<'_> {
        let bytes = &self.w.bytes()[index * self.layout.tile_bytes()..][..self.layout.tile_bytes()];
        Tile {
            codes: bytes.as_ptr(),
            nan_flags: bytes[self.layout.start(Plane::Factors).min(bytes.len())..].as_ptr().cast(),
            factors: self.w.scales().map(|scales| scales.of_row(index * ROWS, self.w.cols())),
        }
    }
}

impl Tile<'_> {
    /// The factor of run `r`.
    #[inline(always)]
    pub(super) fn factor<F: FloatFormat>(&self, r: usize) -> f32 {
        self.factors.map_or(F::FACTOR, |factors| factors[r] * F::FACTOR)
    }

    /// Whether a row of the tile, of a format with marks, holds a NaN.
    #[inline(always)]
    pub(super) fn holds_nan(&self) -> bool {
        // SAFETY: a tile of a format with marks ends with sixteen of them, and any bits are a number.
        unsafe { self.nan_flags.cast::<[f32; ROWS]>().read_unaligned() }.iter().any(|mark| mark.is_nan())
    }

    /// What the sums of sixteen outputs begin with.
    ///
    /// # Safety
    /// As for [`Simd`]; the tile is one of the format.
    #[inline(always)]
    unsafe fn begin<L: Simd, F: FloatFormat>(&self) -> L::F32x16 {
        // SAFETY: the caller's promise; a tile of a format with marks ends with sixteen.
        unsafe { if F::NAN_FLAGS { L::load_f32(self.nan_flags) } else { L::splat_f32(0.0) } }
    }
}

/// `y[i][o − outs.start]` for all rows i (of `x`, by way of `index`).
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn multiply<L: Simd, F: FloatFormat>(
    x: &Rows<'_>,
    args: MatmulArgs<'_, '_>,
    scratch: &mut Scratch,
) {
    let MatmulArgs { weight: w, row_ids: index, outputs: outs, y, .. } = args;
    let Some((matrix, first)) = Matrix::new::<F>(w) else { return };
    assert!(x.cols() == w.cols(), "{} inputs for {}", x.cols(), w.cols());
    let range = outs.start <= outs.end && outs.end <= w.rows();
    assert!(range && y.cols() == outs.len(), "outputs {outs:?} of {}", w.rows());
    let outs = first + outs.start..first + outs.end;
    let tiles = outs.start / ROWS..outs.end.div_ceil(ROWS);
    if y.rows() == 1 || L::MR == 1 {
        for t in tiles {
            for row in 0..y.rows() {
                let x = x.row(source(index, row));
                // SAFETY: the row is as long as those of the tile, as asserted above.
                let sums = unsafe { one_row::<L, F>(&matrix, &matrix.tile(t), x) };
                put(&sums, t, &outs, y.row_mut(row));
            }
        }
        return;
    }
    let (block_rows, block_cols) = fit(y.rows(), w.cols(), matrix.run);
    for top in (0..y.rows()).step_by(block_rows) {
        let rows = top..(top + block_rows).min(y.rows());
        for left in (0..w.cols()).step_by(block_cols) {
            let place =
                Place { rows: rows.clone(), cols: left..(left + block_cols).min(w.cols()), outs: &outs };
            let others = (rows.len() + matrix.run) * L::NR_VECTORS * ROWS;
            let (panels, others) =
                Panels::new::<L>(x, index, rows.clone(), &place.cols, others, &mut scratch.numbers);
            let mut t = tiles.start;
            while t < tiles.end {
                let vectors = (tiles.end - t).min(L::NR_VECTORS);
                macro_rules! tiles {
                    ($v:literal) => {
                        // SAFETY: the panels have the rows, and columns of the matrix; the tiles are there.
                        unsafe { some_tiles::<L, F, $v>(&matrix, t, &panels, &place, others, y) }
                    };
                }
                if vectors > 1 {
                    tiles!(2)
                } else {
                    tiles!(1)
                }
                t += vectors;
            }
        }
    }
}

/// Those of the sums of tile `t` that are among the outputs.
#[inline(always)]
fn put(sums: &[f32], t: usize, outs: &Range<usize>, row: &mut [f32]) {
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
/// As for [`Simd`]; the tile is one of the matrix, whose rows are as long as `x`.
#[inline(always)]
unsafe fn one_row<L: Simd, F: FloatFormat>(
    matrix: &Matrix<'_, '_>,
    tile: &Tile<'_>,
    x: &[f32],
) -> [f32; ROWS] {
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
                    let mut sums = [L::splat_f32(0.0); $side];
                    for i in 0..run / F::INPUTS {
                        for (s, sum) in sums.iter_mut().enumerate() {
                            let from = codes.add(line(s * run) + i * 64);
                            // the same vector of the next tile
                            L::prefetch_far(from.wrapping_add(next));
                            let numbers = F::line::<L>(from);
                            for k in 0..F::INPUTS {
                                let x = L::splat_f32(*x.add(s * run + i * F::INPUTS + k));
                                *sum = L::mul_add_relaxed(numbers[k], x, *sum);
                            }
                        }
                    }
                    for (s, sum) in sums.into_iter().enumerate() {
                        total = L::mul_add_relaxed(sum, L::splat_f32(tile.factor::<F>(at / run + s)), total);
                    }
                    at += $side * run;
                }
            };
        }
        runs!(ACCUMULATORS);
        runs!(1);
        if at < x.len() {
            let sums = packed_run::<L, F, 1, 1>(matrix, &[*tile], x.as_ptr().add(at), &(at..x.len()));
            total = L::mul_add_relaxed(sums[0][0], L::splat_f32(tile.factor::<F>(at / run)), total);
        }
        L::store(total)
    }
}

/// Which rows and columns of the inputs, and which outputs take part.
struct Place<'a> {
    rows: Range<usize>,
    cols: Range<usize>,
    outs: &'a Range<usize>,
}

/// Outputs of `V` tiles from `t` on of all rows of the panels. The sums go on from `y` unless the columns are the first. One panel is multiplied
/// with vectors as they are unpacked; for several panels a run of the tiles is unpacked once. `memory` has room for sixteen sums of each
/// row and tile, and for a run of the tiles.
///
/// # Safety
/// As for [`Simd`]; the panels have the rows and columns, which begin with a run, and the tiles are there.
#[inline(always)]
unsafe fn some_tiles<L: Simd, F: FloatFormat, const V: usize>(
    matrix: &Matrix<'_, '_>,
    t: usize,
    panels: &Panels<'_>,
    place: &Place<'_>,
    memory: &mut [f32],
    y: &mut RowsMut<'_>,
) {
    let Place { rows, cols, outs } = place;
    let tiles: [Tile<'_>; V] = std::array::from_fn(|v| matrix.tile(t + v));
    let (totals, unpacked) = memory.split_at_mut(rows.len() * V * ROWS);
    for (row, totals) in rows.clone().zip(totals.chunks_exact_mut(V * ROWS)) {
        for (v, total) in totals.chunks_exact_mut(ROWS).enumerate() {
            if cols.start > 0 {
                total.copy_from_slice(&take(t + v, outs, y.row_mut(row)));
            } else {
                // SAFETY: the caller's promise; sixteen numbers.
                unsafe { L::store_f32(total.as_mut_ptr(), tiles[v].begin::<L, F>()) };
            }
        }
    }
    let several = rows.len() > panels.wide();
    for from in cols.clone().step_by(matrix.run) {
        let run = from..(from + matrix.run).min(cols.end);
        // SAFETY: the caller's promise; the memory has room for a run.
        unsafe {
            if several {
                unpack::<L, F, V>(matrix, &tiles, &run, &mut unpacked[..run.len() * V * ROWS]);
            }
        }
        let mut factors = [0.0; V];
        for v in 0..V {
            factors[v] = tiles[v].factor::<F>(from / matrix.run);
        }
        for panel in panels.iter() {
            let there = panel.height.min(rows.end - panel.top);
            let totals = &mut totals[(panel.top - rows.start) * V * ROWS..][..there * V * ROWS];
            let x = panel.numbers[(from - cols.start) * panel.height..].as_ptr();
            macro_rules! rows {
                ($r:literal) => {{
                    // SAFETY: the caller's promise; the panel has numbers for the run.
                    unsafe {
                        let sums = if several {
                            unpacked_run::<L, $r, V>(unpacked.as_ptr(), x, run.len())
                        } else {
                            packed_run::<L, F, $r, V>(matrix, &tiles, x, &run)
                        };
                        for (r, totals) in totals.chunks_exact_mut(V * ROWS).enumerate() {
                            for v in 0..V {
                                let total = totals.as_mut_ptr().add(v * ROWS);
                                let sum = L::mul_add_relaxed(
                                    sums[v][r],
                                    L::splat_f32(factors[v]),
                                    L::load_f32(total),
                                );
                                L::store_f32(total, sum);
                            }
                        }
                    }
                }};
            }
            if panel.height == 8 { rows!(8) } else { rows!(4) }
        }
    }
    for (row, totals) in rows.clone().zip(totals.chunks_exact(V * ROWS)) {
        for (v, total) in totals.chunks_exact(ROWS).enumerate() {
            put(total, t + v, outs, y.row_mut(row));
        }
    }
}

/// Unpacks a run of tiles: for each input the numbers of sixteen rows of each tile.
///
/// # Safety
/// As for [`Simd`]; the tiles have the run, and `out` has room for it.
#[inline(always)]
unsafe fn unpack<L: Simd, F: FloatFormat, const V: usize>(
    matrix: &Matrix<'_, '_>,
    tiles: &[Tile<'_>; V],
    run: &Range<usize>,
    out: &mut [f32],
) {
    for at in run.clone().step_by(F::INPUTS) {
        for v in 0..V {
            // SAFETY: the caller's promise; tiles are filled up to whole vectors.
            unsafe {
                let codes = tiles[v].codes.add(at / F::INPUTS * 64);
                L::prefetch_far(codes.wrapping_add(V * matrix.layout.tile_bytes()));
                let numbers = F::line::<L>(codes);
                for k in 0..F::INPUTS.min(run.end - at) {
                    let to = out.as_mut_ptr().add(((at - run.start + k) * V + v) * ROWS);
                    L::store_f32(to, numbers[k]);
                }
            }
        }
    }
}

/// Sums of a run of `len` inputs that is unpacked: `x` has `R` rows.
///
/// # Safety
/// As for [`Simd`]; there are `V` tiles of so many inputs at `unpacked`, and as many of each row at `x`.
#[inline(always)]
unsafe fn unpacked_run<L: Simd, const R: usize, const V: usize>(
    unpacked: *const f32,
    x: *const f32,
    len: usize,
) -> [[L::F32x16; R]; V] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[L::splat_f32(0.0); R]; V];
        for k in 0..len {
            let mut numbers = [[L::splat_f32(0.0)]; V];
            for v in 0..V {
                numbers[v][0] = L::load_f32(unpacked.add((k * V + v) * ROWS));
            }
            add::<L, 1, R, V>(&numbers, 0, x.add(k * R), &mut sums);
        }
        sums
    }
}

/// Sums of a run as it is unpacked: `x` has `R` rows. The same run of the next tiles is asked for.
///
/// # Safety
/// As for [`Simd`]; the tiles have the run, and there are as many numbers of each row at `x`.
#[inline(always)]
unsafe fn packed_run<L: Simd, F: FloatFormat, const R: usize, const V: usize>(
    matrix: &Matrix<'_, '_>,
    tiles: &[Tile<'_>; V],
    x: *const f32,
    run: &Range<usize>,
) -> [[L::F32x16; R]; V] {
    let next = V * matrix.layout.tile_bytes();
    // SAFETY: the caller's promise; tiles are filled up to whole vectors.
    unsafe {
        let mut sums = [[L::splat_f32(0.0); R]; V];
        macro_rules! line {
            ($at:expr, $count:expr) => {{
                let at: usize = $at;
                let mut numbers = [[L::splat_f32(0.0); 4]; V];
                for v in 0..V {
                    let codes = tiles[v].codes.add(at / F::INPUTS * 64);
                    L::prefetch_far(codes.wrapping_add(next));
                    numbers[v] = F::line::<L>(codes);
                }
                for k in 0..$count {
                    add::<L, 4, R, V>(&numbers, k, x.add((at - run.start + k) * R), &mut sums);
                }
            }};
        }
        let whole = run.start + run.len() / F::INPUTS * F::INPUTS;
        let mut at = run.start;
        while at < whole {
            line!(at, F::INPUTS);
            at += F::INPUTS;
        }
        if whole < run.end {
            line!(whole, run.end - whole);
        }
        sums
    }
}

/// Adds the products of input `k` of those of a vector.
///
/// # Safety
/// As for [`Simd`]; there are `R` numbers at `x`.
#[inline(always)]
unsafe fn add<L: Simd, const K: usize, const R: usize, const V: usize>(
    numbers: &[[L::F32x16; K]; V],
    k: usize,
    x: *const f32,
    sums: &mut [[L::F32x16; R]; V],
) {
    for r in 0..R {
        // SAFETY: the caller's promise.
        unsafe {
            let x = L::splat_f32(*x.add(r));
            for v in 0..V {
                sums[v][r] = L::mul_add_relaxed(numbers[v][k], x, sums[v][r]);
            }
        }
    }
}
