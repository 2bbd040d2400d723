//! Products of f16 matrices with AVX512-FP16: at most [`F16_CHAIN`] products are summed in f16, such sums in f32.
#![allow(unsafe_code, reason = "vector instructions over addresses that callers keep in bounds")]

use std::arch::x86_64::*;

/// Numbers of a vector.
pub(super) const F16_LANES: usize = 32;

/// Products of one sum in f16.
pub(super) const F16_CHAIN: usize = 64;

/// The left factor: each number twice as f16, so that one load fills a vector with it.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub start: *const u32,
    /// Numbers between rows.
    pub row: usize,
    /// Numbers between columns.
    pub column: usize,
}

/// What becomes of the numbers that are there.
#[derive(Clone, Copy)]
pub(super) enum Old<'a> {
    /// They are replaced.
    Replace,
    /// They are added to.
    Add,
    /// Row i becomes the product's times its factor. For at most [`F16_CHAIN`] columns.
    First(&'a [f32]),
    /// Row i becomes itself times the first factor plus the product's row times the second. For at most [`F16_CHAIN`] columns.
    Scale(&'a [f32], &'a [f32]),
}

/// The shape of a product and its right factor and result.
#[derive(Clone, Copy)]
pub(super) struct Product {
    /// Rows of the left factor.
    pub rows: usize,
    /// Its columns.
    pub k: usize,
    /// Columns of the right factor; the result has room for whole vectors.
    pub columns: usize,
    /// Rows of f16.
    pub right: *const u16,
    /// Numbers between them.
    pub right_row: usize,
    /// Rows of f32.
    pub out: *mut f32,
    /// Numbers between them.
    pub out_row: usize,
}

/// left · right. One line of memory from `ahead` on is asked for with every other row of the right factor, each time that it is read.
///
/// # Safety
/// All numbers lie in memory that is valid for it; the processor has AVX512-FP16, and the caller is compiled for it.
#[inline(always)]
pub(super) unsafe fn multiply(left: Left, product: &Product, old: Old<'_>, ahead: &mut Option<*const u8>) {
    let mut row = 0;
    while row < product.rows {
        let mut column = 0;
        macro_rules! strips {
            ($rows:literal) => {{
                // SAFETY: the caller's promise; rows and columns lie inside.
                unsafe {
                    while column + 2 * F16_LANES <= product.columns {
                        strip::<$rows, 2, false>(left, product, old, (row, column), ahead);
                        column += 2 * F16_LANES;
                    }
                    while column < product.columns {
                        strip::<$rows, 1, true>(left, product, old, (row, column), ahead);
                        column += F16_LANES;
                    }
                }
                row += $rows;
            }};
        }
        match product.rows - row {
            8.. => strips!(8),
            4.. => strips!(4),
            _ => strips!(1),
        }
    }
}

/// `R` rows and `V` vectors of columns; `MASKED`: the last vector is not whole.
#[inline(always)]
unsafe fn strip<const R: usize, const V: usize, const MASKED: bool>(
    left: Left,
    product: &Product,
    old: Old<'_>,
    (row, column): (usize, usize),
    ahead: &mut Option<*const u8>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mask = (1u64 << (product.columns - column).min(F16_LANES)).wrapping_sub(1) as u32;
        let mut right = product.right.add(column);
        let mut factor = left.start.add(row * left.row);
        let out = product.out.add(row * product.out_row + column);
        let mut first = true;
        let mut k = 0;
        while k < product.k {
            let end = (k + F16_CHAIN).min(product.k);
            let mut found = [[_mm512_setzero_ph(); V]; R];
            while k < end {
                let mut line = [_mm512_setzero_ph(); V];
                for v in 0..V {
                    let at = right.add(v * F16_LANES);
                    line[v] = if MASKED { load_some(mask, at) } else { load(at) };
                }
                for r in 0..R {
                    let w = _mm512_castsi512_ph(_mm512_set1_epi32(*factor.add(r * left.row) as i32));
                    for v in 0..V {
                        found[r][v] = _mm512_fmadd_ph(w, line[v], found[r][v]);
                    }
                }
                if k.is_multiple_of(2)
                    && let Some(ahead) = ahead
                {
                    prefetch(ahead);
                }
                right = right.wrapping_add(product.right_row);
                factor = factor.wrapping_add(left.column);
                k += 1;
            }
            // rows by name: with numbers that the compiler does not know, the sums would live in memory
            macro_rules! rows {
                ($($r:literal)*) => {$(
                    if $r < R {
                        for v in 0..V {
                            let at = out.add($r * product.out_row + v * F16_LANES);
                            put(found[$r.min(R - 1)][v], at, old, row + $r, first);
                        }
                    }
                )*};
            }
            rows!(0 1 2 3 4 5 6 7);
            first = false;
        }
    }
}

/// A vector of a row's results joins what is there.
#[inline(always)]
unsafe fn put(found: __m512h, out: *mut f32, old: Old<'_>, row: usize, first: bool) {
    // SAFETY: the caller's promise: 32 numbers at `out`, factors for the row.
    unsafe {
        let all = _mm512_castph_si512(found);
        let halves = [_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all)];
        for (i, half) in halves.into_iter().enumerate() {
            let out = out.add(16 * i);
            let new = _mm512_cvtxph_ps(_mm256_castsi256_ph(half));
            let new = match old {
                Old::Replace if first => new,
                Old::First(beta) => _mm512_mul_ps(new, _mm512_set1_ps(*beta.get_unchecked(row))),
                Old::Replace | Old::Add => _mm512_add_ps(_mm512_loadu_ps(out), new),
                Old::Scale(alpha, beta) => {
                    let new = _mm512_mul_ps(new, _mm512_set1_ps(*beta.get_unchecked(row)));
                    let alpha = _mm512_set1_ps(*alpha.get_unchecked(row));
                    _mm512_fmadd_ps(_mm512_loadu_ps(out), alpha, new)
                }
            };
            _mm512_storeu_ps(out, new);
        }
    }
}

/// Asks for one line of memory.
#[inline(always)]
pub(super) unsafe fn prefetch(ahead: &mut *const u8) {
    // SAFETY: asking for any address is allowed.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(ahead.cast()) };
    *ahead = ahead.wrapping_add(64);
}

#[inline(always)]
pub(super) unsafe fn load(from: *const u16) -> __m512h {
    // SAFETY: the caller's promise.
    unsafe { _mm512_castsi512_ph(_mm512_loadu_si512(from.cast())) }
}

#[inline(always)]
pub(super) unsafe fn load_some(mask: __mmask32, from: *const u16) -> __m512h {
    // SAFETY: the caller's promise for the lanes of the mask; others are not read.
    unsafe { _mm512_castsi512_ph(_mm512_maskz_loadu_epi16(mask, from.cast())) }
}

/// 2^x for x ≤ 0 or −∞: relative error below 3e-7.
#[inline(always)]
pub(super) unsafe fn exp2(x: __m512) -> __m512 {
    // SAFETY: register to register, with the tier's instructions.
    unsafe {
        // far enough to be 0 in f32, and never −∞ − −∞
        let x = _mm512_max_ps(x, _mm512_set1_ps(-200.0));
        let n = _mm512_roundscale_ps::<0>(x);
        let r = _mm512_sub_ps(x, n);
        // 2^r for |r| ≤ 1/2: the first terms of the series of e^(r ln 2), the last one rounded up to spread the error
        let mut p = _mm512_set1_ps(1.54e-4);
        for term in [1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 0.240_226_5, std::f32::consts::LN_2, 1.0] {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(term));
        }
        _mm512_scalef_ps(p, n)
    }
}

/// Sixteen numbers as f16, each twice, as a left factor has them.
#[inline(always)]
pub(super) unsafe fn splat_pairs_f16(numbers: __m512) -> __m512i {
    // SAFETY: register to register, with the tier's instructions.
    unsafe {
        let halves = _mm512_cvtepu16_epi32(_mm256_castph_si256(_mm512_cvtxps_ph(numbers)));
        _mm512_or_si512(halves, _mm512_slli_epi32::<16>(halves))
    }
}

/// The same memory as bits.
pub(super) fn bits(numbers: &mut [f32]) -> &mut [u32] {
    // SAFETY: the same size and alignment, and any bits are a number.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), numbers.len()) }
}

/// Does something with the address of each sixteen numbers of a row, the last filled up with zeros.
macro_rules! for_vectors {
    ($row:expr, $line:ident => $body:expr) => {{
        let row: &[f32] = $row;
        let whole = row.len() / 16 * 16;
        for $line in row[..whole].chunks_exact(16).map(<[f32]>::as_ptr) {
            $body;
        }
        if whole < row.len() {
            let mut last = [0.0f32; 16];
            last[..row.len() - whole].copy_from_slice(&row[whole..]);
            let $line = last.as_ptr();
            $body;
        }
    }};
}
pub(super) use for_vectors;

/// Largest magnitude of a row.
#[inline(always)]
pub(super) unsafe fn largest(row: &[f32]) -> f32 {
    // SAFETY: sixteen numbers of each line, with the tier's instructions.
    unsafe {
        let mut lanes = _mm512_setzero_ps();
        for_vectors!(row, line => lanes = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(line)), lanes));
        _mm512_reduce_max_ps(lanes)
    }
}
