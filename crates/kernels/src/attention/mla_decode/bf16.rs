//! MLA decode in bf16, by AMX tiles or AVX512-BF16.
//!
//! Cached rows are left factors and queries right factors, so that scores have sixteen heads as the
//! lanes of vectors. For the weighted sum, weights are transposed, so that 32 cached rows of a head
//! are a line, and cached rows are interleaved in pairs (VNNI), once for all heads.
//!
//! Queries and weights are rounded to bf16 (2⁻⁹ of each), as are cached rows of other types. Sums
//! are f32.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::driver::{self, DecodeKernel, KvBlock};
use crate::attention::args::{AttendArgs, HEADS};
use crate::attention::scratch;
use crate::attention::softmax::bf16::{MASKED, ScoreRows, SoftmaxWeights, softmax_block};
use crate::attention::split_kv::PartialSoftmax;
use crate::bf16::dot::{
    Bf16Dot, CachedRows, KV_BLOCK, LoadedKv, TILE_ACC_LEN, TILE_LEN, defers_scale, queries_len,
};
use crate::bf16::layout::{F32Matrix, aligned, below, transpose};
use crate::bf16_layout::K_STEP;
use crate::kv_cache::KvPrefetch;
use half::bf16;
use latent_types::CacheRow;
use std::arch::x86_64::*;

/// Columns whose sums are in registers at a time: those of four tiles.
const COLUMNS: usize = 64;

/// As [`AttendFn`](crate::AttendFn), for any number of heads, over a cache that `D` reads.
///
/// # Panics
/// When shapes differ, the cache holds another type, or the CPU lacks the instructions of `D`.
pub(in crate::attention) fn attend<D: Bf16Dot>(
    args: &AttendArgs<'_>,
    part: &mut PartialSoftmax<'_>,
    memory: &mut Vec<f32>,
) {
    args.check(part);
    let (heads, cache, stored) = (args.q.rows(), args.cache, args.row());
    assert!(D::reads(cache.ty()) && cache.row_bytes() == stored.bytes(), "a cache of {}", cache.ty());
    let mut kernel = Bf16Decode::<D>::new(args, stored, memory);
    // SAFETY: a `D` exists only where the CPU has its instructions; the kernel was made for this
    // cache, whose type `D` reads.
    unsafe { driver::run(&mut kernel, cache, args.rows.clone()) }
    let Bf16Decode { dot, max, sum, sums, columns, .. } = kernel;
    drop(dot);
    for head in 0..heads {
        let sums = &sums[head / HEADS * HEADS * columns..][..HEADS * columns];
        // SAFETY: the CPU has the instructions of `D`, AVX-512 among them; a group of sixteen heads
        // has `columns` sums each.
        unsafe { unpermute(sums, head % HEADS, part.o.row_mut(head)) }
        part.max[head] = max[head] * std::f32::consts::LN_2;
        part.sum[head] = sum[head];
    }
}

struct Bf16Decode<'a, D> {
    dot: D,
    stored: CacheRow,
    heads: usize,
    /// Elements of a latent, padded to whole [`COLUMNS`].
    columns: usize,
    /// Queries, packed by `dot`.
    queries: *mut bf16,
    /// The block's rows as bf16.
    loaded: LoadedKv,
    /// Per sixteen heads a block of rows.
    scores: &'a mut [f32],
    /// Per sixteen heads a tile per 32 rows of the block.
    weights: *mut bf16,
    /// Running max of each head.
    max: &'a mut [f32],
    /// Running sum of each head.
    sum: &'a mut [f32],
    /// Weighted sums: per sixteen heads four tiles per 64 columns.
    sums: &'a mut [f32],
}

impl<'a, D: Bf16Dot> Bf16Decode<'a, D> {
    fn new(args: &AttendArgs<'_>, stored: CacheRow, memory: &'a mut Vec<f32>) -> Bf16Decode<'a, D> {
        let (heads, width, latent) = (args.q.rows(), stored.width(), args.latent);
        let (columns, groups) = (latent.next_multiple_of(COLUMNS), heads.div_ceil(HEADS));
        let lengths = [
            queries_len(heads, width) / 2,
            KV_BLOCK * width.next_multiple_of(K_STEP) / 2,
            groups * KV_BLOCK * HEADS,
            groups * KV_BLOCK * HEADS / 2,
            KV_BLOCK * columns / 2,
            groups * HEADS,
            groups * HEADS,
            groups * HEADS * columns,
            KV_BLOCK,
        ];
        let memory = aligned(memory, lengths.iter().sum());
        let [queries, rows, scores, weights, pairs, max, sum, sums, scales] = scratch::cut(memory, lengths);
        max.fill(MASKED);
        sum.fill(0.0);
        sums.fill(0.0);
        if !heads.is_multiple_of(HEADS) {
            // Lanes of missing heads are computed too, and must hold finite scores.
            scores[(groups - 1) * KV_BLOCK * HEADS..].fill(0.0);
        }
        if columns > latent {
            // Padding columns must hold finite values: bit patterns left in scratch may be NaN.
            pairs.fill(0.0);
        }
        let [queries, rows, weights, pairs] =
            [queries, rows, weights, pairs].map(|part| part.as_mut_ptr().cast::<bf16>());
        let loaded = LoadedKv { rows, pairs, latent, scales: scales.as_mut_ptr() };
        let mut dot = D::new();
        let (start, stride) = args.q.raw();
        let content = F32Matrix { start, stride, rows: heads, cols: width };
        // The factor log₂ e makes scores exponents of 2.
        // SAFETY: `heads` rows of `width` elements, and room for `queries_len`.
        unsafe { dot.pack_queries(content, args.scale * std::f32::consts::LOG2_E, queries) }
        Bf16Decode { dot, stored, heads, columns, queries, loaded, scores, weights, max, sum, sums }
    }
}

impl<D: Bf16Dot> DecodeKernel for Bf16Decode<'_, D> {
    const KV_BLOCK: usize = KV_BLOCK;

    // Without `load`: the dot product loads rows while it scores others.
    #[inline(always)]
    unsafe fn qk(&mut self, block: &KvBlock<'_>, prefetch: &mut KvPrefetch) {
        let (start, stride, count) = (block.address(), block.stride(), block.count);
        let block = CachedRows { start, stored: self.stored, stride, count };
        let queries = (self.queries.cast_const(), self.heads);
        // SAFETY: the block's rows are contiguous, of a type that `D` reads; scratch has room for a
        // block.
        unsafe { self.dot.qk(&block, self.loaded, queries, prefetch, self.scores.as_mut_ptr()) }
    }

    #[inline(always)]
    unsafe fn softmax(&mut self, block: &KvBlock<'_>) {
        let steps = block.count.div_ceil(K_STEP);
        for (group, scores) in self.scores.chunks_exact_mut(KV_BLOCK * HEADS).enumerate() {
            let lanes = group * HEADS..(group + 1) * HEADS;
            let weights = self.weights.wrapping_add(group * steps * TILE_LEN);
            let (max, sum) = (&mut self.max[lanes.clone()], &mut self.sum[lanes]);
            // Padding rows of the last k-step get the weight 0.
            scores[block.count * HEADS..].fill(MASKED);
            let scales = defers_scale(&self.stored).then_some(self.loaded.scales.cast_const());
            let rows = ScoreRows { start: scores.as_ptr(), stride: HEADS, count: steps * K_STEP, scales };
            // SAFETY: the CPU has the instructions of `D`, AVX512-BF16 among them; a block of
            // scores has at least `steps` · 32 rows, and `weights` has a tile per step for each
            // group.
            unsafe {
                let factors =
                    softmax_block(&rows, max, sum, SoftmaxWeights { start: weights, step: TILE_LEN });
                for tile in 0..steps {
                    transpose_weights(weights.add(tile * TILE_LEN));
                }
                if !block.is_first {
                    rescale(&mut self.sums[group * HEADS * self.columns..][..HEADS * self.columns], &factors);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn pv(&mut self, block: &KvBlock<'_>, prefetch: &mut KvPrefetch) {
        let weights = (self.weights.cast_const(), self.heads, block.count.div_ceil(K_STEP));
        let values = (self.loaded.pairs.cast_const(), self.columns / COLUMNS);
        // SAFETY: `qk` has loaded the block's rows in pairs and `softmax` has made a tile of
        // weights per step; `sums` has four tiles per 64 columns for each sixteen heads.
        unsafe { self.dot.pv(weights, values, prefetch, self.sums.as_mut_ptr()) }
    }
}

crate::isa::isa_fn! { Avx512;
/// Transposes a tile of weights: from lines of sixteen heads, two cached rows each, to a line of 32
/// rows per head.
///
/// # Safety
/// `tile` is the address of a tile; the CPU has AVX-512.
unsafe fn transpose_weights(tile: *mut bf16) {
    // SAFETY: sixteen lines of the tile.
    unsafe {
        let mut lines = [_mm512_setzero_si512(); 16];
        for (i, line) in lines.iter_mut().enumerate() {
            *line = _mm512_loadu_si512(tile.add(i * K_STEP).cast());
        }
        for (i, line) in transpose(lines).into_iter().enumerate() {
            _mm512_storeu_si512(tile.add(i * K_STEP).cast(), line);
        }
    }
}
}

crate::isa::isa_fn! { Avx512;
/// Multiplies the sums of each head, a line of sixteen columns in each tile, by its factor.
///
/// # Safety
/// The CPU has AVX-512.
unsafe fn rescale(sums: &mut [f32], factors: &[f32; HEADS]) {
    if *factors == [1.0; HEADS] {
        return;
    }
    for tile in sums.chunks_exact_mut(TILE_ACC_LEN) {
        for (line, factor) in tile.chunks_exact_mut(16).zip(factors) {
            // SAFETY: sixteen elements of the line.
            unsafe {
                let scaled = _mm512_mul_ps(_mm512_loadu_ps(line.as_ptr()), _mm512_set1_ps(*factor));
                _mm512_storeu_ps(line.as_mut_ptr(), scaled);
            }
        }
    }
}
}

/// Lanes of the lines of two tiles that are 32 columns in order: see [`LoadedKv::pairs`].
static ORDER: [[i32; 16]; 2] = {
    let mut order = [[0; 16]; 2];
    let mut column = 0;
    while column < 32 {
        // Eight columns are in the same quarter of both tiles: four in the first tile, four in the
        // second.
        let lane = column / 8 * 4 + column % 4;
        order[column / 16][column % 16] = (lane + column % 8 / 4 * 16) as i32;
        column += 1;
    }
    order
};

crate::isa::isa_fn! { Avx512;
/// Copies the sums of a head to `out`, its columns in order.
///
/// # Safety
/// The CPU has AVX-512.
unsafe fn unpermute(sums: &[f32], head: usize, out: &mut [f32]) {
    for (tiles, out) in sums.chunks_exact(2 * TILE_ACC_LEN).zip(out.chunks_mut(32)) {
        // SAFETY: a line of each of two tiles; the mask has the elements of `out`.
        unsafe {
            let low = _mm512_loadu_ps(tiles[head * 16..].as_ptr());
            let high = _mm512_loadu_ps(tiles[TILE_ACC_LEN + head * 16..].as_ptr());
            for (order, out) in ORDER.iter().zip(out.chunks_mut(16)) {
                let order = _mm512_loadu_si512(order.as_ptr().cast());
                let line = _mm512_permutex2var_ps(low, order, high);
                _mm512_mask_storeu_ps(out.as_mut_ptr(), below(out.len()), line);
            }
        }
    }
}
}
