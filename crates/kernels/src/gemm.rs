//! f32 GEMM: blocks of rows × vectors of columns in registers, summed over k in order.
//!
//! Attention uses it for scores, weighted values and keys.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use crate::MatrixViewMut;
use crate::simd::Simd;

/// Width of a latent KV cache row in nearly every published MLA model: 512 + 64.
const LATENT_ROW: usize = 576;

/// The left operand, row-major or column-major.
#[derive(Clone, Copy)]
pub(crate) enum LeftOperand<'a> {
    /// Row-major, with the row stride in elements.
    Rows(&'a [f32], usize),
    /// Column-major, with the column stride in elements.
    Columns(&'a [f32], usize),
}

impl LeftOperand<'_> {
    /// Elements, row stride, column stride.
    fn parts(&self) -> (&[f32], usize, usize) {
        match self {
            LeftOperand::Rows(data, row) => (data, *row, 1),
            LeftOperand::Columns(data, column) => (data, 1, *column),
        }
    }
}

/// [`gemm_prefetch`] without prefetching.
///
/// # Panics
/// When a matrix is shorter than its shape.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(crate) unsafe fn gemm<L: Simd>(
    k: usize,
    a: LeftOperand<'_>,
    b: (&[f32], usize),
    c: &mut MatrixViewMut<'_>,
    add: bool,
) {
    // SAFETY: the ISA by this function's contract.
    unsafe { gemm_prefetch::<L, 0>(k, a, b, c, add, &mut std::ptr::null()) }
}

/// c = a · b, or c = c + a · b with `add`. `a` has a row per row of `c`; `b` is `k` rows with
/// stride `b_row`.
///
/// Prefetches from `ahead` on: one cache line per `PREFETCH_EVERY` k-steps of a block (4 or 8; 0:
/// none).
///
/// # Panics
/// When a matrix is shorter than its shape.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(crate) unsafe fn gemm_prefetch<L: Simd, const PREFETCH_EVERY: usize>(
    k: usize,
    a: LeftOperand<'_>,
    (b, b_row): (&[f32], usize),
    c: &mut MatrixViewMut<'_>,
    add: bool,
    ahead: &mut *const u8,
) {
    let (m, n) = (c.rows(), c.cols());
    if m == 0 || n == 0 {
        return;
    }
    let (elements, a_row, a_col) = a.parts();
    assert!(k == 0 || elements.len() > (m - 1) * a_row + (k - 1) * a_col, "left factor");
    assert!(k == 0 || b.len() >= (k - 1) * b_row + n, "right factor");
    let (start, c_row) = c.raw_mut();
    let wide = n / 16 * 16;
    // Columns outside, rows inside: the vectors of `b` for a block of columns stay in a near cache
    // while all rows read them.
    let mut column = 0;
    while column < wide {
        let vectors = ((wide - column) / 16).min(L::NR_VECTORS);
        let mut row = 0;
        while row < m {
            macro_rules! block {
                ($rows:literal, $vectors:literal) => {{
                    // SAFETY: the block is inside the three matrices, as asserted above; the ISA by
                    // this function's contract.
                    unsafe {
                        let left = elements.as_ptr().add(row * a_row);
                        let right = (b.as_ptr().add(column), b_row);
                        let out = (start.add(row * c_row + column), c_row);
                        // The two strides that occur most are compile-time constants: see
                        // `A_STRIDE`.
                        match a {
                            LeftOperand::Rows(_, LATENT_ROW) => {
                                block::<L, $rows, $vectors, true, LATENT_ROW, PREFETCH_EVERY>(
                                    k,
                                    (left, a_row),
                                    right,
                                    out,
                                    add,
                                    ahead,
                                );
                            }
                            LeftOperand::Rows(..) => {
                                block::<L, $rows, $vectors, true, 0, PREFETCH_EVERY>(
                                    k,
                                    (left, a_row),
                                    right,
                                    out,
                                    add,
                                    ahead,
                                );
                            }
                            LeftOperand::Columns(_, 16) => {
                                block::<L, $rows, $vectors, false, 16, PREFETCH_EVERY>(
                                    k,
                                    (left, a_col),
                                    right,
                                    out,
                                    add,
                                    ahead,
                                );
                            }
                            LeftOperand::Columns(..) => {
                                block::<L, $rows, $vectors, false, 0, PREFETCH_EVERY>(
                                    k,
                                    (left, a_col),
                                    right,
                                    out,
                                    add,
                                    ahead,
                                );
                            }
                        }
                    }
                    row += $rows;
                }};
            }
            // Few forms, since each is compiled for every ISA, stride and prefetch distance. The
            // last rows run in blocks of four and one.
            match ((m - row).min(L::F32_ROWS), vectors) {
                (8.., 2..) => block!(8, 2),
                (8.., _) => block!(8, 1),
                (6.., _) if L::F32_ROWS == 6 => block!(6, 1),
                (4.., 2..) => block!(4, 2),
                (4.., _) => block!(4, 1),
                (_, 2..) => block!(1, 2),
                _ => block!(1, 1),
            }
        }
        column += vectors * 16;
    }
    // The last columns, in the same order of k. A column's arithmetic depends on `n` alone, so its
    // bits do not depend on the number of rows.
    for i in 0..m {
        let row = c.row_mut(i);
        for j in wide..n {
            let mut sum = if add { row[j] } else { 0.0 };
            for l in 0..k {
                sum += elements[i * a_row + l * a_col] * b[l * b_row + j];
            }
            row[j] = sum;
        }
    }
}

/// As [`gemm_prefetch`] with a row-major left operand, for the first eight columns, which would
/// leave half of sixteen lanes unused. Sums have the same bits.
///
/// # Panics
/// When a matrix is shorter than its shape.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(crate) unsafe fn gemm_eight<L: Simd, const PREFETCH_EVERY: usize>(
    k: usize,
    (a, a_row): (&[f32], usize),
    (b, b_row): (&[f32], usize),
    c: &mut MatrixViewMut<'_>,
    add: bool,
    ahead: &mut *const u8,
) {
    let m = c.rows();
    if m == 0 || k == 0 {
        return;
    }
    assert!(a.len() > (m - 1) * a_row + k - 1, "left factor");
    assert!(b.len() >= (k - 1) * b_row + 8, "right factor");
    assert!(c.cols() >= 8, "columns");
    let (start, c_row) = c.raw_mut();
    let mut row = 0;
    while row < m {
        macro_rules! block {
            ($rows:literal) => {{
                // SAFETY: the block is inside the three matrices, as asserted above; the ISA by
                // this function's contract.
                unsafe {
                    let (left, out) = (a.as_ptr().add(row * a_row), (start.add(row * c_row), c_row));
                    let right = (b.as_ptr(), b_row);
                    match a_row {
                        LATENT_ROW => {
                            let left = (left, LATENT_ROW);
                            block_eight::<L, $rows, PREFETCH_EVERY>(k, left, right, out, add, ahead)
                        }
                        _ => {
                            block_eight::<L, $rows, PREFETCH_EVERY>(k, (left, a_row), right, out, add, ahead)
                        }
                    }
                }
                row += $rows;
            }};
        }
        match m - row {
            8.. if L::F32_ROWS > 1 => block!(8),
            4.. if L::F32_ROWS > 1 => block!(4),
            _ => block!(1),
        }
    }
}

/// `R` rows × eight columns.
///
/// # Safety
/// As for [`block`].
#[inline(always)]
unsafe fn block_eight<L: Simd, const R: usize, const PREFETCH_EVERY: usize>(
    k: usize,
    (a, a_row): (*const f32, usize),
    (b, b_row): (*const f32, usize),
    (c, c_row): (*mut f32, usize),
    add: bool,
    ahead: &mut *const u8,
) {
    // SAFETY: every access is to an element of the block, which is valid by this function's
    // contract, as is the ISA; a prefetch never faults.
    unsafe {
        let mut sums = [L::zero_f32x8(); R];
        if add {
            for r in 0..R {
                sums[r] = L::load_f32x8(c.add(r * c_row));
            }
        }
        for l in 0..k {
            let columns = L::load_f32x8(b.add(l * b_row));
            for r in 0..R {
                sums[r] = L::mul_add_relaxed_x8(*a.add(r * a_row + l), columns, sums[r]);
            }
            if PREFETCH_EVERY > 0 && l.is_multiple_of(PREFETCH_EVERY) {
                L::prefetch_far(*ahead);
                *ahead = ahead.wrapping_add(64);
            }
        }
        for r in 0..R {
            L::store_f32x8(c.add(r * c_row), sums[r]);
        }
    }
}

/// The microkernel: `R` rows × `V` vectors. `ROW_MAJOR` is the order of the left operand, and
/// `a_step` its stride. `A_STRIDE` is that stride if it is a compile-time constant, else 0.
// With a constant stride, all eight rows of the left operand are one address register with constant
// offsets. With a variable stride they are eight addresses, more than the general-purpose registers
// can hold in addition to the others.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. All elements of the block are in
/// valid memory, `c` for writing.
#[inline(always)]
unsafe fn block<
    L: Simd,
    const R: usize,
    const V: usize,
    const ROW_MAJOR: bool,
    const A_STRIDE: usize,
    const PREFETCH_EVERY: usize,
>(
    k: usize,
    (a, a_step): (*const f32, usize),
    (b, b_row): (*const f32, usize),
    (c, c_row): (*mut f32, usize),
    add: bool,
    ahead: &mut *const u8,
) {
    let a_step = if A_STRIDE > 0 { A_STRIDE } else { a_step };
    // SAFETY: every access is to an element of the block, which is valid by this function's
    // contract, as is the ISA; a prefetch never faults.
    unsafe {
        let mut sums = [[L::splat_f32(0.0); V]; R];
        if add {
            for r in 0..R {
                for v in 0..V {
                    sums[r][v] = L::load_f32(c.add(r * c_row + v * 16));
                }
            }
        }
        // A macro: a closure that is called in several places may not be inlined, and is then
        // compiled without the ISA's instructions.
        // measured: docs/notes/gemv-and-gemm.md "Closures and array map lose the ISA"
        macro_rules! k_step {
            ($l:expr) => {{
                let l: usize = $l;
                let mut columns = [L::splat_f32(0.0); V];
                for v in 0..V {
                    columns[v] = L::load_f32(b.add(l * b_row + v * 16));
                }
                for r in 0..R {
                    let factor = if ROW_MAJOR { *a.add(r * a_step + l) } else { *a.add(l * a_step + r) };
                    for v in 0..V {
                        sums[r][v] = L::mul_add_relaxed(L::splat_f32(factor), columns[v], sums[r][v]);
                    }
                }
            }};
        }
        // Unrolled by hand, so that the check for a prefetch runs once per four k-steps.
        let mut l = 0;
        while l + 4 <= k {
            k_step!(l);
            k_step!(l + 1);
            k_step!(l + 2);
            k_step!(l + 3);
            if PREFETCH_EVERY > 0 && l.is_multiple_of(PREFETCH_EVERY) {
                L::prefetch_far(*ahead);
                *ahead = ahead.wrapping_add(64);
            }
            l += 4;
        }
        while l < k {
            k_step!(l);
            l += 1;
        }
        for r in 0..R {
            for v in 0..V {
                L::store_f32(c.add(r * c_row + v * 16), sums[r][v]);
            }
        }
    }
}
