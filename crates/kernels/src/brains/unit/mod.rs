//! What multiplies factors of bf16 and sums in f32: the tiles of AMX, or vectors with products of pairs (AVX512-BF16).
#![allow(unsafe_code, reason = "vector and tile instructions over addresses that callers keep in bounds")]

mod taking;
mod tiles;
mod vectors;

pub(super) use tiles::{OUTPUTS, ROWS, STEP, TILE, Tiles};
pub(crate) use tiles::{bf16_peak, integer_peak};
pub(super) use vectors::Vectors;

use crate::attention::latent::HEADS;
use crate::lanes::Lanes;
use crate::lanes::avx512::Avx512;
use base::{CacheRow, CacheType};
use half::bf16;
use std::arch::x86_64::*;

/// Cached rows of a block in latent space: those of a page, which lie one after the other.
pub(super) const BLOCK: usize = 64;

/// Numbers of bf16 of a tile.
pub(super) const TILE_NUMBERS: usize = ROWS * STEP;

/// Numbers of f32 of a tile.
pub(super) const SUMS: usize = ROWS * HEADS;

/// Cached rows that lie one after the other, at most [`BLOCK`].
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// Address of the first.
    pub lying: *const u8,
    /// How they are stored.
    pub stored: CacheRow,
    pub count: usize,
}

impl Block {
    /// Address of a row.
    #[inline(always)]
    fn row(&self, row: usize) -> *const u8 {
        self.lying.wrapping_add(row * self.stored.bytes())
    }
}

/// Where a block goes while it is scored.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    /// Room for [`BLOCK`] rows of whole steps.
    pub rows: *mut bf16,
    /// The first `latent` numbers as right factors: for each 64 columns and each 32 rows four tiles, two rows a line. Of 32 columns the first
    /// tile has 0 to 3, 8 to 11, 16 to 19 and 24 to 27.
    pub pairs: *mut bf16,
    /// Numbers of a row that are wanted in pairs.
    pub latent: usize,
}

impl Taken {
    /// Address of the line of two rows, from an even one on, and of 32 columns; that of the second tile is a tile behind it.
    #[inline(always)]
    fn pair(&self, count: usize, row: usize, step: usize) -> *mut bf16 {
        let group = step / 2 * count.div_ceil(STEP) * 4 + step % 2 * 2;
        self.pairs.wrapping_add((group + row / STEP * 4) * TILE_NUMBERS + row % STEP / 2 * STEP)
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
        _mm512_storeu_si512(out.add(TILE_NUMBERS).cast(), _mm512_unpackhi_epi16(first, second));
    }
}

/// Memory that is asked for during a product: what is read next.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    from: *const u8,
    lines: usize,
}

impl Ahead {
    /// Both halves of so many bytes.
    pub fn halves(from: *const u8, bytes: usize) -> [Ahead; 2] {
        let (lines, first) = (bytes.div_ceil(LINE), bytes.div_ceil(2 * LINE));
        let second = Ahead { from: from.wrapping_add(first * LINE), lines: lines - first };
        [Ahead { from, lines: first }, second]
    }

    /// Asks for so many lines, or for those that are left.
    #[inline(always)]
    fn ask(&mut self, lines: usize) {
        for _ in 0..lines.min(self.lines) {
            // SAFETY: asking for any address is allowed, and the unit's processor has AVX-512.
            unsafe { Avx512::prefetch_far(self.from) };
            self.from = self.from.wrapping_add(LINE);
        }
        self.lines -= lines.min(self.lines);
    }
}

/// Bytes of a line of the caches.
const LINE: usize = 64;

/// Products of bf16, of the shapes that attention has. Panels are those of [`attention::panels`](crate::attention::panels).
///
/// Addresses of memory that is written are those of numbers which nobody else touches meanwhile.
pub(super) trait Unit {
    /// The unit of this thread.
    ///
    /// # Panics
    /// When the processor has none.
    fn ready() -> Self;

    /// Whether cached rows of this type can be read.
    fn reads(cache: CacheType) -> bool;

    /// to = left · right, or to = to + left · right, for 32 rows and 32 columns in panels. The left factor comes in one
    /// part or two, with as many steps each; of the first there is at least one.
    ///
    /// # Safety
    /// * each part of `left` is the address of as many steps of a left panel, and `right` that of as many as both of a right panel;
    /// * `to` is the address of 32 rows of 32 numbers, one after the other.
    unsafe fn panels(&mut self, left: [(*const bf16, usize); 2], right: *const bf16, add: bool, to: *mut f32);

    /// Brings so many steps of a right panel, of which the first tiles count, into the order in which [`score`](Unit::score) reads them.
    ///
    /// # Safety
    /// `right` is the address of as many steps of a right panel.
    unsafe fn arrange(&mut self, right: *mut bf16, steps: usize);

    /// to = left · right for the rows of a block and sixteen columns: a row after the other. The rows are taken apart
    /// too, up to a multiple of 32, where zeros stand for those that are missing.
    ///
    /// # Safety
    /// * the rows lie there, their type is one that the unit [reads](Unit::reads), and `taken` has room for a block;
    /// * `right` is the address of as many steps of an [arranged](Unit::arrange) panel as a row has; there is at least one;
    /// * `to` is the address of 64 rows of 16 numbers.
    unsafe fn score(&mut self, block: &Block, taken: Taken, right: *const bf16, ahead: Ahead, to: *mut f32);

    /// to = to + left · right for so many rows, at most sixteen, and `groups` times 64 columns.
    ///
    /// # Safety
    /// * `left` is the address of a tile for each step, the second number; there is at least one, and one group;
    /// * `right` is the address of four tiles for each group and each step in it, of sixteen columns each;
    /// * `to` is the address of four tiles for each group.
    unsafe fn sum_up(
        &mut self,
        left: *const bf16,
        rows_and_steps: (usize, usize),
        right: *const bf16,
        groups: usize,
        ahead: Ahead,
        to: *mut f32,
    );
}
