//! Attention in latent space over a cache of bf16, on tiles.
//!
//! Sixteen cached rows are a tile of left factors as they lie, and queries the right factor, so that scores have heads as the lanes of vectors. For
//! the weighted sum weights are turned, so that 32 cached rows of a head are a line, and cached rows are interleaved in pairs, once for all
//! heads.
//!
//! Queries and weights are rounded to bf16 (2⁻⁹ of each), cached rows are not, and sums are f32.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::panels::{Matrix, aligned, below, right_panel, turn};
use super::softmax::{UNSEEN, weigh};
use super::unit::{ROWS, Unit};
use crate::Rows;
use crate::attention::latent::{HEADS, check};
use crate::attention::panels::{STEP, STEP_NUMBERS, steps};
use crate::attention::{CacheView, Partials};
use base::CacheType;
use half::bf16;
use std::arch::x86_64::*;
use std::ops::Range;

/// Cached rows of a block: those of a page, which lie one after the other.
pub(super) const BLOCK: usize = 64;

/// Numbers of bf16 of a tile.
const TILE: usize = ROWS * STEP;

/// Numbers of f32 of a tile.
const SUMS: usize = ROWS * HEADS;

/// Columns whose sums the unit holds at a time: of four tiles.
const COLUMNS: usize = 64;

/// As [`AttendFn`](crate::AttendFn), over a cache of bf16.
///
/// # Panics
/// When shapes differ, the cache holds another type, or there are no tiles.
pub(super) fn attend(
    q: Rows<'_>,
    cache: &CacheView<'_>,
    rows: Range<usize>,
    scale: f32,
    latent: usize,
    part: &mut Partials<'_>,
    memory: &mut Vec<f32>,
) {
    let (heads, width) = (q.rows(), cache.width);
    check(&q, width, latent, part);
    assert!(cache.ty == CacheType::Bf16 && cache.row_bytes == 2 * width, "a cache of bf16");
    let (steps, columns) = (steps(width), latent.next_multiple_of(COLUMNS));
    let sizes = [
        steps * STEP_NUMBERS / 2,
        BLOCK * steps * STEP / 2,
        BLOCK * HEADS,
        BLOCK * HEADS / 2,
        BLOCK * columns / 2,
        HEADS * columns,
    ];
    let memory = aligned(memory, sizes.iter().sum());
    let (queries, rest) = memory.split_at_mut(sizes[0]);
    let (copied, rest) = rest.split_at_mut(sizes[1]);
    let (scores, rest) = rest.split_at_mut(sizes[2]);
    let (weights, rest) = rest.split_at_mut(sizes[3]);
    let (pairs, sums) = rest.split_at_mut(sizes[4]);
    sums.fill(0.0);
    if columns > latent {
        // what is multiplied beyond the last column must be numbers
        pairs.fill(0.0);
    }
    let [queries, copied, weights, pairs] =
        [queries, copied, weights, pairs].map(|part| part.as_mut_ptr().cast::<bf16>());
    let (start, stride) = q.raw();
    let content = Matrix { start, stride, rows: heads, cols: width };
    // scores are then exponents of 2
    let factors = [scale * std::f32::consts::LOG2_E; HEADS];
    let mut unit = Unit::configured();
    // SAFETY: `heads` rows of `width` numbers; room for as many steps; a machine with tiles has the instructions.
    unsafe { right_panel(content, &factors, queries) };
    let (mut max, mut sum) = ([UNSEEN; HEADS], [0.0; HEADS]);
    let mut from = rows.start;
    while from < rows.end {
        let (count, next) = cache.together(from, rows.end, BLOCK);
        let lying = cache.row(from).as_ptr();
        debug_assert_eq!(cache.row(from + count - 1).as_ptr(), lying.wrapping_add((count - 1) * 2 * width));
        let block = Block { lying: lying.cast(), width, count };
        let taken = count.div_ceil(STEP);
        // SAFETY: the rows lie there, as just looked up; scratch has room for a block; a machine with tiles has the instructions.
        unsafe {
            let (left, distance) = block.left(steps, copied);
            unit.scores(left, distance, queries, steps, scores.as_mut_ptr());
            scores[count * HEADS..].fill(UNSEEN);
            let factors = weigh(scores.as_ptr(), HEADS, taken * STEP, &mut max, &mut sum, weights, TILE);
            for tile in 0..taken {
                turn_weights(weights.add(tile * TILE));
            }
            block.interleave(latent, taken, pairs, next);
            rescale(sums, &factors);
            unit.sum_up(weights, taken, pairs, columns / COLUMNS, sums.as_mut_ptr());
        }
        from += count;
    }
    drop(unit);
    for head in 0..heads {
        // SAFETY: a machine with tiles has the instructions.
        unsafe { put_in_order(sums, head, part.o.row_mut(head)) }
        part.max[head] = max[head] * std::f32::consts::LN_2;
        part.sum[head] = sum[head];
    }
}

/// Cached rows that lie one after the other.
struct Block {
    lying: *const bf16,
    /// Numbers of a row.
    width: usize,
    count: usize,
}

impl Block {
    /// Addresses of four times sixteen rows of whole steps, and the bytes between rows: where they lie, or, where rows or numbers of a row are
    /// missing, in `copied`, filled up with zeros.
    ///
    /// # Safety
    /// The rows lie there, and `copied` has room for a block of whole steps.
    unsafe fn left(&self, steps: usize, copied: *mut bf16) -> ([*const bf16; BLOCK / ROWS], usize) {
        let line = steps * STEP;
        let whole = if line == self.width { self.count / ROWS } else { 0 };
        // SAFETY: the caller's promise.
        unsafe {
            for row in whole * ROWS..self.count.next_multiple_of(ROWS) {
                let out = copied.add(row * line);
                let numbers = if row < self.count { self.width } else { 0 };
                self.lying.wrapping_add(row * self.width).copy_to_nonoverlapping(out, numbers);
                out.add(numbers).write_bytes(0, line - numbers);
            }
        }
        let tile = |tile: usize| {
            // tiles beyond the last are computed for nothing, from one that is there
            let tile = tile.min(self.count.div_ceil(ROWS) - 1);
            let from = if tile < whole { self.lying } else { copied.cast_const() };
            from.wrapping_add(tile * ROWS * line)
        };
        (std::array::from_fn(tile), line * size_of::<bf16>())
    }

    /// The first `latent` numbers of the rows as right factors: for each 64 columns and each of `taken` times 32 rows four tiles, two rows a line.
    /// Of 32 columns the first tile has 0 to 3, 8 to 11, 16 to 19 and 24 to 27. What lies at `next` is asked for meanwhile.
    ///
    /// # Safety
    /// The rows lie there, and `out` has room for the tiles; the processor has AVX-512.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
    unsafe fn interleave(&self, latent: usize, taken: usize, out: *mut bf16, next: *const u8) {
        const LINE: usize = 64;
        let lines = (4 * self.width).div_ceil(LINE);
        for pair in 0..taken * STEP / 2 {
            let step = pair / (STEP / 2);
            for column in (0..latent).step_by(32) {
                let numbers = (latent - column).min(32);
                // SAFETY: numbers of rows that are there; a line of each of two tiles.
                unsafe {
                    macro_rules! load {
                        ($row:expr) => {{
                            let numbers = if $row < self.count { numbers } else { 0 };
                            let mask = (1u64 << numbers).wrapping_sub(1) as u32;
                            let from = self.lying.wrapping_add($row * self.width + column);
                            _mm512_maskz_loadu_epi16(mask, from.cast())
                        }};
                    }
                    let (a, b) = (load!(2 * pair), load!(2 * pair + 1));
                    let tile = (column / COLUMNS * taken + step) * 4 + column % COLUMNS / 16;
                    let out = out.add(tile * TILE + pair % (STEP / 2) * STEP);
                    _mm512_storeu_si512(out.cast(), _mm512_unpacklo_epi16(a, b));
                    _mm512_storeu_si512(out.add(TILE).cast(), _mm512_unpackhi_epi16(a, b));
                }
            }
            for line in 0..lines {
                let ahead = next.wrapping_add(pair * 4 * self.width + line * LINE);
                _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
            }
        }
    }
}

/// Weights of 32 cached rows, two in a line of sixteen heads, become a line for each head.
///
/// # Safety
/// A tile lies there; the processor has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
unsafe fn turn_weights(tile: *mut bf16) {
    // SAFETY: sixteen lines of the tile.
    unsafe {
        let mut lines = [_mm512_setzero_si512(); 16];
        for (i, line) in lines.iter_mut().enumerate() {
            *line = _mm512_loadu_si512(tile.add(i * STEP).cast());
        }
        for (i, line) in turn(lines).into_iter().enumerate() {
            _mm512_storeu_si512(tile.add(i * STEP).cast(), line);
        }
    }
}

/// Multiplies the sums of each head, a line of sixteen columns in each tile.
///
/// # Safety
/// The processor has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
unsafe fn rescale(sums: &mut [f32], factors: &[f32; HEADS]) {
    if *factors == [1.0; HEADS] {
        return;
    }
    for tile in sums.chunks_exact_mut(SUMS) {
        for (line, factor) in tile.chunks_exact_mut(16).zip(factors) {
            // SAFETY: sixteen numbers.
            unsafe {
                let scaled = _mm512_mul_ps(_mm512_loadu_ps(line.as_ptr()), _mm512_set1_ps(*factor));
                _mm512_storeu_ps(line.as_mut_ptr(), scaled);
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

/// The sums of a head, column by column.
///
/// # Safety
/// The processor has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
unsafe fn put_in_order(sums: &[f32], head: usize, out: &mut [f32]) {
    for (tiles, out) in sums.chunks_exact(2 * SUMS).zip(out.chunks_mut(32)) {
        // SAFETY: a line of each of two tiles; lanes below the masks are there.
        unsafe {
            let low = _mm512_loadu_ps(tiles[head * 16..].as_ptr());
            let high = _mm512_loadu_ps(tiles[SUMS + head * 16..].as_ptr());
            for (order, out) in ORDER.iter().zip(out.chunks_mut(16)) {
                let order = _mm512_loadu_si512(order.as_ptr().cast());
                let line = _mm512_permutex2var_ps(low, order, high);
                _mm512_mask_storeu_ps(out.as_mut_ptr(), below(out.len()), line);
            }
        }
    }
}
