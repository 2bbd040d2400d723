//! Attention in latent space over a cache of 8-bit codes: scores of the latents are sums of integers, since queries become codes too.
//!
//! Heads are lanes: four codes of a cached row meet those of all heads in one instruction, and nothing is summed across a register. A head's
//! query has a scale for each [`RUN`] numbers, its largest magnitude / 127. The rope part, which has 16 bits, and weighted sums are f32.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use super::f32::{HEADS, KV_BLOCK, check, softmax, transpose_queries};
use crate::activation::code_scale;
use crate::attention::cache::{CacheView, scale_of, widen};
use crate::attention::{PartialSoftmax, each_below};
use crate::gemm::{Left, gemm};
use crate::simd::Simd;
use crate::{Rows, RowsMut};
use latent_types::{CacheRow, CacheType};
use std::ops::Range;

/// Numbers of a query with one scale.
const RUN: usize = 128;

/// Bytes of a cached row of nearly every published model: 512 + 2 · 64 + 4. As a constant it leaves one address where there would be sixteen.
pub(in crate::attention) const LATENT_ROW: usize = 644;

/// Queries of all heads as codes.
pub(in crate::attention) struct Queries<'a> {
    /// For each four numbers a line of four codes of each head.
    codes: &'a [u32],
    /// For each run a line of −128 · Σ codes of each head: see [`Simd::load_init_acc`].
    biases: &'a [i32],
    /// For each run a line of scales.
    scales: &'a [f32],
    /// Numbers of a query.
    width: usize,
}

/// Numbers of memory that the codes of queries of `width` numbers take.
pub(in crate::attention) fn queries_len(width: usize) -> usize {
    HEADS * (2 * width.next_multiple_of(RUN) / 4 + 2 * width.div_ceil(RUN))
}

impl<'a> Queries<'a> {
    /// The first `width` numbers of each query, times `scale`. `memory` has [`queries_len`] numbers.
    #[inline(always)]
    pub(in crate::attention) fn new(
        q: &Rows<'_>,
        width: usize,
        scale: f32,
        memory: &'a mut [f32],
    ) -> Queries<'a> {
        let (padded, runs) = (width.next_multiple_of(RUN), width.div_ceil(RUN));
        let (scales, rest) = memory.split_at_mut(HEADS * runs);
        let (biases, rest) = words(rest).split_at_mut(HEADS * runs);
        let (by_head, codes) = rest.split_at_mut(HEADS * padded / 4);
        for (head, line) in by_head.chunks_exact_mut(padded / 4).enumerate() {
            let row = if head < q.rows() { &q.row(head)[..width] } else { &[] };
            for (run, line) in line.chunks_exact_mut(RUN / 4).enumerate() {
                let mut numbers = [0.0; RUN];
                let row = &row[(run * RUN).min(row.len())..((run + 1) * RUN).min(row.len())];
                numbers[..row.len()].copy_from_slice(row);
                let (factor, bias) = quantize(&numbers, line);
                scales[run * HEADS + head] = factor * scale;
                biases[run * HEADS + head] = bias as u32;
            }
        }
        transpose_words(by_head, padded / 4, codes);
        Queries { codes, biases: signed(biases), scales, width }
    }

    /// A line of heads for each of `count` rows, `stride` bytes apart: the products of codes, without the scales of the rows. One line of memory from
    /// `ahead` on is asked for with each `PREFETCH_EVERY` fours of numbers.
    ///
    /// # Safety
    /// As for [`Simd`]. Each row has at least the queries' numbers, in whole fours.
    #[inline(always)]
    pub(in crate::attention) unsafe fn qk<L: Simd, const PREFETCH_EVERY: usize>(
        &self,
        (from, stride): (*const u8, usize),
        count: usize,
        scores: &mut [f32],
        ahead: &mut *const u8,
    ) {
        assert!(scores.len() >= count * HEADS, "a line of scores for each row");
        let mut row = 0;
        while row < count {
            macro_rules! tile {
                ($rows:literal) => {{
                    // SAFETY: the caller's promise; lines of scores are there, as just asserted.
                    unsafe {
                        let (from, out) = (from.add(row * stride), scores.as_mut_ptr().add(row * HEADS));
                        match stride {
                            LATENT_ROW => {
                                self.tile::<L, $rows, LATENT_ROW, PREFETCH_EVERY>(from, stride, out, ahead)
                            }
                            _ => self.tile::<L, $rows, 0, PREFETCH_EVERY>(from, stride, out, ahead),
                        }
                    }
                    row += $rows;
                }};
            }
            match (count - row).min(2 * L::MR) {
                16.. => tile!(16),
                4.. => tile!(4),
                _ => tile!(1),
            }
        }
    }

    /// The same for `R` rows; `STRIDE`: their distance where the compiler knows it, else 0.
    #[inline(always)]
    unsafe fn tile<L: Simd, const R: usize, const STRIDE: usize, const PREFETCH_EVERY: usize>(
        &self,
        from: *const u8,
        stride: usize,
        out: *mut f32,
        ahead: &mut *const u8,
    ) {
        let stride = if STRIDE > 0 { STRIDE } else { stride };
        for (run, first) in (0..self.width).step_by(RUN).enumerate() {
            // SAFETY: the caller's promise; there are codes, biases and scales of each run.
            unsafe {
                let mut sums = [L::load_init_acc(self.biases.as_ptr().add(run * HEADS)); R];
                let codes = self.codes.as_ptr().add(first / 4 * HEADS);
                for four in 0..(self.width - first).min(RUN).div_ceil(4) {
                    let query = L::load(codes.add(four * HEADS).cast());
                    for r in 0..R {
                        sums[r] = L::dot_x_biased(sums[r], query, from.add(r * stride + first + 4 * four));
                    }
                    if four.is_multiple_of(PREFETCH_EVERY) {
                        L::prefetch_far(*ahead);
                        *ahead = ahead.wrapping_add(64);
                    }
                }
                let scale = L::load_f32(self.scales.as_ptr().add(run * HEADS));
                each_below!(R, r => {
                    let out = out.add(r * HEADS);
                    let earlier = if run == 0 { L::splat_f32(0.0) } else { L::load_f32(out) };
                    L::store_f32(out, L::mul_add_relaxed(L::to_f32(sums[r]), scale, earlier));
                });
            }
        }
    }
}

/// Numbers as codes, four a word. Returns their scale and −128 · Σ codes; the scale is NaN where a number is not finite.
#[inline(always)]
fn quantize(numbers: &[f32; RUN], out: &mut [u32]) -> (f32, i32) {
    // the bits of magnitudes sort like integers, and NaN sorts above all
    let mut largest = 0;
    for v in numbers {
        largest = largest.max(v.to_bits() & 0x7fff_ffff);
    }
    let Some((scale, inverse)) = code_scale(f32::from_bits(largest)) else {
        out.fill(0);
        return (f32::NAN, 0);
    };
    let (mut codes, mut sum) = ([0u8; RUN], 0);
    for (code, v) in codes.iter_mut().zip(numbers) {
        // adding 1.5 · 2^23 rounds to the nearest integer, even, and leaves it in the low bits
        let rounded = ((v * inverse + 12_582_912.0).to_bits() as i32).wrapping_sub(0x4b40_0000);
        sum += rounded;
        *code = rounded as u8;
    }
    for (out, four) in out.iter_mut().zip(codes.chunks_exact(4)) {
        *out = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
    }
    (scale, -128 * sum)
}

/// Words of a line a head, turned: a line of heads for each word.
#[inline(always)]
pub(in crate::attention) fn transpose_words(lines: &[u32], width: usize, out: &mut [u32]) {
    assert!(lines.len() == HEADS * width && out.len() >= HEADS * width, "words of all heads");
    for from in (0..width).step_by(HEADS) {
        let count = HEADS.min(width - from);
        // squares of sixteen, which the compiler turns in registers
        let mut square = [[0; HEADS]; HEADS];
        for (head, line) in square.iter_mut().enumerate() {
            line[..count].copy_from_slice(&lines[head * width + from..][..count]);
        }
        for (i, line) in out[from * HEADS..(from + count) * HEADS].chunks_exact_mut(HEADS).enumerate() {
            for (head, word) in line.iter_mut().enumerate() {
                *word = square[head][i];
            }
        }
    }
}

/// The same memory as words.
#[inline(always)]
pub(in crate::attention) fn words(numbers: &mut [f32]) -> &mut [u32] {
    // SAFETY: the same size and alignment, and any bits are a number.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), numbers.len()) }
}

/// The same memory as numbers with a sign.
#[inline(always)]
fn signed(words: &[u32]) -> &[i32] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
}

/// How rows of a cache of codes lie, whose latents have so many numbers.
///
/// # Panics
/// When the cache holds another type.
#[inline(always)]
pub(in crate::attention) fn row_of(cache: &CacheView<'_>, latent: usize) -> CacheRow {
    let row = CacheRow { ty: cache.ty(), content: latent, rope: cache.width() - latent };
    assert!(cache.ty() == CacheType::Int8 && cache.row_bytes() == row.bytes(), "a cache of int8");
    row
}

/// As [`AttendFn`](crate::attention::AttendFn), over a cache of `int8`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the arguments of an attention kernel and its memory")]
pub(in crate::attention) unsafe fn attend<L: Simd>(
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
    let (stored, rope) = (row_of(cache, latent), width - latent);
    memory.resize(queries_len(latent) + rope * HEADS + KV_BLOCK * width + 2 * KV_BLOCK * HEADS, 0.0);
    let (codes, rest) = memory.split_at_mut(queries_len(latent));
    let (rotated, rest) = rest.split_at_mut(rope * HEADS);
    let (lines, rest) = rest.split_at_mut(KV_BLOCK * width);
    let (scores, rope_scores) = rest.split_at_mut(KV_BLOCK * HEADS);
    let queries = Queries::new(&q, latent, scale, codes);
    transpose_queries(&q, latent, scale, rotated);
    let (mut max, mut sum) = ([f32::NEG_INFINITY; HEADS], [0.0f32; HEADS]);
    (0..heads).for_each(|head| part.o.row_mut(head).fill(0.0));
    let mut start = rows.start;
    while start < rows.end {
        let (count, mut ahead) = cache.together(start, rows.end, KV_BLOCK);
        for (row, line) in (start..start + count).zip(lines.chunks_exact_mut(width)) {
            // SAFETY: the caller's promise.
            unsafe { widen::<L>(stored, cache.row(row), line) };
        }
        let scores = &mut scores[..count * HEADS];
        let mut found = RowsMut::new(rope_scores, count, HEADS, HEADS);
        // SAFETY: the caller's promise; `count` rows lie one after the other, and behind the codes of each comes its scale at least.
        unsafe {
            let from = (cache.row(start).as_ptr(), cache.row_bytes());
            queries.qk::<L, 1>(from, count, scores, &mut ahead);
            gemm::<L>(rope, Left::Rows(&lines[latent..], width), (rotated, HEADS), &mut found, false);
        }
        for (i, line) in scores.chunks_exact_mut(HEADS).enumerate() {
            let scale = scale_of(cache.row(start + i));
            line.iter_mut().zip(&rope_scores[i * HEADS..]).for_each(|(s, r)| *s = *s * scale + r);
        }
        let factors = softmax(scores, &mut max, &mut sum);
        for (head, factor) in factors.iter().enumerate().take(heads) {
            if *factor != 1.0 {
                part.o.row_mut(head).iter_mut().for_each(|o| *o *= factor);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { gemm::<L>(count, Left::Columns(scores, HEADS), (lines, width), &mut part.o, true) }
        start += count;
    }
    part.max[..heads].copy_from_slice(&max[..heads]);
    part.sum[..heads].copy_from_slice(&sum[..heads]);
}
