//! Products of few f32 input rows: codes are decoded in registers and multiplied immediately.
//!
//! The inputs of a group are the outer loop and columns the inner one, so that words are read in
//! the order of memory: a whole row of columns, then the next. The sums of a block of columns stay
//! in L1 meanwhile.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::decode::codes;
use super::matrix::WORD;
use super::nibbles::{LANES, Nibbles};
use super::part::{GroupRange, W4ColumnBlock};
use crate::{MatrixView, MatrixViewMut};
use std::ops::Range;

/// Maximum inputs that are multiplied before their sum is scaled. Groups may be shorter.
const MAX_INPUTS: usize = 64;

/// Bytes of the sums of a block of columns: half of the smallest L1 cache.
const SUMS_BYTES: usize = 16 << 10;

/// Columns of a block, for `rows` rows.
pub(super) fn block_cols(rows: usize) -> usize {
    SUMS_BYTES / size_of::<f32>() / rows / LANES * LANES
}

/// y = x · W for the columns of `part`, over the inputs `k` (from and to multiples of 8).
///
/// # Panics
/// When the shapes differ.
///
/// # Safety
/// The part has the inputs `k`. The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(super) unsafe fn fused<L: Nibbles>(
    part: &W4ColumnBlock<'_>,
    x: &MatrixView<'_>,
    k: Range<usize>,
    y: &mut MatrixViewMut<'_>,
    sums: &mut Vec<f32>,
) {
    assert!(x.rows() == y.rows() && k.end <= x.cols() && y.cols() == part.cols, "shapes of a product");
    let mut row = 0;
    while row < y.rows() {
        macro_rules! rows {
            ($r:literal) => {{
                let mut inputs: [&[f32]; $r] = [&[]; $r];
                for r in 0..$r {
                    inputs[r] = x.row(row + r);
                }
                let block = block_cols($r);
                for from in (0..part.cols).step_by(block) {
                    let cols = from..(from + block).min(part.cols);
                    sums.clear();
                    sums.resize(cols.len() * $r, 0.0);
                    for run in part.runs(k.clone(), MAX_INPUTS) {
                        // SAFETY: rows of `x` have the inputs, `sums` has room for the columns; the
                        // rest by this function's contract.
                        unsafe { add_run::<L, $r>(part, &inputs, run, cols.clone(), sums.as_mut_ptr()) }
                    }
                    for (vector, sums) in sums.chunks_exact($r * LANES).enumerate() {
                        for (r, sums) in sums.chunks_exact(LANES).enumerate() {
                            y.row_mut(row + r)[from + vector * LANES..][..LANES].copy_from_slice(sums);
                        }
                    }
                }
                row += $r;
            }};
        }
        match y.rows() - row {
            // As many rows per pass as there are registers for two accumulators of each.
            4.. if L::TWO_TILES => rows!(4),
            2.. => rows!(2),
            _ => rows!(1),
        }
    }
}

/// Adds the products of a run: `sums` has sixteen sums per row for each vector of columns.
///
/// # Safety
/// The part has the run and the columns, rows of `x` its inputs, and `sums` room. The caller is
/// compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
unsafe fn add_run<L: Nibbles, const R: usize>(
    part: &W4ColumnBlock<'_>,
    x: &[&[f32]; R],
    run: GroupRange,
    cols: Range<usize>,
    sums: *mut f32,
) {
    // SAFETY: everything is inside of the part, the rows and `sums` by this function's contract, as
    // is the ISA.
    unsafe {
        let table = L::table(part.values);
        let mut totals = [0.0f32; R];
        if part.zeros.is_some() {
            for r in 0..R {
                totals[r] = x[r][run.start..run.end].iter().sum();
            }
        }
        for (vector, col) in cols.step_by(LANES).enumerate() {
            // Two accumulators per row halve the chain of dependent additions. For any number of
            // rows, so that a row has the same bits alone and in a batch.
            let mut acc = [[L::splat_f32(0.0); 2]; R];
            for word in run.start / WORD..run.end.div_ceil(WORD) {
                let words = part.words.as_ptr().add(word * part.stride + part.first + col);
                L::prefetch(words.wrapping_add(PREFETCH_WORDS).cast());
                let words = L::load_words(words, table);
                let whole = word * WORD >= run.start && (word + 1) * WORD <= run.end;
                if whole {
                    codes!(|J| {
                        let value = L::value::<J>(words, table);
                        for r in 0..R {
                            let x = L::splat_f32(*x[r].as_ptr().add(word * WORD + J as usize));
                            let acc = &mut acc[r][J as usize % 2];
                            *acc = L::mul_add_relaxed(x, value, *acc);
                        }
                    });
                } else {
                    codes!(|J| {
                        let k = word * WORD + J as usize;
                        if (run.start..run.end).contains(&k) {
                            let value = L::value::<J>(words, table);
                            for r in 0..R {
                                acc[r][0] = L::mul_add_relaxed(L::splat_f32(x[r][k]), value, acc[r][0]);
                            }
                        }
                    });
                }
            }
            let at = run.group * part.stride + part.first + col;
            let scale = part.scales.load::<L>(at, part.factor);
            for r in 0..R {
                let mut sum = L::mul_add_relaxed(L::splat_f32(1.0), acc[r][1], acc[r][0]);
                if let Some(zeros) = part.zeros {
                    let zero = L::load_zeros(zeros.as_ptr().add(at));
                    sum = L::mul_add_relaxed(L::splat_f32(-totals[r]), zero, sum);
                }
                let out = sums.add((vector * R + r) * LANES);
                L::store_f32(out, L::mul_add_relaxed(sum, scale, L::load_f32(out)));
            }
        }
    }
}

/// Prefetch distance in words: 1 KB along the row of columns.
const PREFETCH_WORDS: usize = 256;
