//! MLA decode over an int8 cache with AVX512-FP16: content scores are integer dot products
//! ([`int8_queries`](super::int8_queries)), RoPE scores and weighted sums are f16.
//!
//! A query's RoPE part is scaled to at most 1/128 and rounded to f16; its products have two f16
//! accumulators. Weights are relative to the max of their block and are multiplied by the scale of
//! their row, relative to the largest scale of the block. At most 64 weighted rows of quants are
//! summed in f16, blocks in f32. Nothing can overflow, and rounding errors are as in
//! [`f16`](super::f16).
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::driver::{self, DecodeKernel, KvBlock};
use super::int8::row_of;
use super::int8_queries::{LATENT_ROW, QuantizedQueries, queries_len, transpose_words};
use crate::attention::args::{AttendArgs, HEADS};
use crate::attention::gemm_f16::{F16_CHAIN, prefetch, scale_to_f16};
use crate::attention::scratch::{self, words};
use crate::attention::softmax::f16::F16Softmax;
use crate::attention::split_kv::PartialSoftmax;
use crate::attention::unroll::unrolled;
use crate::kv_cache::{KvPrefetch, scale_of};
use crate::simd::avx512::Avx512;
use std::arch::x86_64::*;

/// Cached rows of a block, whose weighted sum is in f16.
const KV_BLOCK: usize = F16_CHAIN;

/// Columns that are summed together: quants of a vector.
const COLUMNS: usize = 64;

/// Largest weight times scale: [`KV_BLOCK`] products with quants, 64 · 4 · 128 = 32 768, stay
/// finite.
const MAX_WEIGHT: f32 = 4.0;

/// Block scales up to this count as zero, since [`MAX_WEIGHT`] / scale could overflow.
const MIN_SCALE: f32 = 1e-30;

/// The bits of 1024 + 128 in f16, the value of quant 0: a biased byte below the upper byte 0x64 is
/// the f16 1024 + byte.
const ZERO_QUANT: i16 = 0x6480;

/// Rows of a register tile of RoPE scores.
const MR: usize = 16;

/// As [`AttendFn`](crate::AttendFn), for up to [`HEADS`] heads over a cache of int8.
///
/// # Panics
/// When shapes differ, the RoPE part has an odd width or more than 128 elements, the cache holds
/// another type, or the CPU has no AVX512-FP16.
pub(in crate::attention) fn attend(
    args: &AttendArgs<'_>,
    part: &mut PartialSoftmax<'_>,
    memory: &mut Vec<f32>,
) {
    args.check_group(part);
    let stored = row_of(args);
    assert!(stored.rope.is_multiple_of(2) && stored.rope <= 2 * F16_CHAIN, "a rope part of {}", stored.rope);
    let _proof = crate::isa::Avx512Fp16::expect();
    // SAFETY: the token proves the features that `inner` is compiled for; shapes and type are
    // checked.
    unsafe { inner(args, part, memory) }
}

crate::isa::isa_fn! { Avx512Fp16;
unsafe fn inner(args: &AttendArgs<'_>, part: &mut PartialSoftmax<'_>, memory: &mut Vec<f32>) {
    // SAFETY: compiled for AVX512-FP16; the caller has checked shapes and type.
    unsafe { attend_checked(args, part, memory) }
}
}

/// # Safety
/// The caller is compiled for AVX512-FP16, and has checked shapes and the cache's type.
#[inline(always)]
unsafe fn attend_checked(args: &AttendArgs<'_>, part: &mut PartialSoftmax<'_>, memory: &mut Vec<f32>) {
    let (heads, latent) = (args.q.rows(), args.latent);
    let rope = args.cache.width() - latent;
    let columns = latent.next_multiple_of(COLUMNS);
    // Pairs of a RoPE query, in whole vectors.
    let pairs = rope.next_multiple_of(16) / 2;
    let lengths = [
        queries_len(latent),
        pairs * HEADS,
        pairs * HEADS,
        KV_BLOCK * HEADS,
        KV_BLOCK * HEADS,
        HEADS * columns,
    ];
    let [quants, by_head, rope_queries, scores, weights, sums] = scratch::resize(memory, lengths);
    let (by_head, rope_queries, weights) = (words(by_head), words(rope_queries), words(weights));
    let scale = args.scale * std::f32::consts::LOG2_E;
    let queries = QuantizedQueries::new(&args.q, latent, scale, quants);
    let mut factors = [0.0; HEADS];
    by_head.fill(0);
    for (head, factor) in factors.iter_mut().enumerate().take(heads) {
        let out = &mut by_head[head * pairs..][..pairs];
        // SAFETY: the caller is compiled for AVX512-FP16.
        *factor = scale * unsafe { scale_to_f16(&args.q.row(head)[latent..], out) };
    }
    transpose_words(by_head, pairs, rope_queries);
    // SAFETY: the caller is compiled for AVX512-FP16.
    let running = unsafe { F16Softmax::new() };
    let scales = [0.0; KV_BLOCK];
    let mut kernel = Int8F16Decode {
        heads,
        latent,
        rope,
        queries,
        rope_queries,
        factors,
        scales,
        scores,
        weights,
        sums: &mut *sums,
        running,
    };
    // SAFETY: the caller is compiled for AVX512-FP16; the kernel was made for this cache, which is
    // int8 as the caller has checked.
    unsafe { driver::run(&mut kernel, args.cache, args.rows.clone()) }
    let running = kernel.running;
    for (head, line) in sums.chunks_exact(columns).enumerate().take(heads) {
        unpermute(line, part.o.row_mut(head));
    }
    // SAFETY: the caller is compiled for AVX512-FP16.
    unsafe { running.finish(part, heads) }
}

struct Int8F16Decode<'a> {
    heads: usize,
    latent: usize,
    /// Elements of the RoPE part.
    rope: usize,
    /// The content of queries, quantized.
    queries: QuantizedQueries<'a>,
    /// The RoPE parts of queries, a line of heads per pair of f16.
    rope_queries: &'a [u32],
    /// Per head: inverse of the RoPE part's scaling · factor on scores · log₂ e. Scores are then
    /// exponents of 2.
    factors: [f32; HEADS],
    /// Scales of the block's rows.
    scales: [f32; KV_BLOCK],
    /// A line of heads per row.
    scores: &'a mut [f32],
    /// A line of weights per row, each twice as f16.
    weights: &'a mut [u32],
    /// Sums, a line per head, with permuted columns: see [`unpermute`].
    sums: &'a mut [f32],
    running: F16Softmax,
}

impl DecodeKernel for Int8F16Decode<'_> {
    const KV_BLOCK: usize = KV_BLOCK;

    #[inline(always)]
    unsafe fn load(&mut self, block: &KvBlock<'_>) {
        self.scales = [0.0; KV_BLOCK];
        for (i, scale) in self.scales.iter_mut().enumerate().take(block.count) {
            *scale = scale_of(block.row(i));
        }
    }

    #[inline(always)]
    unsafe fn qk(&mut self, block: &KvBlock<'_>, prefetch: &mut KvPrefetch) {
        let rows = (block.address(), block.stride());
        let scores = &mut self.scores[..block.count * HEADS];
        // SAFETY: the block's rows, each of `latent` quants, `rope` f16 and a scale, are
        // contiguous; the caller is compiled for AVX512-FP16, and so for AVX-512.
        unsafe {
            self.queries.qk::<Avx512, 2>(rows, block.count, scores, &mut prefetch.next);
            self.add_rope_scores(block.address().add(self.latent), block);
        }
    }

    #[inline(always)]
    unsafe fn softmax(&mut self, block: &KvBlock<'_>) {
        let scales = &self.scales[..block.count];
        let max_scale = scales.iter().fold(0.0f32, |m, s| m.max(*s));
        // Weights include the scales of the rows, so that quants are summed without them.
        let to_weight = if max_scale > MIN_SCALE { MAX_WEIGHT / max_scale } else { 0.0 };
        let (scores, weights) =
            (&self.scores[..block.count * HEADS], &mut self.weights[..block.count * HEADS]);
        // SAFETY: the caller is compiled for AVX512-FP16.
        unsafe { self.running.softmax_block(scores, (scales, to_weight), max_scale / MAX_WEIGHT, weights) }
    }

    #[inline(always)]
    unsafe fn pv(&mut self, block: &KvBlock<'_>, prefetch: &mut KvPrefetch) {
        let F16Softmax { alpha, beta, .. } = &self.running;
        let (from, stride) = (block.address(), block.stride());
        let weights = self.weights.as_ptr();
        let weighted =
            WeightedRows { from, stride, count: block.count, weights, first: block.is_first, alpha, beta };
        // SAFETY: the block's rows have `latent` quants each and `weights` a line per row; the
        // caller is compiled for AVX512-FP16.
        unsafe { pv(&weighted, self.heads, self.latent, self.sums, &mut prefetch.next) }
    }
}

impl Int8F16Decode<'_> {
    /// Multiplies the content scores by the scale of their row, and adds the scores of the RoPE
    /// parts, the first of which is at `from`.
    ///
    /// # Safety
    /// The block's rows have `rope` f16 each from there on; the caller is compiled for AVX512-FP16.
    #[inline(always)]
    unsafe fn add_rope_scores(&mut self, from: *const u8, block: &KvBlock<'_>) {
        let (stride, count, pairs) = (block.stride(), block.count, self.rope / 2);
        let (queries, factors, scales) = (self.rope_queries, &self.factors, &self.scales);
        let scores = &mut *self.scores;
        assert!(
            queries.len() >= pairs * HEADS && scores.len() >= count * HEADS,
            "a line per pair and per row"
        );
        let mut row = 0;
        while row < count {
            macro_rules! tile {
                ($rows:expr, $stride:literal) => {{
                    const ROWS: usize = $rows;
                    let stride = if $stride > 0 { $stride } else { stride };
                    // SAFETY: rows below `count`, pairs of each by this function's contract, and
                    // lines of queries and scores as asserted.
                    unsafe {
                        let from = from.add(row * stride);
                        let mut acc = [_mm512_setzero_ph(); ROWS];
                        for pair in 0..pairs {
                            let query = _mm512_loadu_si512(queries.as_ptr().add(pair * HEADS).cast());
                            let query = _mm512_castsi512_ph(query);
                            for r in 0..ROWS {
                                let key = from.add(r * stride + 4 * pair).cast::<i32>().read_unaligned();
                                let key = _mm512_castsi512_ph(_mm512_set1_epi32(key));
                                acc[r] = _mm512_fmadd_ph(query, key, acc[r]);
                            }
                        }
                        let factors = _mm512_loadu_ps(factors.as_ptr());
                        unrolled!(ROWS, r => {
                            // The two accumulators of each head: the f16 halves of a 32-bit lane.
                            let all = _mm512_castph_si512(acc[r]);
                            let all = _mm512_add_ph(acc[r], _mm512_castsi512_ph(_mm512_srli_epi32::<16>(all)));
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
}

/// Rows of a block with their weights, and per head the factors of earlier sums and of the block's
/// sums.
struct WeightedRows<'a> {
    from: *const u8,
    stride: usize,
    count: usize,
    weights: *const u32,
    /// Whether this is the first block, without earlier sums to rescale.
    first: bool,
    alpha: &'a [f32; HEADS],
    beta: &'a [f32; HEADS],
}

/// Adds the weighted quants of a block to `sums`, a line per head, with columns permuted as in
/// [`unpermute`].
///
/// # Safety
/// The block has `count` rows of `latent` quants and a line of weights per row; the caller is
/// compiled for AVX512-FP16.
#[inline(always)]
unsafe fn pv(block: &WeightedRows<'_>, heads: usize, latent: usize, sums: &mut [f32], ahead: &mut *const u8) {
    let columns = latent.next_multiple_of(COLUMNS);
    assert!(sums.len() >= heads * columns && heads <= HEADS, "a line of whole vectors per head");
    let mut head = 0;
    while head < heads {
        macro_rules! strips {
            ($heads:literal) => {{
                for column in (0..latent).step_by(COLUMNS) {
                    // Elements beyond the quants are the RoPE part, or beyond the cache: they are
                    // not read.
                    let mask = u64::MAX >> (COLUMNS - (latent - column).min(COLUMNS));
                    for half in 0..2 {
                        // SAFETY: heads and columns of `sums`, as asserted; rows by this function's
                        // contract.
                        unsafe {
                            let out = sums.as_mut_ptr().add(head * columns + column + half * COLUMNS / 2);
                            let tile = StripTile { head, column, mask, columns };
                            if half == 0 {
                                strip::<$heads, false>(block, tile, out, ahead);
                            } else {
                                strip::<$heads, true>(block, tile, out, ahead);
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

/// The register tile of [`strip`]: its first head, its first column, the mask of its quants, and
/// the elements of a line of sums.
struct StripTile {
    head: usize,
    column: usize,
    mask: __mmask64,
    columns: usize,
}

/// Weighted sums of `H` heads over half of the quants of a vector: the `UPPER` or lower eight of
/// each sixteen.
///
/// # Safety
/// As for [`pv`]; heads and columns of the tile are inside, with sums at `out`.
#[inline(always)]
unsafe fn strip<const H: usize, const UPPER: bool>(
    block: &WeightedRows<'_>,
    tile: StripTile,
    out: *mut f32,
    ahead: &mut *const u8,
) {
    // SAFETY: rows below `count`, heads and columns by this function's contract; masked lanes are
    // not read.
    unsafe {
        // An unpack and a subtraction convert quants: with 0x64 as upper byte, the f16 is 1024 +
        // biased quant, exactly.
        let (upper, zero_point) =
            (_mm512_set1_epi8(0x64), _mm512_castsi512_ph(_mm512_set1_epi16(ZERO_QUANT)));
        let mut acc = [_mm512_setzero_ph(); H];
        let (mut from, mut weight) = (block.from.add(tile.column), block.weights.add(tile.head));
        for row in 0..block.count {
            let quants = _mm512_maskz_loadu_epi8(tile.mask, from.cast());
            let biased =
                if UPPER { _mm512_unpackhi_epi8(quants, upper) } else { _mm512_unpacklo_epi8(quants, upper) };
            let values = _mm512_sub_ph(_mm512_castsi512_ph(biased), zero_point);
            for h in 0..H {
                let w = _mm512_castsi512_ph(_mm512_set1_epi32(*weight.add(h) as i32));
                acc[h] = _mm512_fmadd_ph(w, values, acc[h]);
            }
            if row.is_multiple_of(2) {
                prefetch(ahead);
            }
            from = from.wrapping_add(block.stride);
            weight = weight.wrapping_add(HEADS);
        }
        unrolled!(H, h => {
            let all = _mm512_castph_si512(acc[h]);
            let halves = [_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all)];
            let alpha = _mm512_set1_ps(*block.alpha.get_unchecked(tile.head + h));
            let beta = _mm512_set1_ps(*block.beta.get_unchecked(tile.head + h));
            for (i, half) in halves.into_iter().enumerate() {
                let out = out.add(h * tile.columns + 16 * i);
                let new = _mm512_mul_ps(_mm512_cvtxph_ps(_mm256_castsi256_ph(half)), beta);
                let all = if block.first { new } else { _mm512_fmadd_ps(_mm512_loadu_ps(out), alpha, new) };
                _mm512_storeu_ps(out, all);
            }
        });
    }
}

/// Restores the order of the columns of a line of sums. Byte unpacking within 128-bit quarters
/// leaves, of each 64 columns, the lower eight of each sixteen first.
#[inline(always)]
fn unpermute(sums: &[f32], out: &mut [f32]) {
    for (i, eight) in out.chunks_mut(8).enumerate() {
        // Of the i-th eight columns: its vector, its sixteen, and whether it is the upper half.
        let (vector, pair, upper) = (i / 8, i % 8 / 2, i % 2);
        let at = vector * COLUMNS + upper * COLUMNS / 2 + pair * 8;
        eight.copy_from_slice(&sums[at..at + eight.len()]);
    }
}
