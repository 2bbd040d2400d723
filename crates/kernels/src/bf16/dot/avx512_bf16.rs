//! Products of pairs by vectors: a line of a right panel, two terms of sixteen columns, meets a pair of a left row in all lanes.
//!
//! Zen 5 does two such products a cycle: half of what it does in 8-bit integers, twice what it does in f32. Each waits six cycles for the one
//! before, so that twelve sums at least are kept in registers. And it loads less than two numbers a cycle to all lanes when they come from different
//! lines, so that each is to serve two products at least.
#![allow(unsafe_code, reason = "vector instructions over addresses that callers keep in bounds")]

use super::{Bf16Dot, Block, K_STEP, LoadedKv, PrefetchQueue, TILE_ACC_LEN, TILE_LEN, qk};
use crate::attention::bf16_layout::{PANEL, STEP_LEN};
use crate::attention::mla_decode::HEADS;
use crate::bf16::layout::Matrix;
use half::bf16;
use latent_types::CacheType;
use std::arch::x86_64::*;

/// The vectors of a processor that multiplies bf16 in them.
pub(in crate::bf16) struct Avx512Bf16(());

impl Bf16Dot for Avx512Bf16 {
    fn new() -> Avx512Bf16 {
        let _proof = crate::isa::Avx512Bf16::expect();
        Avx512Bf16(())
    }

    fn reads(cache: CacheType) -> bool {
        cache != CacheType::F32
    }

    unsafe fn panels(
        &mut self,
        left: [(*const bf16, usize); 2],
        right: *const bf16,
        add: bool,
        to: *mut f32,
    ) {
        // SAFETY: the caller's promise; the processor has the instructions, or this would not be.
        unsafe { panels(left, right, add, to) }
    }

    unsafe fn pack_queries(&mut self, queries: Matrix, factor: f32, to: *mut bf16) {
        // SAFETY: as above.
        unsafe { qk::pack_queries(queries, factor, to) }
    }

    unsafe fn qk(
        &mut self,
        block: &Block,
        loaded: LoadedKv,
        right: (*const bf16, usize),
        ahead: &mut PrefetchQueue,
        to: *mut f32,
    ) {
        // SAFETY: as above.
        unsafe { qk::qk(block, loaded, right, ahead, to) }
    }

    unsafe fn pv(
        &mut self,
        left: *const bf16,
        (heads, steps): (usize, usize),
        right: *const bf16,
        groups: usize,
        ahead: &mut PrefetchQueue,
        to: *mut f32,
    ) {
        let share = ahead.lines.div_ceil(groups * heads.div_ceil(SUMMED) * steps);
        for group in 0..groups {
            // all heads meet the columns of a group while these are in the first-level cache
            for head in (0..heads).step_by(SUMMED) {
                let (lanes, lane) = (head / HEADS, head % HEADS);
                // SAFETY: as above; tiles have sixteen rows.
                unsafe {
                    let left = left.add(lanes * steps * TILE_LEN + lane * K_STEP);
                    let right = right.add(group * steps * 4 * TILE_LEN);
                    let to = to.add((lanes * groups + group) * 4 * TILE_ACC_LEN + lane * 16);
                    pv(left, right, steps, (ahead, share), to);
                }
            }
        }
    }
}

/// A pair of numbers in all lanes.
#[inline(always)]
unsafe fn all(pair: *const bf16) -> __m512bh {
    // SAFETY: two numbers by the caller's promise; the types are of one size.
    unsafe { as_bf16(_mm512_set1_epi32(pair.cast::<i32>().read_unaligned())) }
}

/// A line of a right panel.
#[inline(always)]
pub(super) unsafe fn line(from: *const bf16) -> __m512bh {
    // SAFETY: 32 numbers by the caller's promise.
    unsafe { as_bf16(_mm512_loadu_si512(from.cast())) }
}

#[inline(always)]
pub(super) fn as_bf16(bits: __m512i) -> __m512bh {
    // SAFETY: any bits are numbers; the types are of one size.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
}

crate::isa::isa_fn! { Avx512Bf16;
/// As [`Bf16Dot::panels`].
unsafe fn panels(left: [(*const bf16, usize); 2], right: *const bf16, add: bool, to: *mut f32) {
    /// Rows whose sums are in registers.
    const TAKEN: usize = 8;
    for row in (0..PANEL).step_by(TAKEN) {
        // SAFETY: steps and rows by the caller's promise.
        unsafe {
            let to = to.add(row * PANEL);
            let mut sums = [[_mm512_setzero_ps(); 2]; TAKEN];
            if add {
                for (i, sums) in sums.iter_mut().enumerate() {
                    *sums = [_mm512_loadu_ps(to.add(i * PANEL)), _mm512_loadu_ps(to.add(i * PANEL + 16))];
                }
            }
            let mut right = right;
            for (start, steps) in left {
                let mut left = start.wrapping_add(row * K_STEP);
                for _ in 0..steps {
                    for term in (0..K_STEP).step_by(2) {
                        let (low, high) = (line(right.add(term * 16)), line(right.add(term * 16 + TILE_LEN)));
                        for (i, sums) in sums.iter_mut().enumerate() {
                            let factor = all(left.add(i * K_STEP + term));
                            sums[0] = _mm512_dpbf16_ps(sums[0], factor, low);
                            sums[1] = _mm512_dpbf16_ps(sums[1], factor, high);
                        }
                    }
                    left = left.add(STEP_LEN);
                    right = right.add(STEP_LEN);
                }
            }
            for (i, [low, high]) in sums.into_iter().enumerate() {
                _mm512_storeu_ps(to.add(i * PANEL), low);
                _mm512_storeu_ps(to.add(i * PANEL + 16), high);
            }
        }
    }
}
}

/// Heads whose sums of 64 columns are in registers.
const SUMMED: usize = 4;

crate::isa::isa_fn! { Avx512Bf16;
/// As [`Bf16Dot::pv`], of one group and a few heads.
unsafe fn pv(
    mut left: *const bf16,
    mut right: *const bf16,
    steps: usize,
    (ahead, share): (&mut PrefetchQueue, usize),
    to: *mut f32,
) {
    // SAFETY: steps and rows by the caller's promise.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); 4]; SUMMED];
        for (i, sums) in sums.iter_mut().enumerate() {
            for (tile, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_loadu_ps(to.add(tile * TILE_ACC_LEN + i * 16));
            }
        }
        for _ in 0..steps {
            for term in (0..K_STEP).step_by(2) {
                let from = right.add(term * 16);
                let lines = [
                    line(from),
                    line(from.add(TILE_LEN)),
                    line(from.add(2 * TILE_LEN)),
                    line(from.add(3 * TILE_LEN)),
                ];
                for (i, sums) in sums.iter_mut().enumerate() {
                    let factor = all(left.add(i * K_STEP + term));
                    for (sum, line) in sums.iter_mut().zip(lines) {
                        *sum = _mm512_dpbf16_ps(*sum, factor, line);
                    }
                }
            }
            left = left.add(TILE_LEN);
            right = right.add(4 * TILE_LEN);
            ahead.prefetch(share);
        }
        for (i, sums) in sums.into_iter().enumerate() {
            for (tile, sum) in sums.into_iter().enumerate() {
                _mm512_storeu_ps(to.add(tile * TILE_ACC_LEN + i * 16), sum);
            }
        }
    }
}
}
