//! Products of bf16 pairs in vectors (AVX512-BF16): a line of a right panel, two terms of sixteen
//! columns, times a pair of a left row in all lanes.
//!
//! Zen 5 does two such products per cycle: half of its rate in 8-bit integers, twice its rate in
//! f32. Their latency is six cycles, so at least twelve accumulators are kept in registers. Zen 5
//! broadcasts fewer than two elements per cycle from different cache lines, so each broadcast
//! should serve at least two products.
#![allow(unsafe_code, reason = "vector instructions over addresses that callers keep in bounds")]

use super::vectors::{as_bf16, line};
use super::{Bf16Dot, CachedRows, K_STEP, LANES, LoadedKv, TILE_ACC_LEN, TILE_LEN, qk};
use crate::bf16::layout::F32Matrix;
use crate::bf16_layout::{PANEL, STEP_LEN};
use crate::kv_cache::KvPrefetch;
use crate::simd::avx512::Avx512;
use half::bf16;
use latent_types::CacheType;
use std::arch::x86_64::*;

/// AVX512-BF16 of this CPU.
pub(crate) struct Avx512Bf16Dot {
    _proof: crate::isa::Avx512Bf16,
}

impl Bf16Dot for Avx512Bf16Dot {
    fn new() -> Avx512Bf16Dot {
        Avx512Bf16Dot { _proof: crate::isa::Avx512Bf16::expect() }
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
        // SAFETY: the contract is the same, and the token in `self` proves the instructions.
        unsafe { panels(left, right, add, to) }
    }

    unsafe fn pack_queries(&mut self, queries: F32Matrix, factor: f32, to: *mut bf16) {
        // SAFETY: the contract is the same, and the token in `self` proves the instructions.
        unsafe { qk::pack_queries(queries, factor, to) }
    }

    unsafe fn qk(
        &mut self,
        block: &CachedRows,
        loaded: LoadedKv,
        right: (*const bf16, usize),
        ahead: &mut KvPrefetch,
        to: *mut f32,
    ) {
        // SAFETY: the contract is the same, and the token in `self` proves the instructions.
        unsafe { qk::qk(block, loaded, right, ahead, to) }
    }

    unsafe fn pv(
        &mut self,
        (left, heads, steps): (*const bf16, usize, usize),
        (right, groups): (*const bf16, usize),
        ahead: &mut KvPrefetch,
        to: *mut f32,
    ) {
        // The remaining lines, spread evenly over all k-steps of all calls below.
        let share = ahead.lines.div_ceil(groups * heads.div_ceil(PV_HEADS) * steps);
        for group in 0..groups {
            // Groups of columns outside, heads inside: the columns of a group stay in L1 for all
            // heads.
            for head in (0..heads).step_by(PV_HEADS) {
                let (lanes, lane) = (head / LANES, head % LANES);
                // SAFETY: addresses inside those of this function's contract, since tiles have
                // sixteen rows; the token in `self` proves the instructions.
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

/// A pair of elements in all lanes.
///
/// # Safety
/// `pair` is the address of two elements; the CPU has AVX-512.
#[inline(always)]
unsafe fn broadcast_pair(pair: *const bf16) -> __m512bh {
    // SAFETY: two elements by this function's contract, read unaligned.
    unsafe { as_bf16(_mm512_set1_epi32(pair.cast::<i32>().read_unaligned())) }
}

crate::isa::isa_fn! { Avx512Bf16;
/// As [`Bf16Dot::panels`].
///
/// # Safety
/// As there; the CPU has AVX512-BF16.
unsafe fn panels(left: [(*const bf16, usize); 2], right: *const bf16, add: bool, to: *mut f32) {
    /// Rows of a register tile: 8 × 2 accumulators, and each broadcast serves two products.
    const MR: usize = 8;
    for row in (0..PANEL).step_by(MR) {
        // SAFETY: rows of 32 in `left` and `to`, and k-steps of the parts, by this function's
        // contract.
        unsafe {
            let to = to.add(row * PANEL);
            let mut acc = [[_mm512_setzero_ps(); 2]; MR];
            if add {
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc = [_mm512_loadu_ps(to.add(i * PANEL)), _mm512_loadu_ps(to.add(i * PANEL + 16))];
                }
            }
            // The accumulators stay in registers over both parts: content and RoPE are one sum.
            let mut right = right;
            for (start, steps) in left {
                let mut left = start.wrapping_add(row * K_STEP);
                for _ in 0..steps {
                    for term in (0..K_STEP).step_by(2) {
                        let (low, high) = (line(right.add(term * 16)), line(right.add(term * 16 + TILE_LEN)));
                        for (i, acc) in acc.iter_mut().enumerate() {
                            let factor = broadcast_pair(left.add(i * K_STEP + term));
                            acc[0] = _mm512_dpbf16_ps(acc[0], factor, low);
                            acc[1] = _mm512_dpbf16_ps(acc[1], factor, high);
                        }
                    }
                    left = left.add(STEP_LEN);
                    right = right.add(STEP_LEN);
                }
            }
            for (i, [low, high]) in acc.into_iter().enumerate() {
                _mm512_storeu_ps(to.add(i * PANEL), low);
                _mm512_storeu_ps(to.add(i * PANEL + 16), high);
            }
        }
    }
}
}

/// Heads of a register tile of 64 columns: 4 × 4 accumulators, and each broadcast serves four
/// products.
const PV_HEADS: usize = 4;

crate::isa::isa_fn! { Avx512Bf16;
/// As [`Bf16Dot::pv`], of one group and [`PV_HEADS`] heads; prefetches `share` cache lines per
/// k-step.
///
/// # Safety
/// As there; the CPU has AVX512-BF16.
unsafe fn pv(
    mut left: *const bf16,
    mut right: *const bf16,
    steps: usize,
    (ahead, share): (&mut KvPrefetch, usize),
    to: *mut f32,
) {
    // SAFETY: k-steps of `left` and `right`, and heads of four tiles at `to`, by this function's
    // contract.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); 4]; PV_HEADS];
        for (i, acc) in acc.iter_mut().enumerate() {
            for (tile, lane_acc) in acc.iter_mut().enumerate() {
                *lane_acc = _mm512_loadu_ps(to.add(tile * TILE_ACC_LEN + i * 16));
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
                for (i, acc) in acc.iter_mut().enumerate() {
                    let factor = broadcast_pair(left.add(i * K_STEP + term));
                    for (lane_acc, line) in acc.iter_mut().zip(lines) {
                        *lane_acc = _mm512_dpbf16_ps(*lane_acc, factor, line);
                    }
                }
            }
            left = left.add(TILE_LEN);
            right = right.add(4 * TILE_LEN);
            ahead.prefetch::<Avx512>(share);
        }
        for (i, acc) in acc.into_iter().enumerate() {
            for (tile, lane_acc) in acc.into_iter().enumerate() {
                _mm512_storeu_ps(to.add(tile * TILE_ACC_LEN + i * 16), lane_acc);
            }
        }
    }
}
}
