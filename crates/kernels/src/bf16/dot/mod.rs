//! Dot products of bf16 with f32 accumulators, for GEMM and attention: AMX tiles, or pairs in
//! vectors (AVX512-BF16).
#![allow(unsafe_code, reason = "vector and tile instructions over addresses that callers keep in bounds")]

mod amx;
mod avx512_bf16;
mod load_kv;
mod qk;
mod vectors;

pub(crate) use amx::{AmxTiles, NR, bf16_peak, integer_peak};
pub(crate) use avx512_bf16::Avx512Bf16Dot;

pub(crate) use crate::bf16_layout::K_STEP;

use super::layout::F32Matrix;
use crate::bf16_layout::PANEL;
use crate::kv_cache::{KvPrefetch, scale_of};
use half::bf16;
use latent_types::{CacheRow, CacheType};
use std::arch::x86_64::*;

/// Cached rows of a block of MLA decode: the rows of a page, which are contiguous.
pub(crate) const KV_BLOCK: usize = 64;

/// Heads (or queries) whose scores are the lanes of a vector.
pub(crate) const LANES: usize = 16;

pub(crate) const TILE_ROWS: usize = 16;

pub(crate) const TILE_BYTES: usize = 1024;

/// Elements of bf16 of a tile.
pub(crate) const TILE_LEN: usize = TILE_ROWS * K_STEP;

/// Elements of an f32 tile: accumulators.
pub(crate) const TILE_ACC_LEN: usize = TILE_ROWS * LANES;

/// At most [`KV_BLOCK`] contiguous cached rows.
#[derive(Clone, Copy)]
pub(crate) struct CachedRows {
    /// Address of the first row.
    pub start: *const u8,
    /// Format of a row.
    pub stored: CacheRow,
    /// Bytes of a row.
    pub stride: usize,
    pub count: usize,
}

impl CachedRows {
    /// Address of a row.
    #[inline(always)]
    fn row(&self, row: usize) -> *const u8 {
        self.start.wrapping_add(row * self.stride)
    }

    /// Scale of a row, in formats that have one.
    ///
    /// # Safety
    /// The row is one of the block.
    #[inline(always)]
    unsafe fn scale(&self, row: usize) -> f32 {
        // SAFETY: the bytes of a row by this function's contract.
        unsafe { scale_of(std::slice::from_raw_parts(self.row(row), self.stride)) }
    }
}

/// Scratch for the rows of a block as bf16, written while they are scored.
#[derive(Clone, Copy)]
pub(crate) struct LoadedKv {
    /// Room for [`KV_BLOCK`] rows of whole k-steps.
    pub rows: *mut bf16,
    /// The first `latent` elements as right factors: per 64 columns and 32 rows four tiles, two
    /// rows per line. Of 32 columns the first tile has 0 to 3, 8 to 11, 16 to 19 and 24 to 27:
    /// unpacking works within 128-bit quarters. Restoring the order of the sums once costs less
    /// than permuting every row.
    pub pairs: *mut bf16,
    /// Elements of a row that are values too, and are stored in `pairs`.
    pub latent: usize,
    /// Room for the scales of [`KV_BLOCK`] rows, if they are [deferred](defers_scale).
    pub scales: *mut f32,
}

/// Whether rows are loaded without the scale of their content. Every F8_E4M3 number is exact in
/// bf16, so the scale multiplies a row's scores and weights instead of each element. The scale must
/// not apply to the RoPE part, so the content must be whole k-steps.
pub(crate) fn defers_scale(stored: &CacheRow) -> bool {
    stored.ty == CacheType::Fp8 && stored.content.is_multiple_of(K_STEP)
}

impl LoadedKv {
    /// Address of the line of two rows, the first of them even, and of the 32 columns of a k-step;
    /// the line of the second tile is a tile further on.
    #[inline(always)]
    fn pair(&self, count: usize, row: usize, step: usize) -> *mut bf16 {
        // Four tiles per 64 columns (two k-steps) and 32 rows: `pv` reads them consecutively.
        let group = step / 2 * count.div_ceil(K_STEP) * 4 + step % 2 * 2;
        self.pairs.wrapping_add((group + row / K_STEP * 4) * TILE_LEN + row % K_STEP / 2 * K_STEP)
    }
}

/// Stores two rows of 32 elements in pairs.
///
/// # Safety
/// There is room for a line of each of two tiles at `out`; the CPU has AVX-512.
#[inline(always)]
unsafe fn store_pairs(first: __m512i, second: __m512i, out: *mut bf16) {
    // SAFETY: the two lines by this function's contract.
    unsafe {
        _mm512_storeu_si512(out.cast(), _mm512_unpacklo_epi16(first, second));
        _mm512_storeu_si512(out.add(TILE_LEN).cast(), _mm512_unpackhi_epi16(first, second));
    }
}

/// bf16 products in the shapes of attention. Panels are those of
/// [`bf16_layout`](crate::bf16_layout).
///
/// A value of such a type proves that the CPU has the instructions. No other thread may access the
/// memory at output addresses during a call.
pub(crate) trait Bf16Dot {
    /// Prepares this thread.
    ///
    /// # Panics
    /// When the CPU lacks the instructions.
    fn new() -> Self;

    /// Whether cached rows of this type can be read.
    fn reads(cache: CacheType) -> bool;

    /// to = left · right, or to = to + left · right, for 32 rows and 32 columns in panels. The left
    /// factor comes in one or two parts of some k-steps each, the first of at least one.
    ///
    /// # Safety
    /// * each part of `left` is the address of that many k-steps of a left panel, and `right` of as
    ///   many as both of a right panel;
    /// * `to` is the address of 32 × 32 elements, row-major.
    unsafe fn panels(&mut self, left: [(*const bf16, usize); 2], right: *const bf16, add: bool, to: *mut f32);

    /// Packs queries, a row per head, each element times `factor`, as right factors of
    /// [`qk`](Bf16Dot::qk).
    ///
    /// # Safety
    /// The matrix is valid, and there is room for [`queries_len`] elements.
    unsafe fn pack_queries(&mut self, queries: F32Matrix, factor: f32, to: *mut bf16);

    /// Scores of the rows of a block with `right` = (queries, heads): per sixteen heads
    /// [`KV_BLOCK`] rows of sixteen. The rows are loaded too, padded with zeros to a multiple of 32
    /// rows. Lanes of missing heads get finite values or stay unchanged. Prefetches about half of
    /// `ahead`.
    ///
    /// # Safety
    /// * the block's rows are of a type that [`reads`](Bf16Dot::reads) accepts, and `loaded` has
    ///   room for a block;
    /// * `right` is the address of [packed](Bf16Dot::pack_queries) queries of the rows' width, of
    ///   at least one head;
    /// * `to` is the address of 64 × 16 elements per sixteen heads.
    unsafe fn qk(
        &mut self,
        block: &CachedRows,
        loaded: LoadedKv,
        right: (*const bf16, usize),
        ahead: &mut KvPrefetch,
        to: *mut f32,
    );

    /// to = to + left · right, with `left` = (weights, heads, k-steps) and `right` = (loaded pairs,
    /// groups of 64 columns). Prefetches the rest of `ahead`.
    ///
    /// # Safety
    /// * `left` is the address of a tile per k-step for each sixteen heads; there is at least one
    ///   k-step and one group;
    /// * `right` is the address of four tiles per group and k-step, of sixteen columns each;
    /// * `to` is the address of four tiles per group for each sixteen heads.
    unsafe fn pv(
        &mut self,
        left: (*const bf16, usize, usize),
        right: (*const bf16, usize),
        ahead: &mut KvPrefetch,
        to: *mut f32,
    );
}

/// Elements of packed queries.
pub(crate) fn queries_len(heads: usize, width: usize) -> usize {
    heads.next_multiple_of(PANEL) * width.next_multiple_of(K_STEP)
}
