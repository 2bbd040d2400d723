//! Prefill attention in bf16, by AMX tiles or AVX512-BF16, and the expansion of its keys.
//!
//! Scores are keys · queries: a row per cached row, with queries as the lanes of vectors, so that
//! nothing is summed or compared across a register. The softmax writes weights as a right factor,
//! two cached rows per line. Results are values · weights, with queries as lanes again; they are
//! transposed once at the end.
//!
//! Factors are rounded to bf16 (2⁻⁹ of each), sums are f32.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::driver::{self, PrefillKernel, PrefillTile};
use crate::attention::args::{AttendExpandedArgs, ExpandArgs};
use crate::attention::expanded::{ExpandedKv, HeadWidths, KeyOrder};
use crate::attention::key_mask::KeyMask;
use crate::attention::scratch;
use crate::attention::softmax::bf16::{MASKED, ScoreRows, SoftmaxWeights, softmax_block};
use crate::bf16::dot::Bf16Dot;
use crate::bf16::layout::{F32Matrix, aligned, pair, right_panel, right_panel_of_columns, transpose};
use crate::bf16_layout::{K_STEP, KV_BLOCK, PANEL, STEP_LEN, steps};
use crate::{MatrixView, MatrixViewMut};
use half::bf16;
use std::arch::x86_64::*;

/// Elements of a product of two panels.
const SQUARE: usize = PANEL * PANEL;

/// As [`AttendExpandedFn`](crate::AttendExpandedFn), over keys and values in panels.
///
/// # Panics
/// When shapes differ, or the CPU lacks the instructions of `D`.
pub(in crate::attention) fn attend<D: Bf16Dot>(
    args: &AttendExpandedArgs<'_, bf16>,
    out: &mut MatrixViewMut<'_>,
    memory: &mut Vec<f32>,
) {
    args.check(out);
    let queries = args.q.rows();
    let mut kernel = Bf16Prefill::<D>::new(args, memory);
    // SAFETY: a `D` exists only where the CPU has its instructions; the kernel has these queries,
    // and keys and values up to the last, as just checked.
    unsafe { driver::run(&mut kernel, args.position, queries) }
    let Bf16Prefill { dot, shape, sums, sum, .. } = kernel;
    drop(dot);
    for (set, sums) in sums.chunks_exact(shape.values * SQUARE).enumerate() {
        // SAFETY: the CPU has the instructions of `D`, AVX512-BF16 among them.
        unsafe { finish(sums, &sum[set * PANEL..][..PANEL], set * PANEL, out) }
    }
}

/// K-steps of keys and of their RoPE part, and panels of values.
#[derive(Clone, Copy)]
struct PrefillShape {
    nope: usize,
    rope: usize,
    values: usize,
}

impl PrefillShape {
    /// Elements of the panels of 32 queries.
    fn query(self) -> usize {
        (self.nope + self.rope) * STEP_LEN
    }
}

/// Queries are in sets of 32, the width of a panel; the last set is padded.
struct Bf16Prefill<'a, D> {
    dot: D,
    expanded: &'a ExpandedKv<'a, bf16>,
    mask: Option<&'a KeyMask>,
    shape: PrefillShape,
    /// Per set right panels of scaled queries.
    queries: *mut bf16,
    /// Scores of one set: a row of 32 queries per key.
    scores: &'a mut [f32],
    /// Weights of one set: a right panel.
    weights: *mut bf16,
    /// Per set and panel of values, a square of 32 × 32 sums.
    sums: &'a mut [f32],
    /// Running max and sum of each query.
    max: &'a mut [f32],
    sum: &'a mut [f32],
}

impl<'a, D: Bf16Dot> Bf16Prefill<'a, D> {
    fn new(args: &AttendExpandedArgs<'a, bf16>, memory: &'a mut Vec<f32>) -> Bf16Prefill<'a, D> {
        let HeadWidths { nope, rope, value } = args.expanded.widths;
        let shape = PrefillShape { nope: steps(nope), rope: steps(rope), values: steps(value) };
        let sets = args.q.rows().div_ceil(PANEL);
        let lengths = [
            sets * shape.query() / 2,
            KV_BLOCK * PANEL,
            KV_BLOCK * PANEL / 2,
            sets * shape.values * SQUARE,
            sets * PANEL,
            sets * PANEL,
        ];
        let memory = aligned(memory, lengths.iter().sum());
        let [queries, scores, weights, sums, max, sum] = scratch::cut(memory, lengths);
        let [queries, weights] = [queries, weights].map(|part| part.as_mut_ptr().cast::<bf16>());
        max.fill(MASKED);
        sum.fill(0.0);
        let dot = D::new();
        for set in 0..sets {
            let rows = args.q.slice_rows(set * PANEL..args.q.rows().min((set + 1) * PANEL));
            // SAFETY: there is room for the panels of each set; the CPU has the instructions of
            // `D`, AVX512-BF16 among them.
            unsafe { pack_queries(rows, nope, &args.scales[set * PANEL..], queries.add(set * shape.query())) }
        }
        let (expanded, mask) = (args.expanded, args.mask);
        Bf16Prefill { dot, expanded, mask, shape, queries, scores, weights, sums, max, sum }
    }
}

impl<D: Bf16Dot> PrefillKernel for Bf16Prefill<'_, D> {
    const KV_BLOCK: usize = KV_BLOCK;
    const Q_TILE: usize = PANEL;

    #[inline(always)]
    unsafe fn qk(&mut self, tile: &PrefillTile) {
        let (PrefillShape { nope, rope, .. }, expanded) = (self.shape, self.expanded);
        let queries = self.queries.wrapping_add(tile.queries.start / PANEL * self.shape.query());
        let keys = expanded.keys.as_ptr().wrapping_add(tile.block * nope * PANEL * KV_BLOCK);
        let rope_keys = expanded.rope_keys.as_ptr().wrapping_add(tile.block * expanded.rope_stride);
        let squares = self.scores.chunks_exact_mut(SQUARE).take(tile.keys.div_ceil(PANEL));
        for (panel, square) in squares.enumerate() {
            let parts = [
                (keys.wrapping_add(panel * nope * STEP_LEN), nope),
                (rope_keys.wrapping_add(panel * rope * STEP_LEN), rope),
            ];
            // SAFETY: the block has a panel of keys per 32 of its rows, as checked on entry, and
            // the set's queries have as many k-steps.
            unsafe { self.dot.panels(parts, queries, false, square.as_mut_ptr()) }
        }
    }

    #[inline(always)]
    unsafe fn softmax(&mut self, tile: &PrefillTile) {
        let (first, values) = (tile.queries.start, self.shape.values);
        let panels = tile.keys.div_ceil(PANEL);
        let scores = &mut self.scores[..panels * SQUARE];
        let (max, sum) = (&mut self.max[first..][..PANEL], &mut self.sum[first..][..PANEL]);
        // SAFETY: the CPU has the instructions of `D`, AVX512-BF16 among them; `weights` has room
        // for a k-step per panel of keys.
        unsafe {
            // Masks are needed only if the first query does not attend to the last key: in the
            // blocks at the diagonal.
            if tile.position_of(first) + 1 < tile.start + panels * PANEL {
                mask_future(scores, tile.position_of(first), tile.start);
            }
            if let Some(mask) = self.mask {
                mask_unselected(scores, mask.block(first, tile.start, panels * PANEL));
            }
            let factors = softmax_both(scores, max, sum, self.weights);
            if tile.block > 0 {
                rescale(&mut self.sums[first / PANEL * values * SQUARE..][..values * SQUARE], &factors);
            }
        }
    }

    #[inline(always)]
    unsafe fn pv(&mut self, tile: &PrefillTile) {
        let (panels, count) = (tile.keys.div_ceil(PANEL), self.shape.values);
        let values = self.expanded.values.as_ptr().wrapping_add(tile.block * count * PANEL * KV_BLOCK);
        let sums = &mut self.sums[tile.queries.start / PANEL * count * SQUARE..][..count * SQUARE];
        for (panel, square) in sums.chunks_exact_mut(SQUARE).enumerate() {
            let left =
                [(values.wrapping_add(panel * KV_BLOCK / K_STEP * STEP_LEN), panels), (std::ptr::null(), 0)];
            // The first block replaces the sums, which were not initialized.
            // SAFETY: the block has `panels` k-steps of each panel of values, as checked on entry,
            // and there are as many of weights.
            unsafe { self.dot.panels(left, self.weights, tile.block > 0, square.as_mut_ptr()) }
        }
    }
}

/// [`softmax_block`] for both halves of 32 queries.
///
/// # Safety
/// `weights` has room for a k-step per square of scores; the CPU has AVX512-BF16.
unsafe fn softmax_both(scores: &[f32], max: &mut [f32], sum: &mut [f32], weights: *mut bf16) -> [f32; PANEL] {
    let mut factors = [0.0; PANEL];
    let halves = max.chunks_exact_mut(16).zip(sum.chunks_exact_mut(16));
    for (half, ((max, sum), factors)) in halves.zip(factors.chunks_exact_mut(16)).enumerate() {
        let start = scores[half * 16..].as_ptr();
        let rows = ScoreRows { start, stride: PANEL, count: scores.len() / PANEL, scales: None };
        let weights = SoftmaxWeights { start: weights.wrapping_add(half * STEP_LEN / 2), step: STEP_LEN };
        // SAFETY: half of each row of 32 scores, and one of the two tiles of each k-step of
        // weights.
        factors.copy_from_slice(&unsafe { softmax_block(&rows, max, sum, weights) });
    }
    factors
}

/// Packs right panels of at most 32 queries, content and RoPE part, multiplied by their factors on
/// scores and by log₂ e: scores are then exponents of 2, and the softmax needs no multiplication.
///
/// # Safety
/// There is room for as many k-steps; the CPU has AVX512-BF16.
unsafe fn pack_queries(rows: MatrixView<'_>, nope: usize, scales: &[f32], out: *mut bf16) {
    let mut factors = [0.0; PANEL];
    for (factor, scale) in factors.iter_mut().zip(scales) {
        *factor = scale * std::f32::consts::LOG2_E;
    }
    let (start, stride) = rows.raw();
    let content = F32Matrix { start, stride, rows: rows.rows(), cols: nope };
    let rope = F32Matrix { start: start.wrapping_add(nope), cols: rows.cols() - nope, ..content };
    // SAFETY: rows of `nope` elements and those of the RoPE part; room by this function's contract.
    unsafe {
        right_panel(content, &factors, out);
        right_panel(rope, &factors, out.add(steps(nope) * STEP_LEN));
    }
}

crate::isa::isa_fn! { Avx512;
/// Causal mask: scores of keys after a query's position become [`MASKED`]. `query` and `key` are
/// the positions of the first query and the first key.
///
/// # Safety
/// The CPU has AVX-512.
unsafe fn mask_future(scores: &mut [f32], query: usize, key: usize) {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (i, line) in scores.chunks_exact_mut(PANEL).enumerate() {
        for (half, scores) in line.chunks_exact_mut(16).enumerate() {
            // The last key that each query attends to, counted from the first of the block;
            // negative for none.
            let last = _mm512_set1_epi32((query + 16 * half) as i32 - key as i32);
            let hidden = _mm512_cmplt_epi32_mask(_mm512_add_epi32(last, lanes), _mm512_set1_epi32(i as i32));
            // SAFETY: sixteen elements.
            unsafe { _mm512_mask_storeu_ps(scores.as_mut_ptr(), hidden, _mm512_set1_ps(MASKED)) }
        }
    }
}
}

crate::isa::isa_fn! { Avx512;
/// Scores of keys that a query does not attend to become [`MASKED`]: a word per key, a bit per
/// query.
///
/// # Safety
/// The CPU has AVX-512.
unsafe fn mask_unselected(scores: &mut [f32], words: &[u32]) {
    let masked = _mm512_set1_ps(MASKED);
    for (line, word) in scores.chunks_exact_mut(PANEL).zip(words) {
        let hidden = !word;
        // SAFETY: two halves of sixteen elements.
        unsafe {
            _mm512_mask_storeu_ps(line.as_mut_ptr(), hidden as u16, masked);
            _mm512_mask_storeu_ps(line[16..].as_mut_ptr(), (hidden >> 16) as u16, masked);
        }
    }
}
}

crate::isa::isa_fn! { Avx512;
/// Multiplies sums of 32 queries by the factor of each.
///
/// # Safety
/// The CPU has AVX-512.
unsafe fn rescale(sums: &mut [f32], factors: &[f32; PANEL]) {
    // The running max rarely changes after the first blocks.
    if *factors == [1.0; PANEL] {
        return;
    }
    // SAFETY: two halves of sixteen of each line.
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
/// Normalizes the sums of 32 queries by the sums of their weights, and transposes them to rows of
/// `out` from `first` on.
///
/// # Safety
/// The CPU has AVX512-BF16.
unsafe fn finish(sums: &[f32], sum: &[f32], first: usize, out: &mut MatrixViewMut<'_>) {
    let width = out.cols();
    for half in 0..2 {
        let from = first + 16 * half;
        let rows = out.rows().saturating_sub(from).min(16);
        for n in (0..width).step_by(16) {
            let count = (width - n).min(16);
            let mut lines = [_mm512_setzero_si512(); 16];
            // SAFETY: sixteen lanes of each line and of the sums; the mask has `count` elements of
            // each row of `out`.
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
/// When shapes differ, or the CPU lacks the instructions of `D`.
pub(in crate::attention) fn expand_keys<D: Bf16Dot>(
    args: &ExpandArgs<'_, bf16>,
    keys: &mut [bf16],
    memory: &mut Vec<f32>,
) {
    args.check(keys);
    let ExpandArgs { weights, order, blocks } = *args;
    let (nope, latent) = (steps(blocks.nope), steps(blocks.latent));
    let panel = latent * STEP_LEN;
    let memory = aligned(memory, nope * panel / 2 + SQUARE);
    let (right, products) = memory.split_at_mut(nope * panel / 2);
    let right: *mut bf16 = right.as_mut_ptr().cast();
    let mut dot = D::new();
    for n in 0..nope {
        let (from, count) = (n * PANEL, PANEL.min(blocks.nope - n * PANEL));
        // SAFETY: rows or columns of W_UK, and room for as many panels; the CPU has the
        // instructions of `D`, AVX512-BF16 among them.
        unsafe {
            let out = right.add(n * panel);
            match order {
                KeyOrder::Keys => {
                    let start = weights[from * blocks.latent..].as_ptr();
                    let rows = F32Matrix { start, stride: blocks.latent, rows: count, cols: blocks.latent };
                    right_panel(rows, &[1.0; PANEL], out);
                }
                KeyOrder::Latents => {
                    let start = weights[from..].as_ptr();
                    let columns = F32Matrix { start, stride: blocks.nope, rows: blocks.latent, cols: count };
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
                // SAFETY: panels of `latent` k-steps, a square of products, and a k-step of 32
                // lines; the CPU has the instructions of `D`.
                unsafe {
                    dot.panels(parts, right.add(n * panel), false, products.as_mut_ptr());
                    round_square(products, step);
                }
            }
        }
    }
}

crate::isa::isa_fn! { Avx512Bf16;
/// Rounds a product of two panels to a k-step of a left panel.
///
/// # Safety
/// The CPU has AVX512-BF16.
unsafe fn round_square(square: &[f32], step: &mut [bf16]) {
    for (line, out) in square.chunks_exact(PANEL).zip(step.chunks_exact_mut(K_STEP)) {
        // SAFETY: 32 elements of each line.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(line.as_ptr()), _mm512_loadu_ps(line[16..].as_ptr()));
            _mm512_storeu_si512(out.as_mut_ptr().cast(), pair(low, high));
        }
    }
}
}
