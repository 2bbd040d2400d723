//! What multiplies factors of bf16 and sums in f32: the tiles of AMX, or vectors with products of pairs (AVX512-BF16).
#![allow(unsafe_code, reason = "vector and tile instructions over addresses that callers keep in bounds")]

mod amx;
mod avx512_bf16;
mod load_kv;
mod qk;

pub(crate) use amx::{AmxTiles, K_STEP, NR, TILE_BYTES, TILE_ROWS};
pub(crate) use amx::{bf16_peak, integer_peak};
pub(super) use avx512_bf16::Avx512Bf16;

use super::layout::Matrix;
use crate::attention::bf16_layout::PANEL;
use crate::attention::mla_decode::HEADS;
use crate::simd::Simd;
use crate::simd::avx512::Avx512;
use half::bf16;
use latent_types::{CacheRow, CacheType};
use std::arch::x86_64::*;

/// Cached rows of a block in latent space: those of a page, which lie one after the other.
pub(super) const KV_BLOCK: usize = 64;

/// Numbers of bf16 of a tile.
pub(super) const TILE_LEN: usize = TILE_ROWS * K_STEP;

/// Numbers of f32 of a tile.
pub(super) const TILE_ACC_LEN: usize = TILE_ROWS * HEADS;

/// Cached rows that lie one after the other, at most [`KV_BLOCK`].
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// Address of the first.
    pub start: *const u8,
    /// How they are stored.
    pub stored: CacheRow,
    pub count: usize,
}

impl Block {
    /// Address of a row.
    #[inline(always)]
    fn row(&self, row: usize) -> *const u8 {
        self.start.wrapping_add(row * self.stored.bytes())
    }
}

/// Where a block goes while it is scored.
#[derive(Clone, Copy)]
pub(super) struct LoadedKv {
    /// Room for [`KV_BLOCK`] rows of whole steps.
    pub rows: *mut bf16,
    /// The first `latent` numbers as right factors: for each 64 columns and each 32 rows four tiles, two rows a line. Of 32 columns the first
    /// tile has 0 to 3, 8 to 11, 16 to 19 and 24 to 27.
    pub pairs: *mut bf16,
    /// Numbers of a row that are wanted in pairs.
    pub latent: usize,
}

impl LoadedKv {
    /// Address of the line of two rows, from an even one on, and of 32 columns; that of the second tile is a tile behind it.
    #[inline(always)]
    fn pair(&self, count: usize, row: usize, step: usize) -> *mut bf16 {
        let group = step / 2 * count.div_ceil(K_STEP) * 4 + step % 2 * 2;
        self.pairs.wrapping_add((group + row / K_STEP * 4) * TILE_LEN + row % K_STEP / 2 * K_STEP)
    }
}

/// Writes two rows of 32 numbers in pairs.
///
/// # Safety
/// There is room for a line of each of two tiles; the processor has AVX-512.
#[inline(always)]
unsafe fn store_pairs(first: __m512i, second: __m512i, out: *mut bf16) {
    // SAFETY: the caller's promise.
    unsafe {
        _mm512_storeu_si512(out.cast(), _mm512_unpacklo_epi16(first, second));
        _mm512_storeu_si512(out.add(TILE_LEN).cast(), _mm512_unpackhi_epi16(first, second));
    }
}

/// Memory that is asked for during a product: what is read next.
#[derive(Clone, Copy)]
pub(super) struct PrefetchQueue {
    from: *const u8,
    lines: usize,
}

impl PrefetchQueue {
    /// So many bytes.
    pub fn new(from: *const u8, bytes: usize) -> PrefetchQueue {
        PrefetchQueue { from, lines: bytes.div_ceil(LINE) }
    }

    /// Asks for so many lines, or for those that are left.
    #[inline(always)]
    fn prefetch(&mut self, lines: usize) {
        self.prefetch_all(lines.min(self.lines));
    }

    /// Asks for so many lines, be they left or not.
    #[inline(always)]
    fn prefetch_all(&mut self, lines: usize) {
        for _ in 0..lines {
            // SAFETY: asking for any address is allowed, and the unit's processor has AVX-512.
            unsafe { Avx512::prefetch_far(self.from) };
            self.from = self.from.wrapping_add(LINE);
        }
        self.lines = self.lines.saturating_sub(lines);
    }
}

/// Bytes of a line of the caches.
const LINE: usize = 64;

/// Products of bf16, of the shapes that attention has. Panels are those of [`attention::bf16_layout`](crate::attention::bf16_layout).
///
/// Addresses of memory that is written are those of numbers which nobody else touches meanwhile.
pub(super) trait Bf16Dot {
    /// The unit of this thread.
    ///
    /// # Panics
    /// When the processor has none.
    fn new() -> Self;

    /// Whether cached rows of this type can be read.
    fn reads(cache: CacheType) -> bool;

    /// to = left · right, or to = to + left · right, for 32 rows and 32 columns in panels. The left factor comes in one
    /// part or two, with as many steps each; of the first there is at least one.
    ///
    /// # Safety
    /// * each part of `left` is the address of as many steps of a left panel, and `right` that of as many as both of a right panel;
    /// * `to` is the address of 32 rows of 32 numbers, one after the other.
    unsafe fn panels(&mut self, left: [(*const bf16, usize); 2], right: *const bf16, add: bool, to: *mut f32);

    /// Lays queries, a row a head, as right factors of [`qk`](Bf16Dot::qk), each number times `factor`.
    ///
    /// # Safety
    /// The matrix is valid, and there is room for [`queries_len`] numbers.
    unsafe fn pack_queries(&mut self, queries: Matrix, factor: f32, to: *mut bf16);

    /// to = left · right for the rows of a block and so many heads: a row after the other, of sixteen heads each, [`KV_BLOCK`] for each
    /// sixteen heads. The rows are taken apart too, up to a multiple of 32, where zeros stand for those that are missing. What is
    /// written for heads that are missing is a number, or left as it was. About half of what is `ahead` is asked for.
    ///
    /// # Safety
    /// * the rows lie there, their type is one that the unit [reads](Bf16Dot::reads), and `loaded` has room for a block;
    /// * `right` is the address of [laid](Bf16Dot::pack_queries) queries, as wide as the rows, of so many heads; there is at least one;
    /// * `to` is the address of 64 rows of 16 numbers for each sixteen heads.
    unsafe fn qk(
        &mut self,
        block: &Block,
        loaded: LoadedKv,
        right: (*const bf16, usize),
        ahead: &mut PrefetchQueue,
        to: *mut f32,
    );

    /// to = to + left · right for so many heads, and `groups` times 64 columns. What is left `ahead` is asked for.
    ///
    /// # Safety
    /// * `left` is the address of a tile for each step, the second number, for each sixteen heads; there is at least one, and one group;
    /// * `right` is the address of four tiles for each group and each step in it, of sixteen columns each;
    /// * `to` is the address of four tiles for each group, for each sixteen heads.
    unsafe fn pv(
        &mut self,
        left: *const bf16,
        heads_and_steps: (usize, usize),
        right: *const bf16,
        groups: usize,
        ahead: &mut PrefetchQueue,
        to: *mut f32,
    );
}

/// Numbers of the queries of so many heads as a [`Bf16Dot`] lays them.
pub(super) fn queries_len(heads: usize, width: usize) -> usize {
    heads.next_multiple_of(PANEL) * width.next_multiple_of(K_STEP)
}
