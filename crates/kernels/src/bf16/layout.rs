//! Factors made into panels (see [`attention::bf16_layout`](crate::attention::bf16_layout)) with vectors.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use crate::KvElement;
use crate::attention::bf16_layout::{K_STEP, PANEL, STEP_LEN, steps};
use half::bf16;
use std::arch::x86_64::*;

/// Memory for `len` numbers that begins with a cache line.
pub(super) fn aligned(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
    memory.resize(len + 16, 0.0);
    let from = memory.as_ptr().align_offset(64).min(16);
    &mut memory[from..from + len]
}

/// Rows of f32 in memory.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub start: *const f32,
    /// Numbers between rows.
    pub stride: usize,
    pub rows: usize,
    pub cols: usize,
}

impl Matrix {
    /// The part from some row and column on; at most 32 of each.
    fn part(self, row: usize, col: usize) -> Matrix {
        let (rows, cols) = (self.rows - row, self.cols - col);
        let start = self.start.wrapping_add(row * self.stride + col);
        Matrix { start, rows: rows.min(PANEL), cols: cols.min(PANEL), ..self }
    }
}

/// The lanes below `count`.
#[inline(always)]
pub(super) fn below(count: usize) -> __mmask16 {
    (1u32 << count.min(16)).wrapping_sub(1) as u16
}

/// Two vectors of f32 as bf16: first the numbers of `low`, then those of `high`.
#[inline(always)]
pub(super) unsafe fn pair(low: __m512, high: __m512) -> __m512i {
    // SAFETY: register to register, with the caller's instructions; the types are of one size.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

static ALTERNATING: [u16; 32] = {
    let mut indices = [0; 32];
    let mut lane = 0;
    while lane < 32 {
        indices[lane] = lane as u16 / 2 + lane as u16 % 2 * 16;
        lane += 1;
    }
    indices
};

/// Two vectors of f32 as pairs of bf16: a line of a right panel from two terms of sixteen columns.
#[inline(always)]
pub(super) unsafe fn alternate(first: __m512, second: __m512) -> __m512i {
    // SAFETY: as above; 32 indices.
    unsafe {
        let order = _mm512_loadu_si512(ALTERNATING.as_ptr().cast());
        _mm512_permutexvar_epi16(order, pair(first, second))
    }
}

/// Sixteen vectors of sixteen words, turned: word j of vector i becomes word i of vector j.
#[inline(always)]
pub(super) unsafe fn transpose(v: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: register to register, with the caller's instructions.
    unsafe {
        let mut a = v;
        // within quarters: words of neighbours, then pairs of words of neighbours of neighbours
        for i in (0..16).step_by(2) {
            (a[i], a[i + 1]) = (_mm512_unpacklo_epi32(v[i], v[i + 1]), _mm512_unpackhi_epi32(v[i], v[i + 1]));
        }
        let mut b = a;
        for i in (0..16).step_by(4) {
            b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
            b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
            b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
            b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
        }
        // quarter q of vector 4 g + c: words 4 q + c of rows 4 g to 4 g + 3
        let mut c = b;
        for i in 0..4 {
            c[i] = _mm512_shuffle_i32x4::<0x88>(b[i], b[4 + i]);
            c[4 + i] = _mm512_shuffle_i32x4::<0xdd>(b[i], b[4 + i]);
            c[8 + i] = _mm512_shuffle_i32x4::<0x88>(b[8 + i], b[12 + i]);
            c[12 + i] = _mm512_shuffle_i32x4::<0xdd>(b[8 + i], b[12 + i]);
        }
        let mut d = c;
        for i in 0..4 {
            d[i] = _mm512_shuffle_i32x4::<0x88>(c[i], c[8 + i]);
            d[8 + i] = _mm512_shuffle_i32x4::<0xdd>(c[i], c[8 + i]);
            d[4 + i] = _mm512_shuffle_i32x4::<0x88>(c[4 + i], c[12 + i]);
            d[12 + i] = _mm512_shuffle_i32x4::<0xdd>(c[4 + i], c[12 + i]);
        }
        d
    }
}

crate::isa::isa_fn! { Avx512Bf16;
/// One step of a right panel from rows of terms, each times its factor: at most 32 rows, which become columns, and 32 terms.
///
/// # Safety
/// The matrix is valid, `factors` has a number for each row, and there is room for a step; the processor has AVX-512 with BF16.
unsafe fn right_step(rows: Matrix, factors: &[f32], out: *mut bf16) {
    // SAFETY: the caller's promise; masked lanes are not read.
    unsafe {
        let masks = [below(rows.cols), below(rows.cols.saturating_sub(16))];
        for tile in 0..2 {
            let mut lines = [_mm512_setzero_si512(); 16];
            for (i, line) in (16 * tile..rows.rows).zip(&mut lines) {
                let factor = _mm512_set1_ps(factors[i]);
                let from = rows.start.add(i * rows.stride);
                let low = _mm512_maskz_loadu_ps(masks[0], from);
                let high = _mm512_maskz_loadu_ps(masks[1], from.wrapping_add(16));
                *line = pair(_mm512_mul_ps(low, factor), _mm512_mul_ps(high, factor));
            }
            for (i, line) in transpose(lines).into_iter().enumerate() {
                _mm512_storeu_si512(out.add(tile * STEP_LEN / 2 + 32 * i).cast(), line);
            }
        }
    }
}
}

crate::isa::isa_fn! { Avx512Bf16;
/// A right panel from rows of terms, each times its factor: at most 32 rows, which become columns.
///
/// # Safety
/// As for [`right_step`], with room for all steps.
pub(super) unsafe fn right_panel(rows: Matrix, factors: &[f32], out: *mut bf16) {
    for step in 0..steps(rows.cols) {
        // SAFETY: the caller's promise.
        unsafe { right_step(rows.part(0, step * K_STEP), factors, out.add(step * STEP_LEN)) }
    }
}
}

crate::isa::isa_fn! { Avx512Bf16;
/// A right panel from columns of terms: at most 32 columns.
///
/// # Safety
/// As for [`right_panel`].
pub(super) unsafe fn right_panel_of_columns(columns: Matrix, out: *mut bf16) {
    // SAFETY: the caller's promise; masked lanes are not read, and lines beyond the last term are zeros.
    unsafe {
        for term in (0..columns.rows.next_multiple_of(K_STEP)).step_by(2) {
            for tile in 0..2 {
                let mask = below(columns.cols.saturating_sub(16 * tile));
                let line = |term: usize| {
                    let mask = if term < columns.rows { mask } else { 0 };
                    let from = columns.start.wrapping_add(term * columns.stride + 16 * tile);
                    _mm512_maskz_loadu_ps(mask, from)
                };
                let at = term / K_STEP * STEP_LEN + tile * STEP_LEN / 2 + term % K_STEP * 16;
                _mm512_storeu_si512(out.add(at).cast(), alternate(line(term), line(term + 1)));
            }
        }
    }
}
}

crate::isa::isa_fn! { Avx512Bf16;
/// One step of a left panel from rows of terms that lie across: at most 32 rows, which become terms, and 32 numbers of each, which become
/// rows.
///
/// # Safety
/// As for [`right_step`].
unsafe fn transpose_step(across: Matrix, out: *mut bf16) {
    // SAFETY: the caller's promise; masked lanes are not read.
    unsafe {
        for tile in 0..2 {
            let mask = below(across.cols.saturating_sub(16 * tile));
            let mut lines = [_mm512_setzero_si512(); 16];
            for (i, line) in lines.iter_mut().enumerate() {
                let row = |row: usize| {
                    let mask = if row < across.rows { mask } else { 0 };
                    let from = across.start.wrapping_add(row * across.stride + 16 * tile);
                    _mm512_maskz_loadu_ps(mask, from)
                };
                *line = alternate(row(2 * i), row(2 * i + 1));
            }
            for (i, line) in transpose(lines).into_iter().enumerate() {
                _mm512_storeu_si512(out.add((16 * tile + i) * K_STEP).cast(), line);
            }
        }
    }
}
}

/// As [`KvElement::pack_values`] of bf16, whose assertions hold.
///
/// # Panics
/// When the processor has no AVX512-BF16.
pub(crate) fn pack_values(values: &[f32], width: usize, out: &mut [bf16]) {
    let _proof = crate::isa::Avx512Bf16::expect();
    let rows = values.len() / width;
    for from in (0..rows).step_by(K_STEP) {
        let rows = K_STEP.min(rows - from);
        for n in (0..width).step_by(PANEL) {
            let numbers = &values[from * width + n..];
            let across = Matrix { start: numbers.as_ptr(), stride: width, rows, cols: PANEL.min(width - n) };
            let out = &mut out[bf16::value_offset(width, from, n)..][..STEP_LEN];
            // SAFETY: the rows and columns lie in `values`; a step has room; the processor has the instructions.
            unsafe { transpose_step(across, out.as_mut_ptr()) }
        }
    }
}
