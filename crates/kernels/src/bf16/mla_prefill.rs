//! Attention of prompts, and the expansion of its keys, on tiles or by vectors.
//!
//! Scores are keys · queries: a row for each cached row, with queries as the lanes of vectors, so that nothing is summed or
//! compared across a register. Weights become a right factor as they are made, two cached rows in a line, and results are values · weights, with
//! queries as lanes again, until all is summed up.
//!
//! Factors are rounded to bf16 (2⁻⁹ of each), sums are f32. A block of keys is read from memory once for all queries of a call.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::dot::Bf16Dot;
use super::layout::{Matrix, aligned, pair, right_panel, right_panel_of_columns, transpose};
use super::softmax::{MASKED, softmax_block};
use crate::attention::bf16_layout::{K_STEP, KV_BLOCK, PANEL, STEP_LEN, steps};
use crate::attention::{Expanded, HeadWidths, KeyBlocks, KeyOrder};
use crate::{Rows, RowsMut};
use half::bf16;
use std::arch::x86_64::*;

/// Numbers of a product of two panels.
const SQUARE: usize = PANEL * PANEL;

/// As [`AttendExpandedFn`](crate::AttendExpandedFn), over keys and values in panels.
///
/// # Panics
/// When shapes differ, or the processor has no such unit.
pub(super) fn attend<U: Bf16Dot>(
    q: Rows<'_>,
    expanded: &Expanded<'_, bf16>,
    position: usize,
    scales: &[f32],
    out: &mut RowsMut<'_>,
    memory: &mut Vec<f32>,
) {
    expanded.check(&q, position, scales, out);
    let (queries, nope) = (q.rows(), expanded.widths.nope);
    let shape = Shape::new(expanded, position + queries);
    let sets = queries.div_ceil(PANEL);
    let sizes = [
        sets * shape.query() / 2,
        KV_BLOCK * PANEL,
        KV_BLOCK * PANEL / 2,
        sets * shape.values * SQUARE,
        sets * PANEL,
        sets * PANEL,
    ];
    let memory = aligned(memory, sizes.iter().sum());
    let (turned, rest) = memory.split_at_mut(sizes[0]);
    let (scores, rest) = rest.split_at_mut(sizes[1]);
    let (weights, rest) = rest.split_at_mut(sizes[2]);
    let (sums, rest) = rest.split_at_mut(sizes[3]);
    let (max, sum) = rest.split_at_mut(sizes[4]);
    let (turned, weights): (*mut bf16, *mut bf16) = (turned.as_mut_ptr().cast(), weights.as_mut_ptr().cast());
    max.fill(MASKED);
    sum.fill(0.0);
    let mut dot = U::new();
    for set in 0..sets {
        let rows = q.slice_rows(set * PANEL..queries.min((set + 1) * PANEL));
        // SAFETY: there is room for the panels of each set; a machine with the unit has the instructions.
        unsafe { pack_queries(rows, nope, &scales[set * PANEL..], turned.add(set * shape.query())) }
    }
    for block in 0..shape.blocks {
        let start = block * KV_BLOCK;
        // queries before the block see nothing of it
        for set in start.saturating_sub(position) / PANEL..sets {
            let first = position + set * PANEL;
            let end = position + queries.min((set + 1) * PANEL);
            let panels = KV_BLOCK.min(end - start).div_ceil(PANEL);
            let scores = &mut scores[..panels * SQUARE];
            let lanes = set * PANEL..(set + 1) * PANEL;
            let (max, sum) = (&mut max[lanes.clone()], &mut sum[lanes]);
            let sums = &mut sums[set * shape.values * SQUARE..(set + 1) * shape.values * SQUARE];
            // SAFETY: blocks of keys and values are there, as checked; `weights` has room for a step for each panel of keys; a machine with
            // the unit has the instructions.
            unsafe {
                qk(&mut dot, expanded, &shape, block, turned.add(set * shape.query()), scores);
                if first + 1 < start + panels * PANEL {
                    mask_future(scores, first, start);
                }
                let factors = softmax_both(scores, max, sum, weights);
                if block > 0 {
                    rescale(sums, &factors);
                }
                pv(&mut dot, expanded, &shape, block, (weights, panels), sums);
            }
        }
    }
    drop(dot);
    for (set, sums) in sums.chunks_exact(shape.values * SQUARE).enumerate() {
        // SAFETY: a machine with the unit has the instructions.
        unsafe { finish(sums, &sum[set * PANEL..][..PANEL], set * PANEL, out) }
    }
}

/// Steps of keys, of their rope part, and panels of values; blocks of cached rows.
struct Shape {
    nope: usize,
    rope: usize,
    values: usize,
    blocks: usize,
}

impl Shape {
    /// Of the first `rows` cached rows, of which there are as many.
    fn new(expanded: &Expanded<'_, bf16>, rows: usize) -> Shape {
        let HeadWidths { nope, rope, value } = expanded.widths;
        let [nope, rope, values] = [nope, rope, value].map(steps);
        Shape { nope, rope, values, blocks: rows.div_ceil(KV_BLOCK) }
    }

    /// Numbers of the panels of 32 queries.
    fn query(&self) -> usize {
        (self.nope + self.rope) * STEP_LEN
    }
}

/// Scores of the first panels of a block of keys with 32 queries, as many as `scores` has squares.
///
/// # Safety
/// As many panels of keys are there, and as many steps of queries at `right`.
unsafe fn qk(
    dot: &mut impl Bf16Dot,
    expanded: &Expanded<'_, bf16>,
    shape: &Shape,
    block: usize,
    right: *const bf16,
    scores: &mut [f32],
) {
    let keys = expanded.keys.as_ptr().wrapping_add(block * shape.nope * PANEL * KV_BLOCK);
    let rotated = expanded.rope_keys.as_ptr().wrapping_add(block * expanded.rope_stride);
    for (panel, square) in scores.chunks_exact_mut(SQUARE).enumerate() {
        let parts = [
            (keys.wrapping_add(panel * shape.nope * STEP_LEN), shape.nope),
            (rotated.wrapping_add(panel * shape.rope * STEP_LEN), shape.rope),
        ];
        // SAFETY: the caller's promise.
        unsafe { dot.panels(parts, right, false, square.as_mut_ptr()) }
    }
}

/// [`softmax_block`] for both halves of 32 queries.
///
/// # Safety
/// `weights` has room for a step for each square of scores; the processor has AVX-512 with BF16.
unsafe fn softmax_both(scores: &[f32], max: &mut [f32], sum: &mut [f32], weights: *mut bf16) -> [f32; PANEL] {
    let mut factors = [0.0; PANEL];
    let halves = max.chunks_exact_mut(16).zip(sum.chunks_exact_mut(16));
    for (half, ((max, sum), factors)) in halves.zip(factors.chunks_exact_mut(16)).enumerate() {
        let from = scores[half * 16..].as_ptr();
        let weights = weights.wrapping_add(half * STEP_LEN / 2);
        // SAFETY: rows of 32 scores; the caller's promise.
        let found = unsafe { softmax_block(from, PANEL, scores.len() / PANEL, max, sum, weights, STEP_LEN) };
        factors.copy_from_slice(&found);
    }
    factors
}

/// Adds the weighted values of the first panels of a block of cached rows; the sums of the first block are new.
///
/// # Safety
/// A block of values is there, and as many steps of weights as `panels`.
unsafe fn pv(
    dot: &mut impl Bf16Dot,
    expanded: &Expanded<'_, bf16>,
    shape: &Shape,
    block: usize,
    (weights, panels): (*const bf16, usize),
    sums: &mut [f32],
) {
    let values = expanded.values.as_ptr().wrapping_add(block * shape.values * PANEL * KV_BLOCK);
    for (panel, square) in sums.chunks_exact_mut(SQUARE).enumerate() {
        let left = values.wrapping_add(panel * KV_BLOCK / K_STEP * STEP_LEN);
        // SAFETY: the caller's promise.
        unsafe {
            dot.panels([(left, panels), (std::ptr::null(), 0)], weights, block > 0, square.as_mut_ptr())
        }
    }
}

/// Right panels of at most 32 queries, without position and rotated, times their scales. Scores are then exponents of 2.
///
/// # Safety
/// There is room for as many steps; the processor has AVX-512 with BF16.
unsafe fn pack_queries(rows: Rows<'_>, nope: usize, scales: &[f32], out: *mut bf16) {
    let mut factors = [0.0; PANEL];
    for (factor, scale) in factors.iter_mut().zip(scales) {
        *factor = scale * std::f32::consts::LOG2_E;
    }
    let (start, stride) = rows.raw();
    let content = Matrix { start, stride, rows: rows.rows(), cols: nope };
    let rotated = Matrix { start: start.wrapping_add(nope), cols: rows.cols() - nope, ..content };
    // SAFETY: rows of `nope` and more numbers; the caller's promise.
    unsafe {
        right_panel(content, &factors, out);
        right_panel(rotated, &factors, out.add(steps(nope) * STEP_LEN));
    }
}

crate::isa::isa_fn! { Avx512;
/// Scores of cached rows that a query does not see become [`MASKED`]. `query` and `key` are the positions of the first of both.
///
/// # Safety
/// The processor has AVX-512.
unsafe fn mask_future(scores: &mut [f32], query: usize, key: usize) {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (i, line) in scores.chunks_exact_mut(PANEL).enumerate() {
        for (half, scores) in line.chunks_exact_mut(16).enumerate() {
            // the last cached row that each query sees, counted from the first of the block
            let last = _mm512_set1_epi32((query + 16 * half) as i32 - key as i32);
            let hidden = _mm512_cmplt_epi32_mask(_mm512_add_epi32(last, lanes), _mm512_set1_epi32(i as i32));
            // SAFETY: sixteen numbers.
            unsafe { _mm512_mask_storeu_ps(scores.as_mut_ptr(), hidden, _mm512_set1_ps(MASKED)) }
        }
    }
}
}

crate::isa::isa_fn! { Avx512;
/// Multiplies rows of 32 lanes.
///
/// # Safety
/// The processor has AVX-512.
unsafe fn rescale(sums: &mut [f32], factors: &[f32; PANEL]) {
    if *factors == [1.0; PANEL] {
        return;
    }
    // SAFETY: sixteen lanes of each half.
    unsafe {
        let (low, high) = (_mm512_loadu_ps(factors.as_ptr()), _mm512_loadu_ps(factors[16..].as_ptr()));
        for line in sums.chunks_exact_mut(PANEL) {
            let [first, second] = [line.as_mut_ptr(), line[16..].as_mut_ptr()];
            _mm512_storeu_ps(first, _mm512_mul_ps(_mm512_loadu_ps(first), low));
            _mm512_storeu_ps(second, _mm512_mul_ps(_mm512_loadu_ps(second), high));
        }
    }
}
}

crate::isa::isa_fn! { Avx512Bf16;
/// Sums of 32 queries, divided by those of their weights, to rows of `out` from `first` on.
///
/// # Safety
/// The processor has AVX-512 with BF16.
unsafe fn finish(sums: &[f32], sum: &[f32], first: usize, out: &mut RowsMut<'_>) {
    let width = out.cols();
    for half in 0..2 {
        let from = first + 16 * half;
        let rows = out.rows().saturating_sub(from).min(16);
        for n in (0..width).step_by(16) {
            let count = (width - n).min(16);
            let mut lines = [_mm512_setzero_si512(); 16];
            // SAFETY: sixteen lanes of sixteen lines, and of the sums; `count` numbers of each row of `out`.
            unsafe {
                let total = _mm512_loadu_ps(sum[16 * half..].as_ptr());
                for (line, sums) in lines.iter_mut().zip(sums[n * PANEL..].chunks_exact(PANEL)) {
                    let line_of_queries = _mm512_loadu_ps(sums[16 * half..].as_ptr());
                    *line = _mm512_castps_si512(_mm512_div_ps(line_of_queries, total));
                }
                for (row, line) in transpose(lines).into_iter().enumerate().take(rows) {
                    let mask = (1u32 << count).wrapping_sub(1) as u16;
                    let out = out.row_mut(from + row)[n..].as_mut_ptr();
                    _mm512_mask_storeu_ps(out, mask, _mm512_castsi512_ps(line));
                }
            }
        }
    }
}
}

/// As [`ExpandKeysFn`](crate::ExpandKeysFn), from latents in panels to keys in panels.
///
/// # Panics
/// When shapes differ, or the processor has no such unit.
pub(super) fn expand_keys<U: Bf16Dot>(
    weights: &[f32],
    order: KeyOrder,
    blocks: &KeyBlocks<'_, bf16>,
    keys: &mut [bf16],
    memory: &mut Vec<f32>,
) {
    blocks.check(weights, keys);
    let (nope, latent) = (steps(blocks.nope), steps(blocks.latent));
    let panel = latent * STEP_LEN;
    let memory = aligned(memory, nope * panel / 2 + SQUARE);
    let (right, found) = memory.split_at_mut(nope * panel / 2);
    let right: *mut bf16 = right.as_mut_ptr().cast();
    let mut dot = U::new();
    for n in 0..nope {
        let (from, count) = (n * PANEL, PANEL.min(blocks.nope - n * PANEL));
        // SAFETY: rows or columns of W_UK; room for as many panels; a machine with the unit has the instructions.
        unsafe {
            let out = right.add(n * panel);
            match order {
                KeyOrder::Keys => {
                    let start = weights[from * blocks.latent..].as_ptr();
                    let rows = Matrix { start, stride: blocks.latent, rows: count, cols: blocks.latent };
                    right_panel(rows, &[1.0; PANEL], out);
                }
                KeyOrder::Latents => {
                    let start = weights[from..].as_ptr();
                    let columns = Matrix { start, stride: blocks.nope, rows: blocks.latent, cols: count };
                    right_panel_of_columns(columns, out);
                }
            }
        }
    }
    for (block, keys) in keys.chunks_exact_mut(nope * PANEL * KV_BLOCK).enumerate() {
        let latents = &blocks.latents[block * blocks.stride..][..panel * KV_BLOCK / PANEL];
        for (latents, keys) in latents.chunks_exact(panel).zip(keys.chunks_exact_mut(nope * STEP_LEN)) {
            for (n, step) in keys.chunks_exact_mut(STEP_LEN).enumerate() {
                let parts = [(latents.as_ptr(), latent), (std::ptr::null(), 0)];
                // SAFETY: panels of as many steps; a square of results; a step of 32 lines, with the instructions of a machine with the unit.
                unsafe {
                    dot.panels(parts, right.add(n * panel), false, found.as_mut_ptr());
                    round_square(found, step);
                }
            }
        }
    }
}

crate::isa::isa_fn! { Avx512Bf16;
/// A product of two panels as a step of a left panel.
///
/// # Safety
/// The processor has AVX-512 with BF16.
unsafe fn round_square(square: &[f32], step: &mut [bf16]) {
    for (line, out) in square.chunks_exact(PANEL).zip(step.chunks_exact_mut(K_STEP)) {
        // SAFETY: 32 numbers here and there.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(line.as_ptr()), _mm512_loadu_ps(line[16..].as_ptr()));
            _mm512_storeu_si512(out.as_mut_ptr().cast(), pair(low, high));
        }
    }
}
}
