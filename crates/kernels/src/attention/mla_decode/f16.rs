//! MLA decode in half precision: AVX512-FP16 multiplies cached f16 rows as they are stored, 32
//! elements per instruction.
//!
//! Queries are scaled to at most 1/128 and rounded to f16. A score has 32 f16 accumulators, which
//! are summed in f32. Weights are relative to the max of their block and divided by 64. At most 64
//! weighted rows are summed in f16, blocks in f32. Nothing can overflow for any finite values in
//! the cache. Each rounding is 2⁻¹² of a partial sum, so a score s is within about 2⁻¹⁰ · |s| and
//! the result within about 2⁻¹⁰ of the largest value; errors are much smaller on average.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::driver::{self, DecodeKernel, KvBlock};
use crate::attention::args::{AttendArgs, HEADS};
use crate::attention::gemm_f16::{
    Accumulation, F16_CHAIN, F16_LANES, F16Gemm, LeftFactor, load, load_some, multiply, prefetch,
    scale_to_f16,
};
use crate::attention::scratch::{self, words};
use crate::attention::softmax::f16::{F16Softmax, MAX_WEIGHT};
use crate::attention::split_kv::PartialSoftmax;
use crate::kv_cache::KvPrefetch;
use latent_types::CacheType;
use std::arch::x86_64::*;

/// Rows and heads of a register tile of scores: sixteen accumulators.
const MR: usize = 4;

/// As [`AttendFn`](crate::AttendFn), for up to [`HEADS`] heads over a cache of f16.
///
/// # Panics
/// When shapes differ, the cache holds another type, or the CPU has no AVX512-FP16.
pub(in crate::attention) fn attend(
    args: &AttendArgs<'_>,
    part: &mut PartialSoftmax<'_>,
    memory: &mut Vec<f32>,
) {
    args.check_group(part);
    let cache = args.cache;
    assert!(cache.ty() == CacheType::F16 && cache.row_bytes() == 2 * cache.width(), "a cache of f16");
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
    let (heads, width, latent) = (args.q.rows(), args.cache.width(), args.latent);
    let (padded, columns) = (width.next_multiple_of(F16_LANES), latent.next_multiple_of(F16_LANES));
    let tiled = heads.next_multiple_of(MR);
    // Sums are computed in the result if whole vectors fit there, else in scratch.
    let separate_len = if latent == columns { 0 } else { HEADS * columns };
    let lengths = [HEADS * padded / 2, F16_CHAIN * HEADS, F16_CHAIN * HEADS, separate_len];
    let [queries, scores, weights, sums] = scratch::resize(memory, lengths);
    let (queries, weights) = (words(queries), words(weights));
    let mut factors = [0.0; HEADS];
    queries[heads * padded / 2..tiled * padded / 2].fill(0);
    for (head, factor) in factors.iter_mut().enumerate().take(heads) {
        let out = &mut queries[head * padded / 2..][..padded / 2];
        // SAFETY: the caller is compiled for AVX512-FP16.
        *factor = args.scale * std::f32::consts::LOG2_E * unsafe { scale_to_f16(args.q.row(head), out) };
    }
    let (out, out_row) = if separate_len == 0 { part.o.raw_mut() } else { (sums.as_mut_ptr(), columns) };
    // SAFETY: the caller is compiled for AVX512-FP16.
    let running = unsafe { F16Softmax::new() };
    let mut kernel =
        F16Decode { heads, tiled, width, latent, queries, factors, scores, weights, out, out_row, running };
    // SAFETY: the caller is compiled for AVX512-FP16; the kernel was made for this cache, which is
    // f16 as the caller has checked.
    unsafe { driver::run(&mut kernel, args.cache, args.rows.clone()) }
    let running = kernel.running;
    for (head, line) in sums.chunks_exact(columns).enumerate().take(heads) {
        part.o.row_mut(head).copy_from_slice(&line[..latent]);
    }
    // SAFETY: the caller is compiled for AVX512-FP16.
    unsafe { running.finish(part, heads) }
}

struct F16Decode<'a> {
    heads: usize,
    /// Heads, rounded up to whole register tiles.
    tiled: usize,
    width: usize,
    latent: usize,
    /// Scaled queries, a line of f16 pairs per head, padded to whole vectors.
    queries: &'a [u32],
    /// Per head: inverse of the query's scaling · factor on scores · log₂ e. Scores are then
    /// exponents of 2.
    factors: [f32; HEADS],
    /// A line of heads per row.
    scores: &'a mut [f32],
    /// A line of weights per row, each twice as f16.
    weights: &'a mut [u32],
    /// Sums: whole vectors per head, `out_row` elements apart.
    out: *mut f32,
    out_row: usize,
    running: F16Softmax,
}

impl DecodeKernel for F16Decode<'_> {
    const KV_BLOCK: usize = F16_CHAIN;

    #[inline(always)]
    unsafe fn qk(&mut self, block: &KvBlock<'_>, prefetch: &mut KvPrefetch) {
        // SAFETY: the block's rows of `width` f16 are contiguous; the caller is compiled for
        // AVX512-FP16.
        unsafe { self.dot_rows(block.address(), block.count, &mut prefetch.next) }
        let factors = &self.factors;
        for line in self.scores[..block.count * HEADS].chunks_exact_mut(HEADS) {
            // SAFETY: sixteen elements each.
            unsafe {
                let scaled = _mm512_mul_ps(_mm512_loadu_ps(line.as_ptr()), _mm512_loadu_ps(factors.as_ptr()));
                _mm512_storeu_ps(line.as_mut_ptr(), scaled);
            }
        }
    }

    #[inline(always)]
    unsafe fn softmax(&mut self, block: &KvBlock<'_>) {
        let (scores, weights) =
            (&self.scores[..block.count * HEADS], &mut self.weights[..block.count * HEADS]);
        // SAFETY: the caller is compiled for AVX512-FP16.
        unsafe { self.running.softmax_block(scores, MAX_WEIGHT, 1.0 / MAX_WEIGHT, weights) }
    }

    #[inline(always)]
    unsafe fn pv(&mut self, block: &KvBlock<'_>, prefetch: &mut KvPrefetch) {
        let left = LeftFactor { start: self.weights.as_ptr(), row: 1, column: HEADS };
        let product = F16Gemm {
            rows: self.heads,
            k: block.count,
            columns: self.latent,
            right: block.address().cast(),
            right_row: self.width,
            out: self.out,
            out_row: self.out_row,
        };
        let F16Softmax { alpha, beta, .. } = &self.running;
        let old = if block.is_first { Accumulation::First(beta) } else { Accumulation::Scale(alpha, beta) };
        // SAFETY: the block has `count` rows of `width` ≥ `latent` f16, `weights` a line per row,
        // and `out` whole vectors per head; the caller is compiled for AVX512-FP16.
        unsafe { multiply(left, &product, old, &mut Some(prefetch.next)) };
    }
}

impl F16Decode<'_> {
    /// Dot products of `count` rows with all heads, a line of heads per row; prefetches one cache
    /// line from `ahead` on per step of every other tile.
    ///
    /// # Safety
    /// `count` rows of `width` f16 are at `from`; the caller is compiled for AVX512-FP16.
    #[inline(always)]
    unsafe fn dot_rows(&mut self, from: *const u8, count: usize, ahead: &mut *const u8) {
        let (width, heads, queries) = (self.width, self.tiled, self.queries);
        let scores = &mut *self.scores;
        let padded = width.next_multiple_of(F16_LANES);
        let whole = width / F16_LANES * F16_LANES;
        assert!(
            queries.len() * 2 >= heads * padded && scores.len() >= count * HEADS && heads <= HEADS,
            "scratch"
        );
        let tail: __mmask32 = (1u64 << (width - whole)).wrapping_sub(1) as u32;
        for row in (0..count).step_by(MR) {
            // A last tile with fewer rows repeats its last one.
            let lines: [*const u8; MR] =
                std::array::from_fn(|r| from.wrapping_add((row + r).min(count - 1) * 2 * width));
            for head in (0..heads).step_by(MR) {
                // SAFETY: elements below `width` of rows below `count`, and heads below `heads`,
                // for which there are queries and scores as asserted; masked lanes are not read.
                // The caller is compiled for AVX512-FP16.
                unsafe {
                    let query = queries.as_ptr().cast::<u16>().add(head * padded);
                    let mut acc = [_mm512_setzero_ph(); MR * MR];
                    macro_rules! step {
                        ($keys:expr, $at:expr) => {{
                            let at: usize = $at;
                            let keys: [__m512h; MR] = $keys;
                            for h in 0..MR {
                                let q = load(query.add(h * padded + at));
                                for r in 0..MR {
                                    acc[h * MR + r] = _mm512_fmadd_ph(q, keys[r], acc[h * MR + r]);
                                }
                            }
                            // In every other tile: a step reads four lines of the block, and two of
                            // the four tiles of sixteen heads prefetch one each. `pv` prefetches
                            // the other half.
                            if head % (2 * MR) == 0 {
                                prefetch(ahead);
                            }
                        }};
                    }
                    let mut at = 0;
                    while at < whole {
                        step!(
                            [
                                load(lines[0].cast::<u16>().add(at)),
                                load(lines[1].cast::<u16>().add(at)),
                                load(lines[2].cast::<u16>().add(at)),
                                load(lines[3].cast::<u16>().add(at)),
                            ],
                            at
                        );
                        at += F16_LANES;
                    }
                    if tail != 0 {
                        step!(
                            [
                                load_some(tail, lines[0].cast::<u16>().add(at)),
                                load_some(tail, lines[1].cast::<u16>().add(at)),
                                load_some(tail, lines[2].cast::<u16>().add(at)),
                                load_some(tail, lines[3].cast::<u16>().add(at)),
                            ],
                            at
                        );
                    }
                    let sums = sum_accumulators(acc);
                    let quarters = [
                        _mm512_extractf32x4_ps::<0>(sums),
                        _mm512_extractf32x4_ps::<1>(sums),
                        _mm512_extractf32x4_ps::<2>(sums),
                        _mm512_extractf32x4_ps::<3>(sums),
                    ];
                    for (r, quarter) in quarters.into_iter().enumerate().take(count - row) {
                        _mm_storeu_ps(scores.as_mut_ptr().add((row + r) * HEADS + head), quarter);
                    }
                }
            }
        }
    }
}

/// Sums of sixteen vectors: lane j of quarter i is the sum of vector 4 j + i.
///
/// # Safety
/// The caller is compiled for AVX512-FP16.
#[inline(always)]
unsafe fn sum_accumulators(v: [__m512h; 16]) -> __m512 {
    // SAFETY: registers only, in a caller compiled for AVX512-FP16.
    unsafe {
        macro_rules! fold {
            ($a:expr, $b:expr, $low:literal, $high:literal) => {{
                let (a, b) = (_mm512_castph_ps($a), _mm512_castph_ps($b));
                let low = _mm512_castps_ph(_mm512_shuffle_f32x4::<$low>(a, b));
                _mm512_add_ph(low, _mm512_castps_ph(_mm512_shuffle_f32x4::<$high>(a, b)))
            }};
        }
        // Quarters: two of one vector and two of the next; then one of each of four. Two additions
        // are in f16, which `MAX_QUERY` keeps finite.
        macro_rules! four {
            ($i:expr) => {{
                let (ab, cd) = (fold!(v[$i], v[$i + 1], 0x44, 0xee), fold!(v[$i + 2], v[$i + 3], 0x44, 0xee));
                let abcd = _mm512_castph_si512(fold!(ab, cd, 0x88, 0xdd));
                // Eight f16 of each vector in f32, added to four sums.
                let low = _mm512_cvtxph_ps(_mm256_castsi256_ph(_mm512_castsi512_si256(abcd)));
                let high = _mm512_cvtxph_ps(_mm256_castsi256_ph(_mm512_extracti64x4_epi64::<1>(abcd)));
                let (x, y) =
                    (_mm512_shuffle_f32x4::<0x88>(low, high), _mm512_shuffle_f32x4::<0xdd>(low, high));
                _mm512_add_ps(x, y)
            }};
        }
        let (a, b, c, d) = (four!(0), four!(4), four!(8), four!(12));
        let ac = _mm512_add_ps(_mm512_unpacklo_ps(a, c), _mm512_unpackhi_ps(a, c));
        let bd = _mm512_add_ps(_mm512_unpacklo_ps(b, d), _mm512_unpackhi_ps(b, d));
        // a c a c and b d b d, whose halves are added to a b c d.
        let (low, high) = (_mm512_unpacklo_ps(ac, bd), _mm512_unpackhi_ps(ac, bd));
        _mm512_add_ps(low, high)
    }
}
