//! Products of f32 matrices: blocks of rows × vectors of columns in registers, the sum over k in order.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use crate::RowsMut;
use crate::lanes::Lanes;

/// A matrix to be read: number (i, k) lies at `i · row + k · col`.
#[derive(Clone, Copy)]
pub(crate) struct Strided<'a> {
    pub data: &'a [f32],
    pub row: usize,
    pub col: usize,
}

/// c = a · b, or c = c + a · b: `a` has a row for each row of `c`, `b` has `k` rows, `b_row` numbers apart.
///
/// # Panics
/// When a matrix is shorter than that.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn gemm<L: Lanes>(
    k: usize,
    a: Strided<'_>,
    (b, b_row): (&[f32], usize),
    c: &mut RowsMut<'_>,
    add: bool,
) {
    let (m, n) = (c.rows(), c.cols());
    if m == 0 || n == 0 {
        return;
    }
    assert!(k == 0 || a.data.len() > (m - 1) * a.row + (k - 1) * a.col, "left factor");
    assert!(k == 0 || b.len() >= (k - 1) * b_row + n, "right factor");
    let (start, c_row) = c.raw_mut();
    let wide = n / 16 * 16;
    let mut column = 0;
    while column < wide {
        let vectors = ((wide - column) / 16).min(L::VECTORS);
        let mut row = 0;
        while row < m {
            macro_rules! block {
                ($rows:literal, $vectors:literal) => {{
                    // SAFETY: the block lies inside the three matrices, as asserted above.
                    unsafe {
                        block::<L, $rows, $vectors>(
                            k,
                            (a.data.as_ptr().add(row * a.row), a.row, a.col),
                            (b.as_ptr().add(column), b_row),
                            (start.add(row * c_row + column), c_row),
                            add,
                        );
                    }
                    row += $rows;
                }};
            }
            match ((m - row).min(L::ROWS), vectors) {
                (8.., 2..) => block!(8, 2),
                (8.., _) => block!(8, 1),
                (4.., 2..) => block!(4, 2),
                (4.., _) => block!(4, 1),
                (_, 2..) => block!(1, 2),
                _ => block!(1, 1),
            }
        }
        column += vectors * 16;
    }
    for i in 0..m {
        let line = c.row_mut(i);
        for j in wide..n {
            let mut sum = if add { line[j] } else { 0.0 };
            for l in 0..k {
                sum += a.data[i * a.row + l * a.col] * b[l * b_row + j];
            }
            line[j] = sum;
        }
    }
}

/// `R` rows × `V` vectors.
///
/// # Safety
/// All numbers of the block lie in memory that is valid for it.
#[inline(always)]
unsafe fn block<L: Lanes, const R: usize, const V: usize>(
    k: usize,
    (a, a_row, a_col): (*const f32, usize, usize),
    (b, b_row): (*const f32, usize),
    (c, c_row): (*mut f32, usize),
    add: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[L::all(0.0); V]; R];
        if add {
            for r in 0..R {
                for v in 0..V {
                    sums[r][v] = L::load_floats(c.add(r * c_row + v * 16));
                }
            }
        }
        for l in 0..k {
            let mut columns = [L::all(0.0); V];
            for v in 0..V {
                columns[v] = L::load_floats(b.add(l * b_row + v * 16));
            }
            for r in 0..R {
                let factor = L::all(*a.add(r * a_row + l * a_col));
                for v in 0..V {
                    sums[r][v] = L::madd(factor, columns[v], sums[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                L::store_floats(c.add(r * c_row + v * 16), sums[r][v]);
            }
        }
    }
}
