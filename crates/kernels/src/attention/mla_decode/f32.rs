//! MLA decode in f32, over any cache type: heads are the batch, and each cached row is read and
//! dequantized once for all of them.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use super::driver::{self, DecodeKernel, KvBlock};
use crate::attention::args::{AttendArgs, HEADS};
use crate::attention::scratch;
use crate::attention::softmax::f32::F32Softmax;
use crate::attention::split_kv::PartialSoftmax;
use crate::gemm::{LeftOperand, gemm, gemm_eight, gemm_prefetch};
use crate::kv_cache::{KvPrefetch, widen};
use crate::simd::Simd;
use crate::{MatrixView, MatrixViewMut};
use latent_types::CacheRow;
use std::marker::PhantomData;

/// Cached rows of a block. Dequantized to f32 they are 147 KB (64 · 576 elements), which stay in L2
/// until they are summed.
pub(super) const KV_BLOCK: usize = 64;

/// Elements of a row that are scored at a time. Their queries, a line of sixteen heads each, are 18
/// KB, which stay in L1 for all rows of a block.
const K_PART: usize = 288;

/// As [`AttendFn`](crate::AttendFn), for up to [`HEADS`] heads. `SEPARATE`: content and RoPE are
/// scored separately and then added.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(in crate::attention) unsafe fn attend<S: Simd, const SEPARATE: bool>(
    args: &AttendArgs<'_>,
    part: &mut PartialSoftmax<'_>,
    memory: &mut Vec<f32>,
) {
    args.check_group(part);
    let (heads, width) = (args.q.rows(), args.cache.width());
    let lengths = [width * HEADS, KV_BLOCK * width, KV_BLOCK * HEADS, KV_BLOCK * HEADS];
    let [queries, lines, scores, rope_scores] = scratch::resize(memory, lengths);
    transpose_queries(&args.q, 0, args.scale, queries);
    (0..heads).for_each(|head| part.o.row_mut(head).fill(0.0));
    // With at most eight heads, `gemm_eight` leaves half of the lanes unscored, but the softmax
    // computes all of them.
    scores.fill(0.0);
    let mut kernel = F32Decode::<S, SEPARATE> {
        stored: args.row(),
        heads,
        queries,
        lines,
        scores,
        rope_scores,
        o: &mut part.o,
        running: F32Softmax::new(),
        factors: [1.0; HEADS],
        isa: PhantomData,
    };
    // SAFETY: the caller is compiled for `S`; the kernel was made for this cache.
    unsafe { driver::run(&mut kernel, args.cache, args.rows.clone()) }
    kernel.running.finish(part, heads);
}

struct F32Decode<'a, 'o, S, const SEPARATE: bool> {
    stored: CacheRow,
    heads: usize,
    /// Scaled queries, a line of heads per element.
    queries: &'a [f32],
    /// The block's rows in f32.
    lines: &'a mut [f32],
    /// A line of heads per row: scores, then weights.
    scores: &'a mut [f32],
    /// Scores of the RoPE parts, if they are separate.
    rope_scores: &'a mut [f32],
    /// Weighted sums, a row per head.
    o: &'a mut MatrixViewMut<'o>,
    running: F32Softmax,
    /// Factors that rescale earlier sums.
    factors: [f32; HEADS],
    isa: PhantomData<S>,
}

impl<S: Simd, const SEPARATE: bool> DecodeKernel for F32Decode<'_, '_, S, SEPARATE> {
    const KV_BLOCK: usize = KV_BLOCK;

    #[inline(always)]
    unsafe fn load(&mut self, block: &KvBlock<'_>) {
        // SAFETY: the caller is compiled for `S`.
        unsafe { widen_block::<S>(self.stored, block, self.lines) }
    }

    #[inline(always)]
    unsafe fn qk(&mut self, block: &KvBlock<'_>, prefetch: &mut KvPrefetch) {
        let (latent, width) = (self.stored.content, self.stored.width());
        let keys = |from: usize| LeftOperand::Rows(&self.lines[from..], width);
        let mut scores = MatrixViewMut::new(self.scores, block.count, HEADS, HEADS);
        let queries = (self.queries, HEADS);
        // SAFETY: the caller is compiled for `S`.
        unsafe {
            if SEPARATE {
                gemm::<S>(latent, keys(0), queries, &mut scores, false);
                let queries = (&self.queries[latent * HEADS..], HEADS);
                let mut rope = MatrixViewMut::new(self.rope_scores, block.count, HEADS, HEADS);
                gemm::<S>(width - latent, keys(latent), queries, &mut rope, false);
                self.scores.iter_mut().zip(self.rope_scores.iter()).for_each(|(s, r)| *s += r);
            } else {
                for from in (0..width).step_by(K_PART) {
                    let (k, queries) = (K_PART.min(width - from), (&self.queries[from * HEADS..], HEADS));
                    let (add, next) = (from > 0, &mut prefetch.next);
                    // A rank or a model with at most eight heads: half of the multiply-adds.
                    if self.heads <= 8 {
                        gemm_eight::<S, 8>(k, (&self.lines[from..], width), queries, &mut scores, add, next);
                    } else {
                        gemm_prefetch::<S, 8>(k, keys(from), queries, &mut scores, add, next);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn softmax(&mut self, block: &KvBlock<'_>) {
        self.factors = self.running.softmax_block(&mut self.scores[..block.count * HEADS]);
    }

    #[inline(always)]
    unsafe fn pv(&mut self, block: &KvBlock<'_>, prefetch: &mut KvPrefetch) {
        rescale(self.o, &self.factors, self.heads);
        let (weights, values) =
            (LeftOperand::Columns(self.scores, HEADS), (&*self.lines, self.stored.width()));
        // SAFETY: the caller is compiled for `S`.
        unsafe { gemm_prefetch::<S, 4>(block.count, weights, values, self.o, true, &mut prefetch.next) }
    }
}

/// Dequantizes the rows of a block to f32.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn widen_block<S: Simd>(stored: CacheRow, block: &KvBlock<'_>, lines: &mut [f32]) {
    for (i, line) in (0..block.count).zip(lines.chunks_exact_mut(stored.width())) {
        // SAFETY: the caller is compiled for `S`.
        unsafe { widen::<S>(stored, block.row(i), line) };
    }
}

/// Multiplies the sums of each head by its factor, which is 1 unless the running max has changed.
#[inline(always)]
pub(super) fn rescale(sums: &mut MatrixViewMut<'_>, factors: &[f32; HEADS], heads: usize) {
    for (head, factor) in factors.iter().enumerate().take(heads) {
        if *factor != 1.0 {
            sums.row_mut(head).iter_mut().for_each(|o| *o *= factor);
        }
    }
}

/// Transposes queries from the column `first` on, times `scale`: a line of heads per element.
#[inline(always)]
pub(super) fn transpose_queries(q: &MatrixView<'_>, first: usize, scale: f32, out: &mut [f32]) {
    let width = q.cols() - first;
    for from in (0..width).step_by(HEADS) {
        let count = HEADS.min(width - from);
        // Squares of 16 × 16, which the compiler transposes in registers.
        let mut square = [[0.0f32; HEADS]; HEADS];
        for (head, line) in square.iter_mut().enumerate().take(q.rows()) {
            line[..count].copy_from_slice(&q.row(head)[first + from..][..count]);
        }
        for (i, line) in out[from * HEADS..(from + count) * HEADS].chunks_exact_mut(HEADS).enumerate() {
            for (head, element) in line.iter_mut().enumerate() {
                *element = square[head][i] * scale;
            }
        }
    }
}
