//! Cached rows as factors for vectors: rounded to bf16, a step of some rows at a time, and interleaved in pairs in the same pass.
#![allow(unsafe_code, reason = "vector instructions over addresses that callers keep in bounds")]

use super::vectors::SCORED;
use super::{Block, STEP, Taken, store_pairs};
use crate::attention::{load_part, scale_of, widen_codes};
use crate::brains::panels::pair;
use crate::lanes::avx512::Avx512;
use base::CacheRow;
use std::arch::x86_64::*;

/// A step of [`SCORED`] rows of a block as bf16: so many lines of `taken.rows`, and their pairs. Rows and numbers that are missing are zeros.
///
/// # Safety
/// As for [`Unit::score`](super::Unit::score).
#[inline(always)]
pub(super) unsafe fn take(
    block: &Block,
    first: usize,
    taken: Taken,
    step: usize,
    numbers: &impl Fn(*const u8, usize, __mmask32) -> __m512i,
) {
    let width = block.stored.width();
    if first + SCORED <= block.count && (step + 1) * STEP <= width {
        // SAFETY: rows and numbers are there, as just seen.
        return unsafe { take_whole(block, first, taken, step, numbers) };
    }
    let mask = ((1u64 << (width - step * STEP).min(STEP)) - 1) as __mmask32;
    let line = |row: usize| {
        if row < block.count {
            return numbers(block.row(row), step, mask);
        }
        // SAFETY: register to register.
        unsafe { _mm512_setzero_si512() }
    };
    // SAFETY: room by the caller's promise.
    unsafe {
        put(block.count, first, taken, step, |pair| [line(first + 2 * pair), line(first + 2 * pair + 1)])
    }
}

/// [`take`] where all rows and numbers are there.
///
/// # Safety
/// As for [`Unit::score`](super::Unit::score).
#[inline(always)]
pub(super) unsafe fn take_whole(
    block: &Block,
    first: usize,
    taken: Taken,
    step: usize,
    numbers: &impl Fn(*const u8, usize, __mmask32) -> __m512i,
) {
    let bytes = block.stored.bytes();
    let mut row = block.row(first);
    // SAFETY: room by the caller's promise.
    unsafe {
        put(block.count, first, taken, step, |_| {
            let lines = [numbers(row, step, !0), numbers(row.wrapping_add(bytes), step, !0)];
            row = row.wrapping_add(2 * bytes);
            lines
        });
    }
}

/// Writes a step of [`SCORED`] rows, two of them a time.
///
/// # Safety
/// As for [`Unit::score`](super::Unit::score).
#[inline(always)]
unsafe fn put(
    count: usize,
    first: usize,
    taken: Taken,
    step: usize,
    mut lines: impl FnMut(usize) -> [__m512i; 2],
) {
    let (rows, pairs) = (taken.rows.wrapping_add(step * SCORED * STEP), taken.pair(count, first, step));
    let in_pairs = step * STEP < taken.latent;
    for pair in 0..SCORED / 2 {
        let [a, b] = lines(pair);
        // SAFETY: a line of each row, and of each of two tiles of pairs.
        unsafe {
            let out = rows.add(2 * pair * STEP);
            _mm512_storeu_si512(out.cast(), a);
            _mm512_storeu_si512(out.add(STEP).cast(), b);
            if in_pairs {
                store_pairs(a, b, pairs.add(pair * STEP));
            }
        }
    }
}

/// A step of codes times the scale of their row.
///
/// # Safety
/// The row lies there, and has the codes; the processor has AVX-512.
#[inline(always)]
pub(super) unsafe fn codes(stored: CacheRow, row: *const u8, step: usize) -> __m512i {
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
pub(super) unsafe fn decoded(stored: CacheRow, row: *const u8, step: usize, mask: __mmask32) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let row = std::slice::from_raw_parts(row, stored.bytes());
        let mut wide = [0.0; STEP];
        load_part(stored, row, step * STEP, &mut wide[..mask.trailing_ones() as usize]);
        pair(_mm512_loadu_ps(wide.as_ptr()), _mm512_loadu_ps(wide[16..].as_ptr()))
    }
}
