//! Products of pairs by vectors: a line of a right panel, two terms of sixteen columns, meets a pair of a left row in all lanes.
//!
//! Zen 5 does two such products a cycle: half of what it does in 8-bit integers, twice what it does in f32. Each waits six cycles for the one
//! before, so that sixteen sums at least are kept in registers. And it loads less than two numbers a cycle to all lanes when they come from different
//! lines, so that each is to serve two products at least.
#![allow(unsafe_code, reason = "vector instructions over addresses that callers keep in bounds")]

use super::taking::{codes, decoded, take, take_whole};
use super::{Ahead, Block, STEP, SUMS, TILE_NUMBERS, Taken, Unit};
use crate::attention::panels::{PANEL, STEP_NUMBERS, steps};
use crate::brains::panels::pair;
use base::CacheType;
use half::bf16;
use std::arch::x86_64::*;
use std::hint::black_box;

/// The vectors of a processor that multiplies bf16 in them.
pub(in crate::brains) struct Vectors(());

impl Unit for Vectors {
    fn ready() -> Vectors {
        let found = crate::features();
        assert!(found.avx512 && found.avx512_bf16, "a kernel of AVX512-BF16 on a machine without it");
        Vectors(())
    }

    fn reads(_: CacheType) -> bool {
        true
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

    unsafe fn arrange(&mut self, right: *mut bf16, steps: usize) {
        // SAFETY: as above.
        unsafe { arrange(right, steps) }
    }

    unsafe fn score(&mut self, block: &Block, taken: Taken, right: *const bf16, ahead: Ahead, to: *mut f32) {
        // SAFETY: as above.
        unsafe { score(block, taken, right, ahead, to) }
    }

    unsafe fn sum_up(
        &mut self,
        left: *const bf16,
        (rows, steps): (usize, usize),
        right: *const bf16,
        groups: usize,
        mut ahead: Ahead,
        to: *mut f32,
    ) {
        let share = ahead.lines.div_ceil(groups * rows.div_ceil(SUMMED) * steps);
        for group in 0..groups {
            // SAFETY: as above.
            unsafe {
                let right = right.add(group * steps * 4 * TILE_NUMBERS);
                sum_up(left, (rows, steps), right, (&mut ahead, share), to.add(group * 4 * SUMS));
            }
        }
    }
}

/// A pair of numbers in all lanes.
#[inline(always)]
unsafe fn all(pair: *const bf16) -> __m512bh {
    // SAFETY: two numbers by the caller's promise; the types are of one size.
    unsafe { brains(_mm512_set1_epi32(pair.cast::<i32>().read_unaligned())) }
}

/// Two pairs of numbers in all lanes.
#[inline(always)]
unsafe fn all_of_two(pairs: *const bf16) -> __m512bh {
    // SAFETY: four numbers by the caller's promise; the types are of one size.
    unsafe { brains(_mm512_set1_epi64(pairs.cast::<i64>().read_unaligned())) }
}

/// A line of a right panel.
#[inline(always)]
unsafe fn line(from: *const bf16) -> __m512bh {
    // SAFETY: 32 numbers by the caller's promise.
    unsafe { brains(_mm512_loadu_si512(from.cast())) }
}

#[inline(always)]
fn brains(bits: __m512i) -> __m512bh {
    // SAFETY: any bits are numbers; the types are of one size.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
}

/// As [`Unit::panels`].
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx512bf16,avx2,fma,f16c"
)]
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
                let mut left = start.wrapping_add(row * STEP);
                for _ in 0..steps {
                    for term in (0..STEP).step_by(2) {
                        let (low, high) =
                            (line(right.add(term * 16)), line(right.add(term * 16 + TILE_NUMBERS)));
                        for (i, sums) in sums.iter_mut().enumerate() {
                            let factor = all(left.add(i * STEP + term));
                            sums[0] = _mm512_dpbf16_ps(sums[0], factor, low);
                            sums[1] = _mm512_dpbf16_ps(sums[1], factor, high);
                        }
                    }
                    left = left.add(STEP_NUMBERS);
                    right = right.add(STEP_NUMBERS);
                }
            }
            for (i, [low, high]) in sums.into_iter().enumerate() {
                _mm512_storeu_ps(to.add(i * PANEL), low);
                _mm512_storeu_ps(to.add(i * PANEL + 16), high);
            }
        }
    }
}

/// As [`Unit::arrange`]: of two lines, each with a pair of terms of sixteen heads, the first becomes both pairs of heads 0, 1, 4, 5, 8, 9, 12 and 13, and
/// the second those of the others. So two pairs of a row, 8 bytes in all lanes, meet both lines, and half as many loads are needed.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
unsafe fn arrange(right: *mut bf16, steps: usize) {
    for step in 0..steps {
        for term in (0..STEP).step_by(4) {
            // SAFETY: two lines of the panel.
            unsafe {
                let at = right.add(step * STEP_NUMBERS + term * 16).cast::<__m512i>();
                let (first, second) = (_mm512_loadu_si512(at), _mm512_loadu_si512(at.add(1)));
                _mm512_storeu_si512(at, _mm512_unpacklo_epi32(first, second));
                _mm512_storeu_si512(at.add(1), _mm512_unpackhi_epi32(first, second));
            }
        }
    }
}

/// As [`Unit::score`], by the way in which numbers of such rows are read.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx512bf16,avx2,fma,f16c"
)]
unsafe fn score(block: &Block, taken: Taken, right: *const bf16, ahead: Ahead, to: *mut f32) {
    let stored = block.stored;
    let beside = match stored.ty {
        CacheType::F16 | CacheType::Bf16 => stored.width(),
        CacheType::Int8 => stored.content,
        CacheType::F32 => 0,
    } / STEP;
    // SAFETY: numbers of rows that are there; masked lanes are not read.
    unsafe {
        match stored.ty {
            CacheType::F16 => {
                score_read((block, taken), right, ahead, to, beside, |row, step, mask| {
                    let halves = _mm512_maskz_loadu_epi16(mask, row.wrapping_add(2 * step * STEP).cast());
                    let low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
                    pair(low, _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(halves)))
                });
            }
            CacheType::Bf16 => {
                score_read((block, taken), right, ahead, to, beside, |row, step, mask| {
                    _mm512_maskz_loadu_epi16(mask, row.wrapping_add(2 * step * STEP).cast())
                });
            }
            CacheType::F32 | CacheType::Int8 => {
                score_read((block, taken), right, ahead, to, beside, |row, step, mask| {
                    if step < beside { codes(stored, row, step) } else { decoded(stored, row, step, mask) }
                });
            }
        }
    }
}

/// Rows whose scores are in registers: two vectors each.
pub(super) const SCORED: usize = 8;

/// A few rows at a time, so that they and the queries stay in the first-level cache. While they are multiplied the next are taken, step by step into
/// their place: rounding and interleaving run beside the products, on what these leave of the processor. So many steps as `beside` says can be
/// taken thus, of whole rows.
///
/// # Safety
/// As for [`Unit::score`].
#[inline(always)]
unsafe fn score_read(
    (block, taken): (&Block, Taken),
    right: *const bf16,
    mut ahead: Ahead,
    to: *mut f32,
    beside: usize,
    numbers: impl Fn(*const u8, usize, __mmask32) -> __m512i,
) {
    let steps = steps(block.stored.width());
    // a length that the compiler does not know: unrolled, it loads the pairs of a whole step first, and puts them down on the stack
    let length = black_box(STEP);
    let share = ahead.lines.div_ceil(block.count.div_ceil(SCORED) * steps);
    let taken_beside = |first: usize| if first + SCORED <= block.count { beside } else { 0 };
    for first in (0..block.count.next_multiple_of(STEP)).step_by(SCORED) {
        let done = if first == 0 { 0 } else { taken_beside(first) };
        // SAFETY: steps and rows by the caller's promise.
        unsafe {
            for step in done..steps {
                take(block, first, taken, step, &numbers);
            }
            if first >= block.count {
                continue;
            }
            let beside = taken_beside(first + SCORED);
            let mut sums = [[_mm512_setzero_ps(); 2]; SCORED];
            let (mut left, mut right) = (taken.rows.cast_const(), right);
            for step in 0..steps {
                for term in (0..length).step_by(4) {
                    let lines = [line(right.add(term * 16)), line(right.add(term * 16 + STEP))];
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let pairs = all_of_two(left.add(i * STEP + term));
                        sums[0] = _mm512_dpbf16_ps(sums[0], pairs, lines[0]);
                        sums[1] = _mm512_dpbf16_ps(sums[1], pairs, lines[1]);
                    }
                }
                if step < beside {
                    take_whole(block, first + SCORED, taken, step, &numbers);
                }
                left = left.add(SCORED * STEP);
                right = right.add(STEP_NUMBERS);
                ahead.ask(share);
            }
            for (i, [a, b]) in sums.into_iter().enumerate() {
                // even lanes have one pair of terms, odd ones the other
                let even = _mm512_shuffle_ps::<0x88>(a, b);
                let sum = _mm512_add_ps(even, _mm512_shuffle_ps::<0xdd>(a, b));
                _mm512_storeu_ps(to.add((first + i) * 16), sum);
            }
        }
    }
}

/// Rows whose sums of 64 columns are in registers.
const SUMMED: usize = 4;

/// As [`Unit::sum_up`], of one group.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx512bf16,avx2,fma,f16c"
)]
unsafe fn sum_up(
    left: *const bf16,
    (rows, steps): (usize, usize),
    right: *const bf16,
    (ahead, share): (&mut Ahead, usize),
    to: *mut f32,
) {
    for row in (0..rows).step_by(SUMMED) {
        // SAFETY: steps and rows by the caller's promise: a tile has sixteen.
        unsafe {
            let to = to.add(row * 16);
            let mut sums = [[_mm512_setzero_ps(); 4]; SUMMED];
            for (i, sums) in sums.iter_mut().enumerate() {
                for (tile, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_loadu_ps(to.add(tile * SUMS + i * 16));
                }
            }
            let (mut left, mut right) = (left.add(row * STEP), right);
            for _ in 0..steps {
                for term in (0..STEP).step_by(2) {
                    let from = right.add(term * 16);
                    let lines = [
                        line(from),
                        line(from.add(TILE_NUMBERS)),
                        line(from.add(2 * TILE_NUMBERS)),
                        line(from.add(3 * TILE_NUMBERS)),
                    ];
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let factor = all(left.add(i * STEP + term));
                        for (sum, line) in sums.iter_mut().zip(lines) {
                            *sum = _mm512_dpbf16_ps(*sum, factor, line);
                        }
                    }
                }
                left = left.add(TILE_NUMBERS);
                right = right.add(4 * TILE_NUMBERS);
                ahead.ask(share);
            }
            for (i, sums) in sums.into_iter().enumerate() {
                for (tile, sum) in sums.into_iter().enumerate() {
                    _mm512_storeu_ps(to.add(tile * SUMS + i * 16), sum);
                }
            }
        }
    }
}
