//! Attention in latent space over a cache of 8-bit codes with AVX512-FP16: content scores are sums of integers ([`int8`](super::int8)), rope
//! scores and weighted sums are f16.
//!
//! A query's rope part is scaled to at most 1/128 and rounded to f16; its products are summed in two strands of f16. Weights are relative to
//! the largest of their block and are multiplied with the scale of their row, relative to the largest of the block too; at most 64 weighted rows
//! of codes are summed in f16, blocks in f32. Nothing can overflow, and roundings are as in [`f16`](super::f16).
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::f16::{RunningSoftmax, scale_to_f16};
use super::f32::{HEADS, check};
use super::int8::{LATENT_ROW, Queries, queries_len, row_of, transpose_words};
use crate::Rows;
use crate::attention::cache::{CacheView, scale_of};
use crate::attention::gemm_f16::{F16_CHAIN, bits, exp2, prefetch, splat_pairs_f16};
use crate::attention::{PartialSoftmax, each_below};
use crate::simd::avx512::Avx512;
use std::arch::x86_64::*;
use std::ops::Range;

/// Cached rows whose weighted sum is in f16.
const KV_BLOCK: usize = F16_CHAIN;

/// Columns that are summed together: codes of a vector.
const COLUMNS: usize = 64;

/// Largest weight times scale: [`KV_BLOCK`] products with codes stay finite.
const MAX_WEIGHT: f32 = 4.0;

/// The bits of the f16 1024 + 128: what a raised code has as an f16 where the code is 0.
const LOWEST: i16 = 0x6480;

/// Rows whose rope parts are scored together.
const MR: usize = 16;

/// As [`AttendFn`](crate::attention::AttendFn), over a cache of `int8`.
///
/// # Panics
/// When shapes differ, the rope part has an odd width or more than 128 numbers, the cache holds another type, or the processor has no AVX512-FP16.
pub(in crate::attention) fn attend(
    q: Rows<'_>,
    cache: &CacheView<'_>,
    rows: Range<usize>,
    scale: f32,
    latent: usize,
    part: &mut PartialSoftmax<'_>,
    memory: &mut Vec<f32>,
) {
    check(&q, cache.width(), latent, part);
    let stored = row_of(cache, latent);
    assert!(stored.rope.is_multiple_of(2) && stored.rope <= 2 * F16_CHAIN, "a rope part of {}", stored.rope);
    let _proof = crate::isa::Avx512Fp16::expect();
    // SAFETY: the processor has the features, as just checked; the shapes are those that `inner` needs.
    unsafe { inner(&q, cache, rows, scale, latent, part, memory) }
}

crate::isa::isa_fn! { Avx512Fp16;
unsafe fn inner(
    q: &Rows<'_>,
    cache: &CacheView<'_>,
    rows: Range<usize>,
    scale: f32,
    latent: usize,
    part: &mut PartialSoftmax<'_>,
    memory: &mut Vec<f32>,
) {
    let (heads, rope) = (q.rows(), cache.width() - latent);
    let columns = latent.next_multiple_of(COLUMNS);
    // pairs of a rotated query, in whole vectors
    let pairs = rope.next_multiple_of(16) / 2;
    memory.resize(queries_len(latent) + 2 * pairs * HEADS + 2 * KV_BLOCK * HEADS + HEADS * columns, 0.0);
    let (codes, rest) = memory.split_at_mut(queries_len(latent));
    let (by_head, rest) = rest.split_at_mut(pairs * HEADS);
    let (rotated, rest) = rest.split_at_mut(pairs * HEADS);
    let (scores, rest) = rest.split_at_mut(KV_BLOCK * HEADS);
    let (weights, sums) = rest.split_at_mut(KV_BLOCK * HEADS);
    let (by_head, rotated, weights) = (bits(by_head), bits(rotated), bits(weights));
    let scale = scale * std::f32::consts::LOG2_E;
    let queries = Queries::new(q, latent, scale, codes);
    let mut factors = [0.0; HEADS];
    by_head.fill(0);
    for (head, factor) in factors.iter_mut().enumerate().take(heads) {
        let out = &mut by_head[head * pairs..][..pairs];
        *factor = scale * scale_to_f16(&q.row(head)[latent..], out);
    }
    transpose_words(by_head, pairs, rotated);
    // SAFETY: the processor has the instructions.
    let mut running = unsafe { RunningSoftmax::new() };
    let mut start = rows.start;
    while start < rows.end {
        let (count, mut ahead) = cache.together(start, rows.end, KV_BLOCK);
        let (from, stride) = (cache.row(start).as_ptr(), cache.row_bytes());
        let mut scales = [0.0; KV_BLOCK];
        for (i, scale) in scales.iter_mut().enumerate().take(count) {
            *scale = scale_of(cache.row(start + i));
        }
        let (scores, weights) = (&mut scores[..count * HEADS], &mut weights[..count * HEADS]);
        // SAFETY: `count` rows lie at `from`, each with `latent` codes, `rope` halves and a scale; there are lines of scores, weights and sums.
        unsafe {
            queries.qk::<Avx512, 2>((from, stride), count, scores, &mut ahead);
            rotate(from.add(latent), stride, count, rope / 2, rotated, &factors, &scales, scores);
            let (alpha, beta) = softmax_block(scores, &scales[..count], &mut running, weights);
            let first = start == rows.start;
            let weights = weights.as_ptr();
            let block = Block { from, stride, count, weights, first, alpha: &alpha, beta: &beta };
            pv(&block, heads, latent, sums, &mut ahead);
        }
        start += count;
    }
    for (head, line) in sums.chunks_exact(columns).enumerate().take(heads) {
        unpermute(line, part.o.row_mut(head));
    }
    // SAFETY: the processor has the instructions.
    unsafe { running.finish(part, heads) }
}
}

/// Scores of codes, a line of heads a row, times the rows' scales, and the scores of the rope parts, which begin at `from`, times `factors`.
///
/// # Safety
/// `count` rows, `stride` bytes apart, have `pairs` pairs of f16; the tier's instructions are there.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "rows, queries and scores")]
unsafe fn rotate(
    from: *const u8,
    stride: usize,
    count: usize,
    pairs: usize,
    queries: &[u32],
    factors: &[f32; HEADS],
    scales: &[f32; KV_BLOCK],
    scores: &mut [f32],
) {
    assert!(queries.len() >= pairs * HEADS && scores.len() >= count * HEADS, "a line a pair and a row");
    let mut row = 0;
    while row < count {
        macro_rules! tile {
            ($rows:expr, $stride:literal) => {{
                const ROWS: usize = $rows;
                let stride = if $stride > 0 { $stride } else { stride };
                // SAFETY: rows below `count`, and pairs of each.
                unsafe {
                    let from = from.add(row * stride);
                    let mut sums = [_mm512_setzero_ph(); ROWS];
                    for pair in 0..pairs {
                        let query = _mm512_loadu_si512(queries.as_ptr().add(pair * HEADS).cast());
                        let query = _mm512_castsi512_ph(query);
                        for r in 0..ROWS {
                            let key = from.add(r * stride + 4 * pair).cast::<i32>().read_unaligned();
                            let key = _mm512_castsi512_ph(_mm512_set1_epi32(key));
                            sums[r] = _mm512_fmadd_ph(query, key, sums[r]);
                        }
                    }
                    let factors = _mm512_loadu_ps(factors.as_ptr());
                    each_below!(ROWS, r => {
                        // both strands of each head
                        let all = _mm512_castph_si512(sums[r]);
                        let all = _mm512_add_ph(sums[r], _mm512_castsi512_ph(_mm512_srli_epi32::<16>(all)));
                        let halves = _mm512_cvtepi32_epi16(_mm512_castph_si512(all));
                        let rope = _mm512_mul_ps(_mm512_cvtxph_ps(_mm256_castsi256_ph(halves)), factors);
                        let at = scores.as_mut_ptr().add((row + r) * HEADS);
                        let scale = _mm512_set1_ps(*scales.get_unchecked(row + r));
                        _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(at), scale, rope));
                    });
                }
                row += ROWS;
            }};
        }
        match (count - row, stride) {
            (MR.., LATENT_ROW) => tile!(MR, 644),
            (MR.., _) => tile!(MR, 0),
            _ => tile!(1, 0),
        }
    }
}

/// Scores of a block, a line of heads a row, become weights times the rows' scales. Returns what earlier sums and the block's sums are to be
/// multiplied by.
///
/// # Safety
/// With the tier's instructions.
#[inline(always)]
unsafe fn softmax_block(
    scores: &[f32],
    scales: &[f32],
    running: &mut RunningSoftmax,
    weights: &mut [u32],
) -> ([f32; HEADS], [f32; HEADS]) {
    let greatest = scales.iter().fold(0.0f32, |m, s| m.max(*s));
    // rows of such small numbers count as zeros
    let to_weight = if greatest > 1e-30 { MAX_WEIGHT / greatest } else { 0.0 };
    // SAFETY: lines of sixteen numbers here and there.
    unsafe {
        let mut largest = _mm512_set1_ps(f32::NEG_INFINITY);
        for line in scores.chunks_exact(HEADS) {
            largest = _mm512_max_ps(_mm512_loadu_ps(line.as_ptr()), largest);
        }
        let mut total = _mm512_setzero_ps();
        let lines = scores.chunks_exact(HEADS).zip(weights.chunks_exact_mut(HEADS));
        for ((line, out), scale) in lines.zip(scales) {
            let weight = exp2(_mm512_sub_ps(_mm512_loadu_ps(line.as_ptr()), largest));
            total = _mm512_add_ps(total, weight);
            let scaled = _mm512_mul_ps(weight, _mm512_set1_ps(scale * to_weight));
            _mm512_storeu_si512(out.as_mut_ptr().cast(), splat_pairs_f16(scaled));
        }
        running.update_running_max(largest, total, greatest / MAX_WEIGHT)
    }
}

/// Rows of a block, their weights, and what the earlier and its own sums of each head are multiplied by.
struct Block<'a> {
    from: *const u8,
    stride: usize,
    count: usize,
    weights: *const u32,
    /// Whether there are no earlier sums.
    first: bool,
    alpha: &'a [f32; HEADS],
    beta: &'a [f32; HEADS],
}

/// Adds the weighted codes of a block to `sums`, a line a head, whose columns lie as [`unpermute`] says.
///
/// # Safety
/// Rows and weights are there; the tier's instructions too.
#[inline(always)]
unsafe fn pv(block: &Block<'_>, heads: usize, latent: usize, sums: &mut [f32], ahead: &mut *const u8) {
    let columns = latent.next_multiple_of(COLUMNS);
    assert!(sums.len() >= heads * columns && heads <= HEADS, "a line of whole vectors a head");
    let mut head = 0;
    while head < heads {
        macro_rules! strips {
            ($heads:literal) => {{
                for column in (0..latent).step_by(COLUMNS) {
                    // codes beyond the last are not read
                    let mask = u64::MAX >> (COLUMNS - (latent - column).min(COLUMNS));
                    for half in 0..2 {
                        // SAFETY: heads and columns lie inside.
                        unsafe {
                            let out = sums.as_mut_ptr().add(head * columns + column + half * COLUMNS / 2);
                            let part = Part { head, column, mask, columns };
                            if half == 0 {
                                strip::<$heads, false>(block, part, out, ahead);
                            } else {
                                strip::<$heads, true>(block, part, out, ahead);
                            }
                        }
                    }
                }
                head += $heads;
            }};
        }
        match heads - head {
            16.. => strips!(16),
            8.. => strips!(8),
            4.. => strips!(4),
            _ => strips!(1),
        }
    }
}

/// What a strip sums: heads from one on, codes of a vector from a column on, as the mask says; the numbers of a line of sums.
struct Part {
    head: usize,
    column: usize,
    mask: __mmask64,
    columns: usize,
}

/// Weighted sums of `H` heads over half of the codes of a vector: the `UPPER` or lower eight of each sixteen.
#[inline(always)]
unsafe fn strip<const H: usize, const UPPER: bool>(
    block: &Block<'_>,
    part: Part,
    out: *mut f32,
    ahead: &mut *const u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        // the byte 0x64 above a code makes 1024 + code of it in f16
        let (upper, less) = (_mm512_set1_epi8(0x64), _mm512_castsi512_ph(_mm512_set1_epi16(LOWEST)));
        let mut found = [_mm512_setzero_ph(); H];
        let (mut from, mut weight) = (block.from.add(part.column), block.weights.add(part.head));
        for row in 0..block.count {
            let codes = _mm512_maskz_loadu_epi8(part.mask, from.cast());
            let biased =
                if UPPER { _mm512_unpackhi_epi8(codes, upper) } else { _mm512_unpacklo_epi8(codes, upper) };
            let numbers = _mm512_sub_ph(_mm512_castsi512_ph(biased), less);
            for h in 0..H {
                let w = _mm512_castsi512_ph(_mm512_set1_epi32(*weight.add(h) as i32));
                found[h] = _mm512_fmadd_ph(w, numbers, found[h]);
            }
            if row.is_multiple_of(2) {
                prefetch(ahead);
            }
            from = from.wrapping_add(block.stride);
            weight = weight.wrapping_add(HEADS);
        }
        each_below!(H, h => {
            let all = _mm512_castph_si512(found[h]);
            let halves = [_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all)];
            let alpha = _mm512_set1_ps(*block.alpha.get_unchecked(part.head + h));
            let beta = _mm512_set1_ps(*block.beta.get_unchecked(part.head + h));
            for (i, half) in halves.into_iter().enumerate() {
                let out = out.add(h * part.columns + 16 * i);
                let new = _mm512_mul_ps(_mm512_cvtxph_ps(_mm256_castsi256_ph(half)), beta);
                let all = if block.first { new } else { _mm512_fmadd_ps(_mm512_loadu_ps(out), alpha, new) };
                _mm512_storeu_ps(out, all);
            }
        });
    }
}

/// A line of sums in the order of its columns. Of each 64, those that are the lower eight of sixteen come first.
#[inline(always)]
fn unpermute(sums: &[f32], out: &mut [f32]) {
    for (i, eight) in out.chunks_mut(8).enumerate() {
        // eight i of 64: its pair, and whether it is the upper one
        let (vector, pair, upper) = (i / 8, i % 8 / 2, i % 2);
        let at = vector * COLUMNS + upper * COLUMNS / 2 + pair * 8;
        eight.copy_from_slice(&sums[at..at + eight.len()]);
    }
}
