//! Attention over expanded keys and values: a block of queries of one head, causal.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use crate::attention::{Expanded, HeadWidths};
use crate::elementwise::exp;
use crate::gemm::{Left, gemm};
use crate::simd::Simd;
use crate::{Rows, RowsMut};

/// Cached rows of a block of keys: they lie side by side, number by number, so that they are lanes.
pub const KEYS: usize = 64;

/// `q` has rows `[nope | rope]` of one head, of queries at `position`, `position + 1`, …; each sees the cached rows up to its own. Writes
/// the finished results.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(in crate::attention) unsafe fn attend<L: Simd>(
    q: Rows<'_>,
    expanded: &Expanded<'_>,
    position: usize,
    scales: &[f32],
    out: &mut RowsMut<'_>,
    memory: &mut Vec<f32>,
) {
    expanded.check(&q, position, scales, out);
    let HeadWidths { nope, rope, value } = expanded.widths;
    let (queries, width) = (q.rows(), nope + rope);
    memory.resize(queries * (width + KEYS + 2), 0.0);
    let (scaled, rest) = memory.split_at_mut(queries * width);
    let (scores, rest) = rest.split_at_mut(queries * KEYS);
    let (max, sum) = rest.split_at_mut(queries);
    for (i, line) in scaled.chunks_exact_mut(width).enumerate() {
        line.iter_mut().zip(q.row(i)).for_each(|(s, q)| *s = q * scales[i]);
        out.row_mut(i).fill(0.0);
    }
    max.fill(f32::NEG_INFINITY);
    sum.fill(0.0);
    let length = position + queries;
    for (block, start) in (0..length).step_by(KEYS).enumerate() {
        let keys = &expanded.keys[block * nope * KEYS..(block + 1) * nope * KEYS];
        let rotated = if rope > 0 {
            &expanded.rope_keys[block * expanded.rope_stride..][..rope * KEYS]
        } else {
            &[][..]
        };
        // queries before the block see nothing of it
        let first = start.saturating_sub(position);
        let (m, count) = (queries - first, KEYS.min(length - start));
        let from = |column| Left::Rows(&scaled[first * width + column..], width);
        let lines = &mut scores[first * KEYS..];
        let mut found = RowsMut::new(lines, m, KEYS, KEYS);
        // SAFETY: the caller's promise.
        unsafe {
            gemm::<L>(nope, from(0), (keys, KEYS), &mut found, false);
            if rope > 0 {
                gemm::<L>(rope, from(nope), (rotated, KEYS), &mut found, true);
            }
        }
        for (i, line) in (first..queries).zip(lines.chunks_exact_mut(KEYS)) {
            let seen = (position + i + 1 - start).min(KEYS);
            let factor = softmax(line, seen, &mut max[i], &mut sum[i]);
            if factor != 1.0 {
                out.row_mut(i).iter_mut().for_each(|o| *o *= factor);
            }
        }
        let values = (&expanded.values[start * value..], value);
        let weights = Left::Rows(&scores[first * KEYS..], KEYS);
        // SAFETY: the caller's promise.
        unsafe { gemm::<L>(count, weights, values, &mut out.slice_rows(first..queries), true) }
    }
    for i in 0..queries {
        let inverse = 1.0 / sum[i];
        out.row_mut(i).iter_mut().for_each(|o| *o *= inverse);
    }
}

/// Scores of one query become weights, those from `seen` on 0. Returns what the earlier sums are to be multiplied by.
#[inline(always)]
fn softmax(scores: &mut [f32], seen: usize, max: &mut f32, sum: &mut f32) -> f32 {
    scores[seen..].fill(f32::NEG_INFINITY);
    let mut lanes = [f32::NEG_INFINITY; 16];
    for chunk in scores.chunks_exact(16) {
        for l in 0..16 {
            lanes[l] = if chunk[l] > lanes[l] { chunk[l] } else { lanes[l] };
        }
    }
    let own = crate::reduce::fold_lanes!(lanes, a, b => if a > b { a } else { b });
    let largest = if own > *max { own } else { *max };
    let factor = if *max == largest { 1.0 } else { exp(*max - largest) };
    let mut sums = [0.0f32; 16];
    for chunk in scores.chunks_exact_mut(16) {
        for l in 0..16 {
            chunk[l] = exp(chunk[l] - largest);
            sums[l] += chunk[l];
        }
    }
    *sum = *sum * factor + crate::reduce::sum_lanes(sums);
    *max = largest;
    factor
}
