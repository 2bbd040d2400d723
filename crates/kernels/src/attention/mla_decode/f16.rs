//! Attention in latent space in half precision: cached f16 rows are factors as they lie, 32 numbers in an instruction of AVX512-FP16.
//!
//! Queries are scaled to at most 1/128 and rounded to f16; a score's products are summed in 32 strands of f16, the strands in f32.
//! Weights are relative to the largest of their block and divided by 64; at most 64 weighted rows are summed in f16, blocks in f32. Nothing
//! can overflow, whatever finite numbers the cache holds. Each rounding is 2⁻¹² of a partial sum, so that a score s is within
//! about 2⁻¹⁰ · |s| and the result within about 2⁻¹⁰ of the largest value, much less on average.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::f32::{HEADS, check};
use crate::Rows;
use crate::attention::PartialSoftmax;
use crate::attention::cache::CacheView;
use crate::attention::gemm_f16::{
    F16_CHAIN, F16_LANES, Left, Old, Product, bits, exp2, for_vectors, largest, load, load_some, multiply,
    prefetch, splat_pairs_f16,
};
use latent_types::CacheType;
use std::arch::x86_64::*;
use std::ops::Range;

/// Cached rows whose weighted sum is in f16.
const KV_BLOCK: usize = F16_CHAIN;

/// Cached rows and heads that are scored together.
const MR: usize = 4;

/// Largest magnitude of a scaled query: 4 · 18 products with any f16 stay finite.
pub(in crate::attention) const MAX_QUERY: f32 = 1.0 / 128.0;

/// Largest weight: [`KV_BLOCK`] products with any f16 stay finite.
pub(in crate::attention) const MAX_WEIGHT: f32 = 1.0 / KV_BLOCK as f32;

/// As [`AttendFn`](crate::attention::AttendFn), over a cache of f16.
///
/// # Panics
/// When shapes differ, the cache holds another type, or the processor has no AVX512-FP16.
pub(in crate::attention) fn attend(
    q: Rows<'_>,
    cache: &CacheView<'_>,
    rows: Range<usize>,
    scale: f32,
    latent: usize,
    part: &mut PartialSoftmax<'_>,
    memory: &mut Vec<f32>,
) {
    let width = cache.width();
    check(&q, width, latent, part);
    assert!(cache.ty() == CacheType::F16 && cache.row_bytes() == 2 * width, "a cache of f16");
    let _proof = crate::isa::Avx512Fp16::expect();
    // SAFETY: the processor has the features, as just checked; the shapes are those that `inner` needs.
    unsafe { inner(&q, cache, rows, scale, latent, part, memory) }
}

/// Scratch of one call.
struct Memory<'a> {
    /// A line of f16 pairs a head, `padded` numbers wide.
    queries: &'a mut [u32],
    /// A line of heads for each row of a block: scores.
    scores: &'a mut [f32],
    /// The same: weights, each twice as f16.
    weights: &'a mut [u32],
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
    let (heads, width) = (q.rows(), cache.width());
    let (padded, columns) = (width.next_multiple_of(F16_LANES), latent.next_multiple_of(F16_LANES));
    let tiled = heads.next_multiple_of(MR);
    // results are summed where they belong if whole vectors have room there
    let apart = if latent == columns { 0 } else { HEADS * columns };
    memory.resize(HEADS * padded / 2 + 2 * KV_BLOCK * HEADS + apart, 0.0);
    let (queries, rest) = memory.split_at_mut(HEADS * padded / 2);
    let (scores, rest) = rest.split_at_mut(KV_BLOCK * HEADS);
    let (weights, sums) = rest.split_at_mut(KV_BLOCK * HEADS);
    let (out, out_row) = if apart == 0 { part.o.raw_mut() } else { (sums.as_mut_ptr(), columns) };
    let memory = Memory { queries: bits(queries), scores, weights: bits(weights) };
    let mut factors = [0.0; HEADS];
    memory.queries[heads * padded / 2..tiled * padded / 2].fill(0);
    for (head, factor) in factors.iter_mut().enumerate().take(heads) {
        let out = &mut memory.queries[head * padded / 2..][..padded / 2];
        *factor = scale * std::f32::consts::LOG2_E * scale_to_f16(q.row(head), out);
    }
    // SAFETY: the processor has the instructions.
    let mut running = unsafe { RunningSoftmax::new() };
    let mut start = rows.start;
    while start < rows.end {
        let (count, mut ahead) = cache.together(start, rows.end, KV_BLOCK);
        let from = cache.row(start).as_ptr();
        // SAFETY: `count` rows of `width` numbers lie at `from`; `queries` and `scores` have room for whole tiles.
        unsafe { qk(from, &mut ahead, count, width, tiled, memory.queries, memory.scores) };
        let (scores, weights) = (&mut memory.scores[..count * HEADS], &mut memory.weights[..count * HEADS]);
        // SAFETY: the processor has the instructions.
        let (alpha, beta) = unsafe { softmax_block(scores, &factors, &mut running, weights) };
        // half of the next block is asked for while scoring and half while summing, evenly: all at once would come faster than memory answers
        let left = Left { start: memory.weights.as_ptr(), row: 1, column: HEADS };
        let product = Product {
            rows: heads,
            k: count,
            columns: latent,
            right: from.cast(),
            right_row: width,
            out,
            out_row,
        };
        let old = if start == rows.start { Old::First(&beta) } else { Old::Scale(&alpha, &beta) };
        // SAFETY: `count` rows of `width` ≥ `latent` numbers; `weights` has a line a row and `out` a line of whole vectors a head.
        unsafe { multiply(left, &product, old, &mut Some(ahead)) };
        start += count;
    }
    for (head, line) in sums.chunks_exact(columns).enumerate().take(heads) {
        part.o.row_mut(head).copy_from_slice(&line[..latent]);
    }
    // SAFETY: the processor has the instructions.
    unsafe { running.finish(part, heads) }
}
}

/// A row divided to at most [`MAX_QUERY`], as f16 in pairs. Returns what undoes it.
#[inline(always)]
pub(in crate::attention) fn scale_to_f16(row: &[f32], out: &mut [u32]) -> f32 {
    assert!(out.len() * 2 >= row.len().next_multiple_of(16), "room for whole vectors");
    // SAFETY: with the tier's instructions.
    let largest = unsafe { largest(row) };
    if largest == 0.0 {
        out.fill(0);
        return 0.0;
    }
    let factor = MAX_QUERY / largest;
    // SAFETY: as above; eight pairs for each line.
    unsafe {
        let mut places = out.chunks_exact_mut(8);
        for_vectors!(row, line => {
            let scaled = _mm512_mul_ps(_mm512_loadu_ps(line), _mm512_set1_ps(factor));
            if let Some(place) = places.next() {
                _mm256_storeu_si256(place.as_mut_ptr().cast(), _mm256_castph_si256(_mm512_cvtxps_ph(scaled)));
            }
        });
    }
    1.0 / factor
}

/// Scores of `count` rows at `from` with all heads, a line of heads for each row.
///
/// # Safety
/// `count` rows of `width` f16 lie at `from`; the tier's instructions are there.
#[inline(always)]
unsafe fn qk(
    from: *const u8,
    ahead: &mut *const u8,
    count: usize,
    width: usize,
    heads: usize,
    queries: &[u32],
    scores: &mut [f32],
) {
    let padded = width.next_multiple_of(F16_LANES);
    let whole = width / F16_LANES * F16_LANES;
    assert!(
        queries.len() * 2 >= heads * padded && scores.len() >= count * HEADS && heads <= HEADS,
        "scratch"
    );
    let tail: __mmask32 = (1u64 << (width - whole)).wrapping_sub(1) as u32;
    for row in (0..count).step_by(MR) {
        // the last tile reads its last row again
        let lines: [*const u8; MR] =
            std::array::from_fn(|r| from.wrapping_add((row + r).min(count - 1) * 2 * width));
        for head in (0..heads).step_by(MR) {
            // SAFETY: numbers below `width` of rows below `count`, heads below `heads`; masked lanes are not read.
            unsafe {
                let query = queries.as_ptr().cast::<u16>().add(head * padded);
                let mut sums = [_mm512_setzero_ph(); MR * MR];
                macro_rules! step {
                    ($keys:expr, $at:expr) => {{
                        let at: usize = $at;
                        let keys: [__m512h; MR] = $keys;
                        for h in 0..MR {
                            let q = load(query.add(h * padded + at));
                            for r in 0..MR {
                                sums[h * MR + r] = _mm512_fmadd_ph(q, keys[r], sums[h * MR + r]);
                            }
                        }
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
                let found = sum_accumulators(sums);
                let quarters = [
                    _mm512_extractf32x4_ps::<0>(found),
                    _mm512_extractf32x4_ps::<1>(found),
                    _mm512_extractf32x4_ps::<2>(found),
                    _mm512_extractf32x4_ps::<3>(found),
                ];
                for (r, quarter) in quarters.into_iter().enumerate().take(count - row) {
                    _mm_storeu_ps(scores.as_mut_ptr().add((row + r) * HEADS + head), quarter);
                }
            }
        }
    }
}

/// The sums of sixteen vectors: quarter i, number j is that of vector 4 j + i.
#[inline(always)]
unsafe fn sum_accumulators(v: [__m512h; 16]) -> __m512 {
    // SAFETY: register to register, with the tier's instructions.
    unsafe {
        macro_rules! fold {
            ($a:expr, $b:expr, $low:literal, $high:literal) => {{
                let (a, b) = (_mm512_castph_ps($a), _mm512_castph_ps($b));
                let low = _mm512_castps_ph(_mm512_shuffle_f32x4::<$low>(a, b));
                _mm512_add_ph(low, _mm512_castps_ph(_mm512_shuffle_f32x4::<$high>(a, b)))
            }};
        }
        // quarters: two of one vector and two of the next; then one of each of four
        macro_rules! four {
            ($i:expr) => {{
                let (ab, cd) = (fold!(v[$i], v[$i + 1], 0x44, 0xee), fold!(v[$i + 2], v[$i + 3], 0x44, 0xee));
                let abcd = _mm512_castph_si512(fold!(ab, cd, 0x88, 0xdd));
                // eight f16 of each in f32, as four sums
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
        // a c a c and b d b d, to be summed over their halves: a b c d
        let (low, high) = (_mm512_unpacklo_ps(ac, bd), _mm512_unpackhi_ps(ac, bd));
        _mm512_add_ps(low, high)
    }
}

/// Running softmax of each head, in powers of two.
pub(in crate::attention) struct RunningSoftmax {
    max: __m512,
    sum: __m512,
}

impl RunningSoftmax {
    /// Of nothing.
    ///
    /// # Safety
    /// With the tier's instructions.
    #[inline(always)]
    pub(in crate::attention) unsafe fn new() -> RunningSoftmax {
        // SAFETY: register to register.
        unsafe { RunningSoftmax { max: _mm512_set1_ps(f32::NEG_INFINITY), sum: _mm512_setzero_ps() } }
    }

    /// Joins a block's largest scores, and the sums of its weights relative to them. Returns what earlier sums and the block's are to be
    /// multiplied by, if `undo` is what turns the block's into plain ones.
    ///
    /// # Safety
    /// With the tier's instructions.
    #[inline(always)]
    pub(in crate::attention) unsafe fn update_running_max(
        &mut self,
        largest: __m512,
        total: __m512,
        undo: f32,
    ) -> ([f32; HEADS], [f32; HEADS]) {
        // SAFETY: sixteen numbers each.
        unsafe {
            let max = _mm512_max_ps(largest, self.max);
            // before the first block −∞ − max: 0
            let alpha = exp2(_mm512_sub_ps(self.max, max));
            let own = exp2(_mm512_sub_ps(largest, max));
            self.sum = _mm512_fmadd_ps(self.sum, alpha, _mm512_mul_ps(total, own));
            self.max = max;
            let (mut earlier, mut block) = ([0.0; HEADS], [0.0; HEADS]);
            _mm512_storeu_ps(earlier.as_mut_ptr(), alpha);
            _mm512_storeu_ps(block.as_mut_ptr(), _mm512_mul_ps(own, _mm512_set1_ps(undo)));
            (earlier, block)
        }
    }

    /// Writes the largest scores, as exponents of e, and the sums.
    ///
    /// # Safety
    /// With the tier's instructions.
    #[inline(always)]
    pub(in crate::attention) unsafe fn finish(&self, part: &mut PartialSoftmax<'_>, heads: usize) {
        let (mut max, mut sum) = ([0.0; HEADS], [0.0; HEADS]);
        // SAFETY: sixteen numbers each.
        unsafe {
            let natural = _mm512_mul_ps(self.max, _mm512_set1_ps(std::f32::consts::LN_2));
            _mm512_storeu_ps(max.as_mut_ptr(), natural);
            _mm512_storeu_ps(sum.as_mut_ptr(), self.sum);
        }
        part.max[..heads].copy_from_slice(&max[..heads]);
        part.sum[..heads].copy_from_slice(&sum[..heads]);
    }
}

/// Scores of a block, a line of heads a row, times `factors` become weights. Returns what earlier sums and the block's sums are to be
/// multiplied by.
///
/// # Safety
/// With the tier's instructions.
#[inline(always)]
unsafe fn softmax_block(
    scores: &mut [f32],
    factors: &[f32; HEADS],
    running: &mut RunningSoftmax,
    weights: &mut [u32],
) -> ([f32; HEADS], [f32; HEADS]) {
    // SAFETY: lines of sixteen numbers here and there.
    unsafe {
        let factors = _mm512_loadu_ps(factors.as_ptr());
        let mut largest = _mm512_set1_ps(f32::NEG_INFINITY);
        for line in scores.chunks_exact_mut(HEADS) {
            let scaled = _mm512_mul_ps(_mm512_loadu_ps(line.as_ptr()), factors);
            _mm512_storeu_ps(line.as_mut_ptr(), scaled);
            largest = _mm512_max_ps(scaled, largest);
        }
        let mut total = _mm512_setzero_ps();
        for (line, out) in scores.chunks_exact(HEADS).zip(weights.chunks_exact_mut(HEADS)) {
            let weight = exp2(_mm512_sub_ps(_mm512_loadu_ps(line.as_ptr()), largest));
            total = _mm512_add_ps(total, weight);
            let scaled = _mm512_mul_ps(weight, _mm512_set1_ps(MAX_WEIGHT));
            _mm512_storeu_si512(out.as_mut_ptr().cast(), splat_pairs_f16(scaled));
        }
        running.update_running_max(largest, total, 1.0 / MAX_WEIGHT)
    }
}
