//! Packs f32 matrices into bf16 panels (see [`bf16_layout`](crate::bf16_layout)) with AVX512-BF16.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use crate::bf16_layout::{K_STEP, PANEL, STEP_LEN, steps, value_offset};
use half::bf16;
use std::arch::x86_64::*;

/// Scratch of `len` elements, aligned to a cache line.
pub(crate) fn aligned(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
    memory.resize(len + 16, 0.0);
    // `align_offset` may return `usize::MAX`. Kernels accept any alignment; aligned lines are only
    // faster.
    let from = memory.as_ptr().align_offset(64).min(16);
    &mut memory[from..from + len]
}

/// A row-major matrix of f32 in memory.
#[derive(Clone, Copy)]
pub(crate) struct F32Matrix {
    pub start: *const f32,
    /// Elements from one row to the next.
    pub stride: usize,
    pub rows: usize,
    pub cols: usize,
}

impl F32Matrix {
    /// The submatrix from a row and column on, of at most 32 rows and columns.
    fn part(self, row: usize, col: usize) -> F32Matrix {
        let (rows, cols) = (self.rows - row, self.cols - col);
        let start = self.start.wrapping_add(row * self.stride + col);
        F32Matrix { start, rows: rows.min(PANEL), cols: cols.min(PANEL), ..self }
    }
}

/// Mask of the lanes below `count`.
#[inline(always)]
pub(crate) fn below(count: usize) -> __mmask16 {
    (1u32 << count.min(16)).wrapping_sub(1) as u16
}

/// Rounds two vectors to bf16: first the elements of `low`, then of `high`.
///
/// # Safety
/// The CPU has AVX512-BF16.
#[inline(always)]
pub(crate) unsafe fn pair(low: __m512, high: __m512) -> __m512i {
    // SAFETY: registers only, with the caller's instructions; both types have 512 bits.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// Elements of two halves in turn: 0, 16, 1, 17, …
static ALTERNATING: [u16; 32] = {
    let mut indices = [0; 32];
    let mut lane = 0;
    while lane < 32 {
        indices[lane] = lane as u16 / 2 + lane as u16 % 2 * 16;
        lane += 1;
    }
    indices
};

/// Rounds two vectors to bf16 and interleaves them: a line of a right panel from two terms of
/// sixteen columns.
///
/// # Safety
/// The CPU has AVX512-BF16.
#[inline(always)]
pub(crate) unsafe fn alternate(first: __m512, second: __m512) -> __m512i {
    // SAFETY: 32 indices of 16 bits; registers otherwise, with the caller's instructions.
    unsafe {
        let order = _mm512_loadu_si512(ALTERNATING.as_ptr().cast());
        _mm512_permutexvar_epi16(order, pair(first, second))
    }
}

/// Transposes sixteen vectors of sixteen 32-bit words. A word may be an f32 or a pair of bf16,
/// which stays together.
///
/// # Safety
/// The CPU has AVX-512.
#[inline(always)]
pub(crate) unsafe fn transpose(v: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: registers only, with the caller's instructions.
    unsafe {
        let mut a = v;
        // Within 128-bit quarters: words of rows i and i + 1, then pairs of words of rows i and i +
        // 2.
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
        // Now quarter q of vector 4 g + c has words 4 q + c of rows 4 g to 4 g + 3. The remaining
        // shuffles transpose quarters.
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
/// Packs one k-step of a right panel from rows of terms, each row times its factor: at most 32
/// rows, which become columns, and 32 terms.
///
/// # Safety
/// The matrix is valid, `factors` has an element per row, and there is room for a k-step; the CPU
/// has AVX512-BF16.
unsafe fn right_step(rows: F32Matrix, factors: &[f32], out: *mut bf16) {
    // SAFETY: rows of the matrix and lines of the k-step by this function's contract; masked lanes
    // are not read.
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
/// Packs a right panel from rows of terms, each row times its factor: at most 32 rows, which become
/// columns.
///
/// # Safety
/// As for [`right_step`], with room for all k-steps.
pub(crate) unsafe fn right_panel(rows: F32Matrix, factors: &[f32], out: *mut bf16) {
    for step in 0..steps(rows.cols) {
        // SAFETY: a part of the matrix, and room for each k-step, by this function's contract.
        unsafe { right_step(rows.part(0, step * K_STEP), factors, out.add(step * STEP_LEN)) }
    }
}
}

crate::isa::isa_fn! { Avx512Bf16;
/// Packs a right panel from columns of terms: at most 32 columns.
///
/// # Safety
/// As for [`right_panel`].
pub(crate) unsafe fn right_panel_of_columns(columns: F32Matrix, out: *mut bf16) {
    // SAFETY: rows of the matrix and lines of the panel by this function's contract; masked lanes,
    // and rows beyond the last, are not read.
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
/// Packs one k-step of a left panel from the transposed matrix: at most 32 rows, which become
/// terms, and 32 columns, which become rows.
///
/// # Safety
/// As for [`right_step`].
unsafe fn transpose_step(across: F32Matrix, out: *mut bf16) {
    // SAFETY: rows of the matrix and lines of the k-step by this function's contract; masked lanes,
    // and rows beyond the last, are not read.
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

/// Packs rows of values as a block of expanded values: [`value_offset`].
///
/// # Panics
/// When the CPU has no AVX512-BF16.
pub(crate) fn pack_values(values: &[f32], width: usize, out: &mut [bf16]) {
    let _proof = crate::isa::Avx512Bf16::expect();
    let rows = values.len() / width;
    for from in (0..rows).step_by(K_STEP) {
        let rows = K_STEP.min(rows - from);
        for n in (0..width).step_by(PANEL) {
            let first = &values[from * width + n..];
            let across = F32Matrix { start: first.as_ptr(), stride: width, rows, cols: PANEL.min(width - n) };
            let out = &mut out[value_offset(width, from, n)..][..STEP_LEN];
            // SAFETY: the rows and columns are inside `values`, `out` has the length of a k-step,
            // and the token proves the instructions.
            unsafe { transpose_step(across, out.as_mut_ptr()) }
        }
    }
}
