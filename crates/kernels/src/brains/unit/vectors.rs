//! Products of pairs by vectors: a line of a right panel, two terms of sixteen columns, meets a pair of a left row in all lanes.
//!
//! Zen 5 does two such products a cycle: half of what it does in 8-bit integers, twice what it does in f32. Each waits six cycles for the one
//! before, so that sixteen sums at least are kept in registers.
#![allow(unsafe_code, reason = "vector instructions over addresses that callers keep in bounds")]

use super::{Ahead, Block, ROWS, STEP, SUMS, TILE_NUMBERS, Taken, Unit, store_pairs};
use crate::attention::panels::{PANEL, STEP_NUMBERS, steps};
use crate::attention::{load_part, scale_of, widen_codes};
use crate::brains::panels::pair;
use crate::lanes::avx512::Avx512;
use base::{CacheRow, CacheType};
use half::bf16;
use std::arch::x86_64::*;

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

/// As [`Unit::score`]: tile after tile of rows, so that one and the queries stay in the first-level cache.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx512bf16,avx2,fma,f16c"
)]
unsafe fn score(block: &Block, taken: Taken, right: *const bf16, mut ahead: Ahead, to: *mut f32) {
    let steps = steps(block.stored.width());
    let share = ahead.lines.div_ceil(block.count.div_ceil(ROWS) * steps);
    for first in (0..block.count.next_multiple_of(STEP)).step_by(ROWS) {
        // SAFETY: steps and rows by the caller's promise.
        unsafe {
            take(block, first, taken);
            if first >= block.count {
                continue;
            }
            let mut sums = [_mm512_setzero_ps(); ROWS];
            let (mut left, mut right) = (taken.rows.cast_const(), right);
            for _ in 0..steps {
                for term in (0..STEP).step_by(2) {
                    let line = line(right.add(term * 16));
                    for (i, sum) in sums.iter_mut().enumerate() {
                        *sum = _mm512_dpbf16_ps(*sum, line, all(left.add(i * STEP + term)));
                    }
                }
                left = left.add(TILE_NUMBERS);
                right = right.add(STEP_NUMBERS);
                ahead.ask(share);
            }
            for (i, sum) in sums.into_iter().enumerate() {
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

/// Sixteen rows of a block rounded to bf16: a tile for each step at the start of `taken.rows`, and their pairs. Rows that are missing are zeros.
///
/// # Safety
/// As for [`Unit::score`].
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx512bf16,avx2,fma,f16c"
)]
unsafe fn take(block: &Block, first: usize, taken: Taken) {
    let stored = block.stored;
    // SAFETY: numbers of rows that are there; masked lanes are not read.
    unsafe {
        match stored.ty {
            CacheType::F16 => take_pairs(block, first, taken, |row, step, mask| {
                let halves = _mm512_maskz_loadu_epi16(mask, row.wrapping_add(2 * step * STEP).cast());
                let low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
                pair(low, _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(halves)))
            }),
            CacheType::Bf16 => take_pairs(block, first, taken, |row, step, mask| {
                _mm512_maskz_loadu_epi16(mask, row.wrapping_add(2 * step * STEP).cast())
            }),
            CacheType::F32 | CacheType::Int8 => take_pairs(block, first, taken, |row, step, mask| {
                if stored.ty == CacheType::Int8 && (step + 1) * STEP <= stored.content {
                    codes(stored, row, step)
                } else {
                    decoded(stored, row, step, mask)
                }
            }),
        }
    }
}

/// [`take`] with a way to read numbers of a step of a row, those of a mask, as bf16.
///
/// # Safety
/// As for [`Unit::score`].
#[inline(always)]
unsafe fn take_pairs(
    block: &Block,
    first: usize,
    taken: Taken,
    numbers: impl Fn(*const u8, usize, __mmask32) -> __m512i,
) {
    let (width, whole) = (block.stored.width(), block.stored.width() / STEP);
    let some = (1u32 << (width % STEP)).wrapping_sub(1);
    for row in (first..first + ROWS).step_by(2) {
        let out = taken.rows.wrapping_add(row % ROWS * STEP);
        // SAFETY: a line of each row.
        let put = |step: usize, a: __m512i, b: __m512i| unsafe {
            let out = out.wrapping_add(step * TILE_NUMBERS);
            _mm512_storeu_si512(out.cast(), a);
            _mm512_storeu_si512(out.add(STEP).cast(), b);
            if step * STEP < taken.latent {
                store_pairs(a, b, taken.pair(block.count, row, step));
            }
        };
        let (a, b) = (block.row(row), block.row(row + 1));
        if row + 1 < block.count {
            for step in 0..whole {
                put(step, numbers(a, step, !0), numbers(b, step, !0));
            }
            if width > whole * STEP {
                put(whole, numbers(a, whole, some), numbers(b, whole, some));
            }
        } else {
            for step in 0..steps(width) {
                let mask = if step < whole { !0 } else { some };
                let there = row < block.count;
                // SAFETY: register to register.
                let zeros = unsafe { _mm512_setzero_si512() };
                put(step, if there { numbers(a, step, mask) } else { zeros }, zeros);
            }
        }
    }
}

/// A step of codes times the scale of their row.
///
/// # Safety
/// The row lies there, and has the codes; the processor has AVX-512.
#[inline(always)]
unsafe fn codes(stored: CacheRow, row: *const u8, step: usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let scale = scale_of(std::slice::from_raw_parts(row, stored.bytes()));
        let wide = |half: usize| widen_codes::<Avx512>(row.add(step * STEP + 16 * half), scale);
        pair(wide(0), wide(1))
    }
}

/// A step of a row of another type: by way of f32.
///
/// # Safety
/// The row lies there, and has the numbers of the mask.
#[inline(never)]
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx512bf16,avx2,fma,f16c"
)]
unsafe fn decoded(stored: CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let row = std::slice::from_raw_parts(row, stored.bytes());
        let mut wide = [0.0; STEP];
        load_part(stored, row, step * STEP, &mut wide[..mask.trailing_ones() as usize]);
        pair(_mm512_loadu_ps(wide.as_ptr()), _mm512_loadu_ps(wide[16..].as_ptr()))
    }
}
