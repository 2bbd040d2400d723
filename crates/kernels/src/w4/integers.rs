//! Products with input rows as integers of `P` bytes with a scale per 32 inputs. Codes are looked
//! up as bytes in registers and multiplied with each byte of an input by the instructions for 8-bit
//! integers. Two bytes are the default for few rows; one byte is used on request, for any number of
//! rows.
//!
//! So a look-up gives 64 weights instead of sixteen or 32 floats, and the product of one input row
//! runs at the speed of memory. Sums of a run of inputs are exact. The rounding error of an input
//! is at most 2^-16 of the largest of its 32, or 2^-8 with one byte.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::fused::block_cols;
use super::input::{INTEGER_BLOCK, PanelWords, W4Form, W4Input};
use super::matrix::WORD;
use super::nibbles::{LANES, Nibbles};
use super::part::{GroupRange, W4ColumnBlock};
use crate::MatrixViewMut;
use crate::cpu_vendor::CpuVendor;
use std::ops::Range;

/// y = x · W for the columns of `part` and the rows `rows` of the input, over the inputs `k` (from
/// and to multiples of 8).
///
/// # Panics
/// When the shapes differ, or groups are not of whole words.
///
/// # Safety
/// The part has the inputs `k`. The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(super) unsafe fn fused<L: Nibbles, const P: usize>(
    part: &W4ColumnBlock<'_>,
    input: &W4Input<'_>,
    (rows, k): (Range<usize>, Range<usize>),
    y: &mut MatrixViewMut<'_>,
    sums: &mut Vec<f32>,
) {
    assert!(rows.len() == y.rows() && k.end <= input.k() && y.cols() == part.cols, "shapes of a product");
    assert!(part.group.is_multiple_of(WORD), "groups of {} in words", part.group);
    let (panels, height) = input.panels(if P == 1 { W4Form::Int8 } else { W4Form::Int16 }, &rows);
    let len = height * (input.k() / WORD) * PanelWords::<P>::COUNT;
    for (index, panel) in panels.chunks_exact(len.max(1)).enumerate() {
        let top = index * height;
        let mut row = 0;
        // As many rows per pass as there are registers for their accumulators.
        while row < height.min(rows.len() - top) {
            macro_rules! rows {
                ($r:literal) => {{
                    let block = block_cols($r);
                    for from in (0..part.cols).step_by(block) {
                        let cols = from..(from + block).min(part.cols);
                        sums.clear();
                        sums.resize(cols.len() * $r, 0.0);
                        for run in part.runs(k.clone(), INTEGER_BLOCK) {
                            // SAFETY: the panel has the rows and inputs, `sums` room for the
                            // columns; the rest by this function's contract.
                            unsafe {
                                add_run::<L, P, $r>(
                                    part,
                                    (&panel[row..], height),
                                    run,
                                    cols.clone(),
                                    sums.as_mut_ptr(),
                                );
                            }
                        }
                        for (vector, sums) in sums.chunks_exact($r * LANES).enumerate() {
                            for (r, sums) in sums.chunks_exact(LANES).enumerate() {
                                // The last panel is padded with rows of zeros.
                                if top + row + r < rows.len() {
                                    let at = from + vector * LANES;
                                    y.row_mut(top + row + r)[at..at + LANES].copy_from_slice(sums);
                                }
                            }
                        }
                    }
                    row += $r;
                }};
            }
            match (height - row).min(L::MR) {
                8.. if L::TWO_TILES && P == 1 => rows!(8),
                4.. if L::TWO_TILES => rows!(4),
                2.. => rows!(2),
                _ => rows!(1),
            }
        }
    }
}

/// Adds the products of a run to `sums`: sixteen per row for each vector of columns.
///
/// # Safety
/// The part has the run, in whole words, and the columns; `R` rows from the panel's start its
/// inputs; `sums` room. The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
unsafe fn add_run<L: Nibbles, const P: usize, const R: usize>(
    part: &W4ColumnBlock<'_>,
    panel: (&[u32], usize),
    run: GroupRange,
    cols: Range<usize>,
    sums: *mut f32,
) {
    // SAFETY: the contract is the same, with columns and sums cut alike.
    unsafe {
        let mut totals = [0; R];
        for word in run.start / WORD..run.end / WORD {
            for r in 0..R {
                totals[r] += lane::<P>(panel, word, PanelWords::<P>::TOTAL, r).read() as i32;
            }
        }
        // A constant for the loops below, as in GEMV. Zen 4 keeps few requests to L1 in flight: one
        // row takes 432 instead of 511 µs. With more rows, compute hides the latency, and L1 is
        // better.
        // measured: docs/notes/memory-and-prefetch.md "Zen 4: the same stream, to L2"
        if R == 1 && CpuVendor::detect() == CpuVendor::Amd {
            add_columns::<L, P, R, true>(part, panel, run, cols, &totals, sums);
        } else {
            add_columns::<L, P, R, false>(part, panel, run, cols, &totals, sums);
        }
    }
}

/// Adds the products of a run and all columns. Prefetches the words of the next run, to L2 if
/// `TO_L2`, else to L1.
///
/// # Safety
/// As for [`add_run`].
#[inline(always)]
unsafe fn add_columns<L: Nibbles, const P: usize, const R: usize, const TO_L2: bool>(
    part: &W4ColumnBlock<'_>,
    panel: (&[u32], usize),
    run: GroupRange,
    cols: Range<usize>,
    totals: &[i32; R],
    sums: *mut f32,
) {
    // SAFETY: the contract is the same, with columns and sums cut alike.
    unsafe {
        let mut col = cols.start;
        if L::TWO_TILES {
            while col + 2 * LANES <= cols.end {
                let sums = sums.add((col - cols.start) * R);
                add_vectors::<L, P, R, 2, TO_L2>(part, panel, run, col, totals, sums);
                col += 2 * LANES;
            }
        }
        while col < cols.end {
            let sums = sums.add((col - cols.start) * R);
            add_vectors::<L, P, R, 1, TO_L2>(part, panel, run, col, totals, sums);
            col += LANES;
        }
    }
}

/// Address of a lane of a word, of row `r` from the panel's start.
#[inline(always)]
fn lane<const P: usize>((panel, height): (&[u32], usize), word: usize, lane: usize, r: usize) -> *const u32 {
    panel.as_ptr().wrapping_add((word * PanelWords::<P>::COUNT + lane) * height + r)
}

/// Adds the products of a run and `V` vectors of columns.
///
/// # Safety
/// As for [`add_run`].
#[inline(always)]
unsafe fn add_vectors<L: Nibbles, const P: usize, const R: usize, const V: usize, const TO_L2: bool>(
    part: &W4ColumnBlock<'_>,
    panel: (&[u32], usize),
    run: GroupRange,
    col: usize,
    totals: &[i32; R],
    sums: *mut f32,
) {
    // SAFETY: everything is inside of the part, the panel and `sums` by this function's contract,
    // as is the ISA.
    unsafe {
        let table = L::byte_table(&part.bytes);
        // One accumulator per byte of the inputs; the lowest byte's is the last. It starts with the
        // correction for codes that are biased to be unsigned.
        let mut acc = [[[L::zero(); V]; P]; R];
        for r in 0..R {
            acc[r][P - 1] = [L::splat_i32(-i32::from(part.bias) * totals[r]); V];
        }
        let words = run.start / WORD..run.end / WORD;
        for word in words.clone() {
            let from = part.words.as_ptr().add(word * part.stride + part.first + col);
            let mut codes = [[L::load(from.cast()); 2]; V];
            for v in 0..V {
                let from = from.add(v * LANES);
                let next = from.wrapping_add(words.len() * part.stride).cast();
                if TO_L2 {
                    L::prefetch_far(next)
                } else {
                    L::prefetch(next)
                }
                codes[v] = L::shuffle_codes(L::load(from.cast()), table);
            }
            macro_rules! products {
                ($codes:literal, $first:expr) => {
                    for r in 0..R {
                        for byte in 0..P {
                            let x = lane::<P>(panel, word, $first + byte, r);
                            for v in 0..V {
                                acc[r][byte][v] = L::dot(acc[r][byte][v], codes[v][$codes], x.cast());
                            }
                        }
                    }
                };
            }
            products!(0, 0);
            products!(1, PanelWords::<P>::ODD);
        }
        let at = run.group * part.stride + part.first + col;
        part.prefetch_group::<L>(at + part.stride);
        for v in 0..V {
            let scale = part.scales.load::<L>(at + v * LANES, part.factor);
            for r in 0..R {
                let mut sum = L::to_f32(acc[r][P - 1][v]);
                if P == 2 {
                    // 256 · upper + lower.
                    sum = L::mul_add_relaxed(L::to_f32(acc[r][0][v]), L::splat_f32(256.0), sum);
                }
                if let Some(zeros) = part.zeros {
                    let zero = L::load_zeros(zeros.as_ptr().add(at + v * LANES));
                    sum = L::mul_add_relaxed(L::splat_f32(-(totals[r] as f32)), zero, sum);
                }
                let x_scale = f32::from_bits(lane::<P>(panel, words.start, PanelWords::<P>::SCALE, r).read());
                let out = sums.add((v * R + r) * LANES);
                let sum = L::mul(sum, L::splat_f32(x_scale));
                L::store_f32(out, L::mul_add_relaxed(sum, scale, L::load_f32(out)));
            }
        }
    }
}
