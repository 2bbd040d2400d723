//! Attention in latent space: the heads are the batch, and each cached row is read and widened once for all of them.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use crate::attention::PartialSoftmax;
use crate::attention::cache::{CacheView, widen};
use crate::elementwise::exp;
use crate::gemm::{Left, gemm, gemm_prefetch};
use crate::simd::Simd;
use crate::{Rows, RowsMut};
use latent_types::CacheRow;
use std::ops::Range;

/// Heads that attend together: the lanes of a vector.
pub(crate) const HEADS: usize = 16;

/// Cached rows that are scored at a time: as f32 they stay in the nearer caches until they are summed up.
pub(in crate::attention) const KV_BLOCK: usize = 32;

/// Asserts that queries, cached rows and results have the shapes that attention in latent space needs.
#[inline(always)]
pub(crate) fn check_shapes(q: &Rows<'_>, width: usize, latent: usize, part: &PartialSoftmax<'_>) {
    let heads = q.rows();
    assert!(part.o.rows() == heads && part.o.cols() == latent, "results");
    assert!(heads > 0 && q.cols() == width && latent <= width, "{heads} heads of {}", q.cols());
}

/// The same for heads that attend together.
#[inline(always)]
pub(in crate::attention) fn check(q: &Rows<'_>, width: usize, latent: usize, part: &PartialSoftmax<'_>) {
    assert!(q.rows() <= HEADS, "{} heads", q.rows());
    check_shapes(q, width, latent, part);
}

/// `q` has a row a head, `[latent | rope]` wide. `SPLIT`: content and rope are scored apart, and then added.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the arguments of an attention kernel and its memory")]
pub(in crate::attention) unsafe fn attend<L: Simd, const SPLIT: bool>(
    q: Rows<'_>,
    cache: &CacheView<'_>,
    rows: Range<usize>,
    scale: f32,
    latent: usize,
    part: &mut PartialSoftmax<'_>,
    memory: &mut Vec<f32>,
) {
    let (heads, width) = (q.rows(), cache.width());
    check(&q, width, latent, part);
    let stored = CacheRow { ty: cache.ty(), content: latent, rope: width - latent };
    memory.resize(width * HEADS + KV_BLOCK * width + 2 * KV_BLOCK * HEADS, 0.0);
    let (queries, rest) = memory.split_at_mut(width * HEADS);
    let (lines, rest) = rest.split_at_mut(KV_BLOCK * width);
    let (scores, rope_scores) = rest.split_at_mut(KV_BLOCK * HEADS);
    transpose_queries(&q, 0, scale, queries);
    let (mut max, mut sum) = ([f32::NEG_INFINITY; HEADS], [0.0f32; HEADS]);
    (0..heads).for_each(|head| part.o.row_mut(head).fill(0.0));
    let mut start = rows.start;
    while start < rows.end {
        // the next block is asked for while scoring and while summing: all at once would come faster than memory answers
        let (count, mut ahead) = cache.together(start, rows.end, KV_BLOCK);
        for (row, line) in (start..start + count).zip(lines.chunks_exact_mut(width)) {
            // SAFETY: the caller's promise.
            unsafe { widen::<L>(stored, cache.row(row), line) };
        }
        let keys = |from: usize| Left::Rows(&lines[from..], width);
        let mut found = RowsMut::new(scores, count, HEADS, HEADS);
        // SAFETY: the caller's promise.
        unsafe {
            if SPLIT {
                gemm::<L>(latent, keys(0), (queries, HEADS), &mut found, false);
                let queries = &queries[latent * HEADS..];
                let mut rope = RowsMut::new(rope_scores, count, HEADS, HEADS);
                gemm::<L>(width - latent, keys(latent), (queries, HEADS), &mut rope, false);
                scores.iter_mut().zip(rope_scores.iter()).for_each(|(s, r)| *s += r);
            } else {
                gemm_prefetch::<L, 8>(width, keys(0), (queries, HEADS), &mut found, false, &mut ahead);
            }
        }
        let factors = softmax(&mut scores[..count * HEADS], &mut max, &mut sum);
        for (head, factor) in factors.iter().enumerate().take(heads) {
            if *factor != 1.0 {
                part.o.row_mut(head).iter_mut().for_each(|o| *o *= factor);
            }
        }
        let weights = Left::Columns(scores, HEADS);
        // SAFETY: the caller's promise.
        unsafe { gemm_prefetch::<L, 4>(count, weights, (lines, width), &mut part.o, true, &mut ahead) }
        start += count;
    }
    part.max[..heads].copy_from_slice(&max[..heads]);
    part.sum[..heads].copy_from_slice(&sum[..heads]);
}

/// Queries from a column on, times `scale`: a line of heads for each number.
#[inline(always)]
pub(in crate::attention) fn transpose_queries(q: &Rows<'_>, first: usize, scale: f32, out: &mut [f32]) {
    let width = q.cols() - first;
    for from in (0..width).step_by(HEADS) {
        let count = HEADS.min(width - from);
        // squares of sixteen, which the compiler turns in registers
        let mut square = [[0.0f32; HEADS]; HEADS];
        for (head, line) in square.iter_mut().enumerate().take(q.rows()) {
            line[..count].copy_from_slice(&q.row(head)[first + from..][..count]);
        }
        for (i, line) in out[from * HEADS..(from + count) * HEADS].chunks_exact_mut(HEADS).enumerate() {
            for (head, number) in line.iter_mut().enumerate() {
                *number = square[head][i] * scale;
            }
        }
    }
}

/// Scores of a block, a row of heads each, become weights. Returns what the earlier sums are to be multiplied by.
#[inline(always)]
pub(in crate::attention) fn softmax(
    scores: &mut [f32],
    max: &mut [f32; HEADS],
    sum: &mut [f32; HEADS],
) -> [f32; HEADS] {
    let mut largest = *max;
    for line in scores.chunks_exact(HEADS) {
        for l in 0..HEADS {
            largest[l] = if line[l] > largest[l] { line[l] } else { largest[l] };
        }
    }
    let mut factors = [0.0; HEADS];
    for l in 0..HEADS {
        // equal, also where both are −∞: nothing changes
        factors[l] = if max[l] == largest[l] { 1.0 } else { exp(max[l] - largest[l]) };
        sum[l] *= factors[l];
    }
    for line in scores.chunks_exact_mut(HEADS) {
        for l in 0..HEADS {
            line[l] = exp(line[l] - largest[l]);
            sum[l] += line[l];
        }
    }
    *max = largest;
    factors
}
