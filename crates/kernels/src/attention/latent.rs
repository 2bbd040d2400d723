//! Attention in latent space: the heads are the batch, and each cached row is read and widened once for all of them.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Lanes`")]

use super::{CacheView, Partials, load_row};
use crate::elementwise::exp;
use crate::gemm::{Strided, gemm};
use crate::lanes::Lanes;
use crate::{Rows, RowsMut};
use std::ops::Range;

/// Heads of a call: the lanes of a vector.
pub(crate) const HEADS: usize = 16;

/// Cached rows that are scored at a time: as f32 they stay in the nearer caches until they are summed up.
const BLOCK: usize = 32;

/// `q` has a row a head, `[latent | rope]` wide. `SPLIT`: content and rope are scored apart, and then added.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the arguments of an attention kernel and its memory")]
pub(super) unsafe fn attend<L: Lanes, const SPLIT: bool>(
    q: Rows<'_>,
    cache: &CacheView<'_>,
    rows: Range<usize>,
    scale: f32,
    latent: usize,
    part: &mut Partials<'_>,
    memory: &mut Vec<f32>,
) {
    let (heads, width) = (q.rows(), cache.width);
    assert!(part.o.rows() == heads && part.o.cols() == latent, "results");
    assert!(heads <= HEADS && q.cols() == width && latent <= width, "{heads} heads of {}", q.cols());
    memory.resize(width * HEADS + BLOCK * width + 2 * BLOCK * HEADS, 0.0);
    let (queries, rest) = memory.split_at_mut(width * HEADS);
    let (lines, rest) = rest.split_at_mut(BLOCK * width);
    let (scores, rope_scores) = rest.split_at_mut(BLOCK * HEADS);
    queries.fill(0.0);
    for head in 0..heads {
        for (number, line) in q.row(head).iter().zip(queries.chunks_exact_mut(HEADS)) {
            line[head] = number * scale;
        }
    }
    let (mut max, mut sum) = ([f32::NEG_INFINITY; HEADS], [0.0f32; HEADS]);
    (0..heads).for_each(|head| part.o.row_mut(head).fill(0.0));
    for start in rows.clone().step_by(BLOCK) {
        let count = BLOCK.min(rows.end - start);
        for (row, line) in (start..start + count).zip(lines.chunks_exact_mut(width)) {
            load_row(cache.ty, cache.row(row), line);
        }
        let keys = |from: usize| Strided { data: &lines[from..], row: width, col: 1 };
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
                gemm::<L>(width, keys(0), (queries, HEADS), &mut found, false);
            }
        }
        let factors = softmax(&mut scores[..count * HEADS], &mut max, &mut sum);
        for (head, factor) in factors.iter().enumerate().take(heads) {
            if *factor != 1.0 {
                part.o.row_mut(head).iter_mut().for_each(|o| *o *= factor);
            }
        }
        let weights = Strided { data: scores, row: 1, col: HEADS };
        // SAFETY: the caller's promise.
        unsafe { gemm::<L>(count, weights, (lines, width), &mut part.o, true) }
    }
    part.max[..heads].copy_from_slice(&max[..heads]);
    part.sum[..heads].copy_from_slice(&sum[..heads]);
}

/// Scores of a block, a row of heads each, become weights. Returns what the earlier sums are to be multiplied by.
#[inline(always)]
fn softmax(scores: &mut [f32], max: &mut [f32; HEADS], sum: &mut [f32; HEADS]) -> [f32; HEADS] {
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
