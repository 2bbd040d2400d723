//! Products of bf16 pairs in AMX tiles: a step is four words of K, sixteen pairs. All codes are
//! exact in bf16. The sums of a group are stored from the tiles and scaled in f32.
#![allow(
    unsafe_code,
    reason = "tile and vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::gemm::prefetch_below;
use super::input::{TILE_ROWS, W4Form, W4Input, tile_row};
use super::matrix::WORD;
use super::nibbles::LANES;
use super::pairs::{PAIRS, PairStrides, decode};
use super::part::W4ColumnBlock;
use crate::MatrixViewMut;
use crate::bf16::dot::{AmxTiles, Bf16Dot, NR};
use crate::isa::isa_fn;
use crate::simd::avx512::Avx512;
use std::arch::x86_64::*;
use std::ops::Range;

/// Words of K per step.
const STEP: usize = TILE_ROWS / PAIRS;

/// Words of a tile of weights: sixteen pairs of sixteen columns.
const TILE: usize = TILE_ROWS * LANES;

/// Vectors of columns of a strip: two tiles.
const VECTORS: usize = NR / LANES;

/// Words of K of a strip. If groups are whole steps, it has 16 KB of pairs; a group of one word
/// takes a step of its own.
const STRIP_WORDS: usize = 32;

/// Layout of decoded words: a step has a tile per vector.
const STRIDES: PairStrides = PairStrides { word: PAIRS * LANES, pair: LANES, vector: TILE };

/// y = x · W for the columns of `part` and the rows `rows` of the input, over the inputs `k` (from
/// and to multiples of 8): a strip of weights is decoded to tiles once and multiplied with all
/// rows.
///
/// # Panics
/// When the shapes differ, groups are not of whole words, or the CPU has no tiles.
///
/// # Safety
/// The part has the inputs `k`; the CPU has AVX512-BF16.
pub(super) unsafe fn strips(
    part: &W4ColumnBlock<'_>,
    input: &W4Input<'_>,
    (rows, k): (Range<usize>, Range<usize>),
    y: &mut MatrixViewMut<'_>,
    (strip, sums): (&mut Vec<u32>, &mut Vec<f32>),
) {
    assert!(rows.len() == y.rows() && k.end <= input.k() && y.cols() == part.cols, "shapes of a product");
    assert!(part.group.is_multiple_of(WORD), "groups of {} in tiles", part.group);
    let mut tiles = AmxTiles::new();
    let (panels, height) = input.panels(W4Form::TileRows, &rows);
    let stride = tile_row(input.k());
    // Zeros: a missing second vector of columns is multiplied too, and must be finite.
    strip.clear();
    strip.resize(STRIP_WORDS * VECTORS * TILE, 0);
    for from in (0..part.cols).step_by(NR) {
        let vectors = ((part.cols - from) / LANES).min(VECTORS);
        sums.clear();
        sums.resize(rows.len().next_multiple_of(height) * NR, 0.0);
        for first in k.clone().step_by(STRIP_WORDS * WORD) {
            let inputs = first..(first + STRIP_WORDS * WORD).min(k.end);
            let panels = panels.chunks_exact(height * stride).zip(sums.chunks_exact_mut(height * NR));
            // SAFETY: the strip has room for a step per word, and the part has the words and
            // vectors by this function's contract, as is the ISA.
            unsafe {
                load(part, inputs.clone(), (from, vectors), strip);
                prefetch_below::<Avx512>(part, inputs.end, from..from + vectors * LANES);
                for (panel, sums) in panels {
                    if height == TILE_ROWS {
                        multiply::<1>(
                            &mut tiles,
                            part,
                            (panel, stride),
                            &inputs,
                            (from, vectors),
                            (strip, sums),
                        );
                    } else {
                        multiply::<2>(
                            &mut tiles,
                            part,
                            (panel, stride),
                            &inputs,
                            (from, vectors),
                            (strip, sums),
                        );
                    }
                }
            }
        }
        for (i, sums) in sums.chunks_exact(NR).take(rows.len()).enumerate() {
            y.row_mut(i)[from..][..vectors * LANES].copy_from_slice(&sums[..vectors * LANES]);
        }
    }
}

/// Words of K of each step of a run.
fn steps(run: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = run.end;
    run.step_by(STEP * WORD).map(move |start| start..(start + STEP * WORD).min(end))
}

/// Decodes a strip, step by step. Words that are missing in a run's last step are zeros.
///
/// # Safety
/// The part has the inputs and vectors, and the strip room for a step per word. The CPU has
/// AVX512-BF16.
unsafe fn load(part: &W4ColumnBlock<'_>, k: Range<usize>, columns: (usize, usize), strip: &mut [u32]) {
    let mut out = strip.chunks_exact_mut(VECTORS * TILE);
    for run in part.runs(k, usize::MAX) {
        for (step, out) in steps(run.start..run.end).zip(&mut out) {
            // A step always multiplies sixteen pairs. Those beyond the run belong to the next
            // group, whose scale differs, so their weights must be 0.
            if step.len() < STEP * WORD {
                out.fill(0);
            }
            // SAFETY: a step of at most four words, for which `out` has tiles; the rest by this
            // function's contract.
            unsafe { decode(part, step, columns, (out.as_mut_ptr(), STRIDES)) }
        }
    }
}

/// Adds the products of a panel's inputs `k` and a strip to the panel's sums.
///
/// # Safety
/// The panel has `T` times sixteen rows with the inputs, `stride` words apart, the strip holds
/// these decoded for the vectors from column `col`, and there are as many rows of sums. The CPU has
/// AVX-512.
unsafe fn multiply<const T: usize>(
    tiles: &mut AmxTiles,
    part: &W4ColumnBlock<'_>,
    (panel, stride): (&[u32], usize),
    k: &Range<usize>,
    (col, vectors): (usize, usize),
    (strip, sums): (&[u32], &mut [f32]),
) {
    // Tiles cannot be scaled in place, so the sums of each group pass through this buffer.
    let mut products = [[0.0; NR]; 2 * TILE_ROWS];
    let mut weights = strip.as_ptr();
    for run in part.runs(k.clone(), usize::MAX) {
        let steps = steps(run.start..run.end).count();
        let mut left = [panel.as_ptr().wrapping_add(run.start / 2).cast::<u8>(); T];
        if T == 2 {
            left[T - 1] = left[0].wrapping_byte_add(TILE_ROWS * stride * size_of::<u32>());
        }
        let to = (products.as_mut_ptr().cast(), size_of::<[f32; NR]>());
        // SAFETY: rows of the panel, whose padding covers a last step; tiles of the strip; as many
        // rows of products.
        unsafe {
            tiles.multiply::<T>((left, stride * size_of::<u32>()), weights.cast(), steps, None, to);
            weights = weights.add(steps * VECTORS * TILE);
            let at = run.group * part.stride + part.first + col;
            scale(part, (at, vectors), &products[..T * TILE_ROWS], sums.as_mut_ptr());
        }
    }
}

isa_fn! { Avx512;
/// Adds rows of products times the scales from index `at` to rows of sums.
///
/// # Safety
/// The part has the scales of the vectors from there, and there are as many rows at `sums`; the CPU
/// has AVX-512.
unsafe fn scale(part: &W4ColumnBlock<'_>, (at, vectors): (usize, usize), products: &[[f32; NR]], sums: *mut f32) {
    // SAFETY: scales, products and sums by this function's contract, as is the ISA.
    unsafe {
        for v in 0..vectors {
            let scale = part.scales.load::<Avx512>(at + v * LANES, part.factor);
            for (i, products) in products.iter().enumerate() {
                let sum = sums.add(i * NR + v * LANES);
                let product = _mm512_loadu_ps(products.as_ptr().add(v * LANES));
                _mm512_storeu_ps(sum, _mm512_fmadd_ps(product, scale, _mm512_loadu_ps(sum)));
            }
        }
    }
}
}
