//! Attention in latent space over a cache of bf16, on tiles.
//!
//! Cached rows are left factors and queries right ones, so that scores have sixteen heads as the lanes of vectors. For the weighted sum weights
//! are turned, so that 32 cached rows of a head are a line, and cached rows are interleaved in pairs, once for all heads.
//!
//! Queries and weights are rounded to bf16 (2⁻⁹ of each), cached rows are not, and sums are f32.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::dot::{Bf16Dot, Block, KV_BLOCK, LoadedKv, PrefetchQueue, TILE_ACC_LEN, TILE_LEN, queries_len};
use super::layout::{Matrix, aligned, below, transpose};
use super::softmax::{MASKED, softmax_block};
use crate::Rows;
use crate::attention::bf16_layout::K_STEP;
use crate::attention::mla_decode::{HEADS, check_shapes};
use crate::attention::{CacheView, PartialSoftmax};
use half::bf16;
use latent_types::CacheRow;
use std::arch::x86_64::*;
use std::ops::Range;

/// Columns whose sums the unit holds at a time: of four tiles.
const COLUMNS: usize = 64;

/// Memory of a call.
struct Parts<'a> {
    /// Queries as the unit lays them.
    queries: *mut bf16,
    /// A block of cached rows.
    loaded: LoadedKv,
    /// Of each sixteen heads a block of rows.
    scores: &'a mut [f32],
    /// Of each sixteen heads a tile for each 32 rows of a block.
    weights: *mut bf16,
    /// Largest score of each head so far.
    max: &'a mut [f32],
    /// Sum of its weights.
    sum: &'a mut [f32],
    /// Weighted rows: of each sixteen heads four tiles for each 64 columns.
    sums: &'a mut [f32],
}

impl<'a> Parts<'a> {
    fn new(memory: &'a mut Vec<f32>, heads: usize, width: usize, latent: usize) -> Parts<'a> {
        let (columns, groups) = (latent.next_multiple_of(COLUMNS), heads.div_ceil(HEADS));
        let sizes = [
            queries_len(heads, width) / 2,
            KV_BLOCK * width.next_multiple_of(K_STEP) / 2,
            groups * KV_BLOCK * HEADS,
            groups * KV_BLOCK * HEADS / 2,
            KV_BLOCK * columns / 2,
            groups * HEADS,
            groups * HEADS,
            groups * HEADS * columns,
        ];
        let mut rest = aligned(memory, sizes.iter().sum());
        let [queries, rows, scores, weights, pairs, max, sum, sums] = sizes.map(|size| {
            let part;
            (part, rest) = std::mem::take(&mut rest).split_at_mut(size);
            part
        });
        max.fill(MASKED);
        sum.fill(0.0);
        sums.fill(0.0);
        if !heads.is_multiple_of(HEADS) {
            // scores of heads that are not there must be numbers
            scores[(groups - 1) * KV_BLOCK * HEADS..].fill(0.0);
        }
        if columns > latent {
            // and so must be what is multiplied beyond the last column
            pairs.fill(0.0);
        }
        let [queries, rows, weights, pairs] =
            [queries, rows, weights, pairs].map(|part| part.as_mut_ptr().cast::<bf16>());
        Parts { queries, loaded: LoadedKv { rows, pairs, latent }, scores, weights, max, sum, sums }
    }
}

/// As [`AttendFn`](crate::AttendFn), over a cache that the unit reads.
///
/// # Panics
/// When shapes differ, the cache holds another type, or the processor has no such unit.
pub(super) fn attend<U: Bf16Dot>(
    q: Rows<'_>,
    cache: &CacheView<'_>,
    rows: Range<usize>,
    scale: f32,
    latent: usize,
    part: &mut PartialSoftmax<'_>,
    memory: &mut Vec<f32>,
) {
    let (heads, width) = (q.rows(), cache.width());
    check_shapes(&q, width, latent, part);
    let stored = CacheRow { ty: cache.ty(), content: latent, rope: width - latent };
    assert!(U::reads(cache.ty()) && cache.row_bytes() == stored.bytes(), "a cache of {}", cache.ty());
    let columns = latent.next_multiple_of(COLUMNS);
    let Parts { queries, loaded, scores, weights, max, sum, sums } = Parts::new(memory, heads, width, latent);
    let (start, stride) = q.raw();
    let content = Matrix { start, stride, rows: heads, cols: width };
    let mut dot = U::new();
    // SAFETY: `heads` rows of `width` numbers; room for as many steps. Scores are then exponents of 2.
    unsafe { dot.pack_queries(content, scale * std::f32::consts::LOG2_E, queries) }
    let mut from = rows.start;
    while from < rows.end {
        let (count, next) = cache.together(from, rows.end, KV_BLOCK);
        let start = cache.row(from).as_ptr();
        let block = Block { start, stored, count };
        let steps = count.div_ceil(K_STEP);
        let mut ahead = PrefetchQueue::new(next, count * cache.row_bytes());
        // SAFETY: the rows lie there, as just looked up; scratch has room for a block; a machine with the unit has the instructions.
        unsafe {
            dot.qk(&block, loaded, (queries, heads), &mut ahead, scores.as_mut_ptr());
            for (group, scores) in scores.chunks_exact_mut(KV_BLOCK * HEADS).enumerate() {
                let lanes = group * HEADS..(group + 1) * HEADS;
                let weights = weights.add(group * steps * TILE_LEN);
                let (max, sum) = (&mut max[lanes.clone()], &mut sum[lanes]);
                scores[count * HEADS..].fill(MASKED);
                let factors =
                    softmax_block(scores.as_ptr(), HEADS, steps * K_STEP, max, sum, weights, TILE_LEN);
                for tile in 0..steps {
                    transpose_weights(weights.add(tile * TILE_LEN));
                }
                if from > rows.start {
                    rescale(&mut sums[group * HEADS * columns..][..HEADS * columns], &factors);
                }
            }
            dot.pv(weights, (heads, steps), loaded.pairs, columns / COLUMNS, &mut ahead, sums.as_mut_ptr());
        }
        from += count;
    }
    drop(dot);
    for head in 0..heads {
        let sums = &sums[head / HEADS * HEADS * columns..][..HEADS * columns];
        // SAFETY: a machine with the unit has the instructions.
        unsafe { unpermute(sums, head % HEADS, part.o.row_mut(head)) }
        part.max[head] = max[head] * std::f32::consts::LN_2;
        part.sum[head] = sum[head];
    }
}

crate::isa::isa_fn! { Avx512;
/// Weights of 32 cached rows, two in a line of sixteen heads, become a line for each head.
///
/// # Safety
/// A tile lies there; the processor has AVX-512.
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
/// Multiplies the sums of each head, a line of sixteen columns in each tile.
///
/// # Safety
/// The processor has AVX-512.
unsafe fn rescale(sums: &mut [f32], factors: &[f32; HEADS]) {
    if *factors == [1.0; HEADS] {
        return;
    }
    for tile in sums.chunks_exact_mut(TILE_ACC_LEN) {
        for (line, factor) in tile.chunks_exact_mut(16).zip(factors) {
            // SAFETY: sixteen numbers.
            unsafe {
                let scaled = _mm512_mul_ps(_mm512_loadu_ps(line.as_ptr()), _mm512_set1_ps(*factor));
                _mm512_storeu_ps(line.as_mut_ptr(), scaled);
            }
        }
    }
}
}

/// Which lanes of two tiles' lines are 32 columns in order.
static ORDER: [[i32; 16]; 2] = {
    let mut order = [[0; 16]; 2];
    let mut column = 0;
    while column < 32 {
        // quarters of eight columns: four of the first tile, four of the second
        let lane = column / 8 * 4 + column % 4;
        order[column / 16][column % 16] = (lane + column % 8 / 4 * 16) as i32;
        column += 1;
    }
    order
};

crate::isa::isa_fn! { Avx512;
/// The sums of a head, column by column.
///
/// # Safety
/// The processor has AVX-512.
unsafe fn unpermute(sums: &[f32], head: usize, out: &mut [f32]) {
    for (tiles, out) in sums.chunks_exact(2 * TILE_ACC_LEN).zip(out.chunks_mut(32)) {
        // SAFETY: a line of each of two tiles; lanes below the masks are there.
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
