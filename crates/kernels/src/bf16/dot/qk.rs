//! Scores of MLA decode by AVX512-BF16: a vector holds four heads × four pairs of terms, one head
//! per 128-bit quarter, and four pairs of a cached row are broadcast to all quarters.
//!
//! So 16 bytes of a row serve one product per vector of heads, and heads are padded to a multiple
//! of four only. With sixteen heads × one pair per vector, 16 heads took 107 instead of 95 ns per
//! cached row, and 20 heads 226 instead of 143 (Zen 5).
#![allow(unsafe_code, reason = "vector instructions over addresses that callers keep in bounds")]

use super::load_kv::{
    Bf16Kv, F16Kv, Fp8Kv, Int8Kv, KvFormat, Q4Kv, Q8Kv, ScaledFp8Kv, load_block, load_block_whole,
};
use super::vectors::{as_bf16, line};
use super::{CachedRows, K_STEP, KV_BLOCK, LANES, LoadedKv, defers_scale};
use crate::bf16::layout::{F32Matrix, below, pair};
use crate::bf16_layout::steps;
use crate::kv_cache::{CACHE_LINE, KvPrefetch};
use crate::simd::avx512::Avx512;
use half::bf16;
use latent_types::CacheType;
use std::arch::x86_64::*;
use std::hint::black_box;

/// Heads of a vector.
const FOUR: usize = 4;

/// Terms of each head in a vector.
const TERMS: usize = 8;

/// Tiling of `vectors` vectors of heads: rows per register tile, and passes over them. The
/// accumulators of a pass stay in registers. At least 12 accumulators hide the latency of a
/// product, if the model has enough heads.
fn tiling(vectors: usize) -> (usize, usize) {
    match vectors {
        4 | 5 => (4, 1),
        _ => (8, vectors.div_ceil(3)),
    }
}

fn pass_sizes(vectors: usize) -> impl Iterator<Item = usize> {
    let (_, passes) = tiling(vectors);
    (0..passes).map(move |pass| vectors / passes + usize::from(pass < vectors % passes))
}

crate::isa::isa_fn! { Avx512Bf16;
/// As [`Bf16Dot::pack_queries`](super::Bf16Dot::pack_queries). The order is that of reading: pass
/// by pass, and per eight terms the vectors of the pass.
///
/// # Safety
/// As there; the CPU has AVX512-BF16.
pub(super) unsafe fn pack_queries(queries: F32Matrix, factor: f32, to: *mut bf16) {
    let steps = steps(queries.cols);
    let (mut to, mut first) = (to, 0);
    for vectors in pass_sizes(queries.rows.div_ceil(FOUR)) {
        let distance = vectors * FOUR * TERMS;
        for head in 0..vectors * FOUR {
            let cols = if first + head < queries.rows { queries.cols } else { 0 };
            // SAFETY: `to` has room for whole vectors of heads and k-steps by this function's
            // contract; masked lanes are not read.
            unsafe {
                let mut row = queries.start.wrapping_add((first + head) * queries.stride);
                let mut out = to.add(head * TERMS);
                let factor = _mm512_set1_ps(factor);
                for step in 0..steps {
                    let left = cols.saturating_sub(step * K_STEP);
                    let (low, high) = if left >= K_STEP {
                        (_mm512_loadu_ps(row), _mm512_loadu_ps(row.add(16)))
                    } else {
                        let high = below(left.saturating_sub(16));
                        let high = _mm512_maskz_loadu_ps(high, row.wrapping_add(16));
                        (_mm512_maskz_loadu_ps(below(left), row), high)
                    };
                    let step = pair(_mm512_mul_ps(low, factor), _mm512_mul_ps(high, factor));
                    _mm_storeu_si128(out.cast(), _mm512_extracti32x4_epi32::<0>(step));
                    _mm_storeu_si128(out.add(distance).cast(), _mm512_extracti32x4_epi32::<1>(step));
                    _mm_storeu_si128(out.add(2 * distance).cast(), _mm512_extracti32x4_epi32::<2>(step));
                    _mm_storeu_si128(out.add(3 * distance).cast(), _mm512_extracti32x4_epi32::<3>(step));
                    (row, out) = (row.wrapping_add(K_STEP), out.wrapping_add(K_STEP / TERMS * distance));
                }
            }
        }
        first += vectors * FOUR;
        to = to.wrapping_add(vectors * FOUR * steps * K_STEP);
    }
}
}

crate::isa::isa_fn! { Avx512Bf16;
/// As [`Bf16Dot::qk`](super::Bf16Dot::qk).
pub(super) unsafe fn qk(
    block: &CachedRows,
    loaded: LoadedKv,
    right: (*const bf16, usize),
    ahead: &mut KvPrefetch,
    to: *mut f32,
) {
    let qk = BlockScores { block, loaded, right };
    // SAFETY: the block's rows are of the type that is matched on, by this function's contract.
    unsafe {
        match block.stored.ty {
            CacheType::F16 => qk.begin::<F16Kv>(ahead, to),
            CacheType::Bf16 => qk.begin::<Bf16Kv>(ahead, to),
            CacheType::Int8 => qk.begin::<Int8Kv>(ahead, to),
            CacheType::Q8_0 => qk.begin::<Q8Kv>(ahead, to),
            CacheType::Q4_0 => qk.begin::<Q4Kv>(ahead, to),
            CacheType::Fp8 if defers_scale(&block.stored) => qk.begin::<Fp8Kv>(ahead, to),
            CacheType::Fp8 => qk.begin::<ScaledFp8Kv>(ahead, to),
            // Excluded by `Bf16Dot::reads`.
            CacheType::F32 => {}
        }
    }
}
}

struct BlockScores<'a> {
    block: &'a CachedRows,
    loaded: LoadedKv,
    /// Packed queries, and their heads.
    right: (*const bf16, usize),
}

/// Rows to load while others are multiplied.
struct NextKvRows {
    /// Index of the first row.
    row: usize,
    loaded: LoadedKv,
    /// K-steps to load.
    steps: usize,
    /// Whether to prefetch the rows after them.
    prefetch: bool,
}

// No closures here: one that is not inlined is compiled without the target features of the caller.
impl BlockScores<'_> {
    /// # Safety
    /// As for [`qk`].
    #[inline(always)]
    unsafe fn begin<N: KvFormat>(&self, ahead: &mut KvPrefetch, to: *mut f32) {
        // SAFETY: this function's contract; there is room for the scales of a block.
        unsafe {
            if N::DEFERS_SCALE {
                // Padding rows get 1: their scores must stay finite.
                for row in 0..KV_BLOCK {
                    *self.loaded.scales.add(row) =
                        if row < self.block.count { self.block.scale(row) } else { 1.0 };
                }
            }
            if tiling(self.right.1.div_ceil(FOUR)).0 == 4 {
                self.run::<N, 4>(ahead, to);
            } else {
                self.run::<N, 8>(ahead, to);
            }
        }
    }

    /// Scores `R` rows at a time, so that they and the queries stay in L1. The next rows are loaded
    /// meanwhile, k-step by k-step: rounding and interleaving use execution ports that the products
    /// leave idle.
    // Three passes over 64 rows, through L2, took 291 instead of 116 ns per cached row (Zen 5).
    // measured: docs/notes/attention-kernels.md "Attention kernels"
    ///
    /// # Safety
    /// As for [`qk`].
    #[inline(always)]
    unsafe fn run<N: KvFormat, const R: usize>(&self, ahead: &mut KvPrefetch, to: *mut f32) {
        let count = self.block.count;
        let steps = steps(self.block.stored.width());
        let vectors = self.right.1.div_ceil(FOUR);
        // SAFETY: rows below the block's padded count, k-steps below `steps`, and vectors of heads
        // below those packed.
        unsafe {
            self.load_remaining::<N, R>(0, steps, 0);
            for first in (0..count).step_by(R) {
                let row = first + R;
                let whole = if row + R <= count { N::whole_steps(&self.block.stored) } else { 0 };
                let mut next = NextKvRows {
                    row,
                    loaded: self.row_buffer::<R>(row, steps),
                    steps: whole,
                    prefetch: true,
                };
                let left = self.row_buffer::<R>(first, steps).rows.cast_const();
                let (mut right, mut vector) = (self.right.0, 0);
                for vectors in pass_sizes(vectors) {
                    let to = to.add(first * LANES);
                    let factors = (left, right);
                    match (R, vectors) {
                        (4, 4) => self.pass::<N, R, 4>(factors, steps, &next, ahead, (to, vector)),
                        (4, _) => self.pass::<N, R, 5>(factors, steps, &next, ahead, (to, vector)),
                        (_, 1) => self.pass::<N, R, 1>(factors, steps, &next, ahead, (to, vector)),
                        (_, 2) => self.pass::<N, R, 2>(factors, steps, &next, ahead, (to, vector)),
                        _ => self.pass::<N, R, 3>(factors, steps, &next, ahead, (to, vector)),
                    }
                    (next.steps, next.prefetch) = (0, false);
                    vector += vectors;
                    right = right.add(vectors * FOUR * steps * K_STEP);
                }
                self.load_remaining::<N, R>(row, steps, whole);
            }
            // `pv` multiplies whole k-steps of 32 rows, so padding rows are stored too, as zeros.
            // The loop above has loaded the first `R` rows after the last.
            for first in (count.next_multiple_of(R)..count.next_multiple_of(K_STEP)).step_by(R).skip(1) {
                self.load_remaining::<N, R>(first, steps, 0);
            }
        }
    }

    /// The buffer of `R` rows: one of two, so that the next rows do not overwrite the current ones.
    #[inline(always)]
    fn row_buffer<const R: usize>(&self, row: usize, steps: usize) -> LoadedKv {
        let rows = self.loaded.rows.wrapping_add(row / R % 2 * R * steps * K_STEP);
        LoadedKv { rows, ..self.loaded }
    }

    /// Loads the k-steps that were not loaded during products, of rows up to a multiple of 32.
    ///
    /// # Safety
    /// As for [`qk`].
    #[inline(always)]
    unsafe fn load_remaining<N: KvFormat, const R: usize>(&self, first: usize, steps: usize, done: usize) {
        if first < self.block.count.next_multiple_of(K_STEP) {
            for step in done..steps {
                // SAFETY: rows below the block's padded count, and k-steps of their width.
                unsafe {
                    load_block::<N, R>(self.block, first, self.row_buffer::<R>(first, steps), step);
                }
            }
        }
    }

    /// Scores of `R` rows and of `V` vectors of heads.
    ///
    /// # Safety
    /// As for [`qk`].
    #[inline(always)]
    unsafe fn pass<N: KvFormat, const R: usize, const V: usize>(
        &self,
        (mut left, mut right): (*const bf16, *const bf16),
        steps: usize,
        next: &NextKvRows,
        ahead: &mut KvPrefetch,
        (to, vector): (*mut f32, usize),
    ) {
        // A trip count that the compiler cannot deduce. It would unroll the loop, load the pairs of
        // a whole k-step first and spill them (150 instead of 106 ns per cached row).
        // measured: docs/notes/attention-kernels.md "Attention kernels"
        let length = black_box(K_STEP);
        // SAFETY: `R` rows of `steps` k-steps at `left`, as many packed vectors at `right`, and
        // rows of scores at `to`, as `run` passes them; the rows are those before the next.
        unsafe {
            let mut acc = [[_mm512_setzero_ps(); V]; R];
            for step in 0..steps {
                for term in (0..length).step_by(TERMS) {
                    let mut lines = [as_bf16(_mm512_setzero_si512()); V];
                    for (v, vector) in lines.iter_mut().enumerate() {
                        *vector = line(right.add(v * K_STEP));
                    }
                    right = right.add(V * K_STEP);
                    for (i, acc) in acc.iter_mut().enumerate() {
                        let pairs = _mm_loadu_si128(left.add(i * K_STEP + term).cast());
                        let pairs = as_bf16(_mm512_broadcast_i32x4(pairs));
                        for (lane_acc, line) in acc.iter_mut().zip(lines) {
                            *lane_acc = _mm512_dpbf16_ps(*lane_acc, pairs, line);
                        }
                    }
                }
                // After the last k-step of the content and before the RoPE part, which has no
                // scale.
                if N::DEFERS_SCALE && (step + 1) * K_STEP == self.block.stored.content {
                    let scales = self.loaded.scales.add(next.row - R);
                    for (i, acc) in acc.iter_mut().enumerate() {
                        let scale = _mm512_set1_ps(*scales.add(i));
                        for lane_acc in acc {
                            *lane_acc = _mm512_mul_ps(*lane_acc, scale);
                        }
                    }
                }
                if step < next.steps {
                    load_block_whole::<N, R>(self.block, next.row, next.loaded, step);
                }
                if next.prefetch {
                    // Half of the bytes of the next rows; `pv` prefetches the other half.
                    ahead.prefetch_all::<Avx512>(R * N::BYTES / CACHE_LINE / 2);
                }
                left = left.add(R * K_STEP);
            }
            for v in 0..V {
                let (lanes, lane) = ((vector + v) / FOUR, (vector + v) % FOUR * FOUR);
                for row in (0..R).step_by(4) {
                    let to = to.add((lanes * KV_BLOCK + row) * LANES + lane);
                    store_four_rows([acc[row][v], acc[row + 1][v], acc[row + 2][v], acc[row + 3][v]], to);
                }
            }
        }
    }
}

/// Reduces the quarters of four rows' accumulators, one head each, and writes the heads of each
/// row.
///
/// # Safety
/// Four rows of [`LANES`] elements are at `to`; the CPU has AVX-512.
#[inline(always)]
unsafe fn store_four_rows([a, b, c, d]: [__m512; 4], to: *mut f32) {
    // SAFETY: four elements of each of four rows.
    unsafe {
        let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        // One head per quarter, with its four rows.
        let by_head = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xee>(ab, cd));
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let by_row = _mm512_permutexvar_ps(order, by_head);
        _mm_storeu_ps(to, _mm512_extractf32x4_ps::<0>(by_row));
        _mm_storeu_ps(to.add(LANES), _mm512_extractf32x4_ps::<1>(by_row));
        _mm_storeu_ps(to.add(2 * LANES), _mm512_extractf32x4_ps::<2>(by_row));
        _mm_storeu_ps(to.add(3 * LANES), _mm512_extractf32x4_ps::<3>(by_row));
    }
}
