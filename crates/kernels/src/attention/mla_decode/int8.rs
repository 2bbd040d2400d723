//! MLA decode over an int8 cache: content scores are integer dot products with quantized queries.
//! Scores of the RoPE part, which is f16 in the cache, and weighted sums are f32.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use super::driver::{self, DecodeKernel, KvBlock};
use super::f32::{KV_BLOCK, rescale, transpose_queries, widen_block};
use super::int8_queries::{QuantizedQueries, queries_len};
use crate::MatrixViewMut;
use crate::attention::args::{AttendArgs, HEADS};
use crate::attention::scratch;
use crate::attention::softmax::f32::F32Softmax;
use crate::attention::split_kv::PartialSoftmax;
use crate::gemm::{LeftOperand, gemm};
use crate::kv_cache::{KvPrefetch, scale_of};
use crate::simd::Simd;
use latent_types::{CacheRow, CacheType};
use std::marker::PhantomData;

/// Format of the cached rows.
///
/// # Panics
/// When the cache is not int8.
#[inline(always)]
pub(super) fn row_of(args: &AttendArgs<'_>) -> CacheRow {
    let (row, cache) = (args.row(), args.cache);
    assert!(cache.ty() == CacheType::Int8 && cache.row_bytes() == row.bytes(), "a cache of int8");
    row
}

/// As [`AttendFn`](crate::AttendFn), for up to [`HEADS`] heads over a cache of int8.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(in crate::attention) unsafe fn attend<S: Simd>(
    args: &AttendArgs<'_>,
    part: &mut PartialSoftmax<'_>,
    memory: &mut Vec<f32>,
) {
    args.check_group(part);
    let (heads, latent, stored) = (args.q.rows(), args.latent, row_of(args));
    let lengths = [
        queries_len(latent),
        stored.rope * HEADS,
        KV_BLOCK * stored.width(),
        KV_BLOCK * HEADS,
        KV_BLOCK * HEADS,
    ];
    let [quants, rope_queries, lines, scores, rope_scores] = scratch::resize(memory, lengths);
    let queries = QuantizedQueries::new(&args.q, latent, args.scale, quants);
    transpose_queries(&args.q, latent, args.scale, rope_queries);
    (0..heads).for_each(|head| part.o.row_mut(head).fill(0.0));
    let mut kernel = Int8Decode::<S> {
        stored,
        heads,
        queries,
        rope_queries,
        lines,
        scores,
        rope_scores,
        o: &mut part.o,
        running: F32Softmax::new(),
        factors: [1.0; HEADS],
        isa: PhantomData,
    };
    // SAFETY: the caller is compiled for `S`; the kernel was made for this cache, which is int8 as
    // `row_of` has asserted.
    unsafe { driver::run(&mut kernel, args.cache, args.rows.clone()) }
    kernel.running.finish(part, heads);
}

struct Int8Decode<'a, 'o, S> {
    stored: CacheRow,
    heads: usize,
    /// The content of queries, quantized.
    queries: QuantizedQueries<'a>,
    /// The RoPE parts of queries, a line of heads per element.
    rope_queries: &'a [f32],
    /// The block's rows in f32.
    lines: &'a mut [f32],
    /// A line of heads per row: scores, then weights.
    scores: &'a mut [f32],
    rope_scores: &'a mut [f32],
    /// Weighted sums, a row per head.
    o: &'a mut MatrixViewMut<'o>,
    running: F32Softmax,
    /// Factors that rescale earlier sums.
    factors: [f32; HEADS],
    isa: PhantomData<S>,
}

impl<S: Simd> DecodeKernel for Int8Decode<'_, '_, S> {
    const KV_BLOCK: usize = KV_BLOCK;

    #[inline(always)]
    unsafe fn load(&mut self, block: &KvBlock<'_>) {
        // SAFETY: the caller is compiled for `S`.
        unsafe { widen_block::<S>(self.stored, block, self.lines) }
    }

    #[inline(always)]
    unsafe fn qk(&mut self, block: &KvBlock<'_>, prefetch: &mut KvPrefetch) {
        let (count, width) = (block.count, self.stored.width());
        let scores = &mut self.scores[..count * HEADS];
        let mut rope = MatrixViewMut::new(self.rope_scores, count, HEADS, HEADS);
        let keys = LeftOperand::Rows(&self.lines[self.stored.content..], width);
        // SAFETY: the caller is compiled for `S`. The block's rows are contiguous, and the quants
        // of each row are followed by at least the four bytes of its scale, so whole groups of four
        // may be read.
        unsafe {
            self.queries.qk::<S, 1>((block.address(), block.stride()), count, scores, &mut prefetch.next);
            gemm::<S>(self.stored.rope, keys, (self.rope_queries, HEADS), &mut rope, false);
        }
        // The scale of a row multiplies its content score, not the RoPE score, whose part of the
        // row has no scale.
        for (i, line) in scores.chunks_exact_mut(HEADS).enumerate() {
            let scale = scale_of(block.row(i));
            line.iter_mut().zip(&self.rope_scores[i * HEADS..]).for_each(|(s, r)| *s = *s * scale + r);
        }
    }

    #[inline(always)]
    unsafe fn softmax(&mut self, block: &KvBlock<'_>) {
        self.factors = self.running.softmax_block(&mut self.scores[..block.count * HEADS]);
    }

    #[inline(always)]
    unsafe fn pv(&mut self, block: &KvBlock<'_>, _prefetch: &mut KvPrefetch) {
        rescale(self.o, &self.factors, self.heads);
        let weights = LeftOperand::Columns(&self.scores[..block.count * HEADS], HEADS);
        // SAFETY: the caller is compiled for `S`.
        unsafe { gemm::<S>(block.count, weights, (self.lines, self.stored.width()), self.o, true) }
    }
}
