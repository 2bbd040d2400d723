//! GEMM of f16 matrices with AVX512-FP16: chains of at most [`F16_CHAIN`] products are summed in
//! f16, the chains in f32.
#![allow(unsafe_code, reason = "vector instructions over addresses that callers keep in bounds")]

use std::arch::x86_64::*;

/// Elements of a vector.
pub(super) const F16_LANES: usize = 32;

/// Largest magnitude of a scaled query. An f16 accumulator of decode sums 18 products (a row of 576
/// elements in 32 lanes), and four accumulators are added in f16: 4 · 18 · 65504 / 128 is finite.
const MAX_QUERY: f32 = 1.0 / 128.0;

/// Products that are summed in f16 before the sum is widened to f32: bounds both overflow and
/// rounding errors.
pub(super) const F16_CHAIN: usize = 64;

/// The left factor: each element twice as f16, so that one 32-bit broadcast fills a vector with it.
#[derive(Clone, Copy)]
pub(super) struct LeftFactor {
    pub start: *const u32,
    /// Elements from one row to the next.
    pub row: usize,
    /// Elements from one column to the next.
    pub column: usize,
}

/// How a product is combined with the sums in memory.
#[derive(Clone, Copy)]
pub(super) enum Accumulation<'a> {
    Replace,
    Add,
    /// Row i of the product times its factor replaces the sums. For at most [`F16_CHAIN`] columns
    /// of the left factor.
    First(&'a [f32]),
    /// Row i is rescaled by the first factor, and the product's row times the second is added. For
    /// at most [`F16_CHAIN`] columns of the left factor.
    Scale(&'a [f32], &'a [f32]),
}

/// Shape, right factor and result of a GEMM.
#[derive(Clone, Copy)]
pub(super) struct F16Gemm {
    /// Rows of the left factor.
    pub rows: usize,
    /// Columns of the left factor.
    pub k: usize,
    /// Columns of the right factor; rows of the result have room for whole vectors.
    pub columns: usize,
    /// Right factor: rows of f16.
    pub right: *const u16,
    /// Elements from one row of `right` to the next.
    pub right_row: usize,
    /// Result: rows of f32.
    pub out: *mut f32,
    /// Elements from one row of `out` to the next.
    pub out_row: usize,
}

/// left · right. Prefetches one cache line from `ahead` on per two rows of the right factor, in
/// every pass over them.
///
/// # Safety
/// The addresses are valid for the shape; the caller is compiled for AVX512-FP16.
#[inline(always)]
pub(super) unsafe fn multiply(
    left: LeftFactor,
    product: &F16Gemm,
    old: Accumulation<'_>,
    ahead: &mut Option<*const u8>,
) {
    let mut row = 0;
    while row < product.rows {
        let mut column = 0;
        macro_rules! strips {
            ($rows:literal) => {{
                // SAFETY: the tile's rows and columns are inside the shape, whose addresses the
                // caller keeps valid.
                unsafe {
                    // Single vectors are always masked, which costs little: most widths are
                    // multiples of 64 columns.
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
        // 8 rows × 2 vectors are sixteen accumulators.
        match product.rows - row {
            8.. => strips!(8),
            4.. => strips!(4),
            _ => strips!(1),
        }
    }
}

/// A register tile of `R` rows and `V` vectors of columns; `MASKED`: the last vector is partial.
///
/// # Safety
/// As for [`multiply`]; the tile begins inside the shape.
#[inline(always)]
unsafe fn strip<const R: usize, const V: usize, const MASKED: bool>(
    left: LeftFactor,
    product: &F16Gemm,
    old: Accumulation<'_>,
    (row, column): (usize, usize),
    ahead: &mut Option<*const u8>,
) {
    // SAFETY: rows, columns and terms below those of the shape; masked lanes are not read.
    unsafe {
        let mask = (1u64 << (product.columns - column).min(F16_LANES)).wrapping_sub(1) as u32;
        let mut right = product.right.add(column);
        let mut factor = left.start.add(row * left.row);
        let out = product.out.add(row * product.out_row + column);
        let mut first = true;
        let mut k = 0;
        // After each chain the f16 sums are added to f32 in memory, and start again from 0.
        while k < product.k {
            let end = (k + F16_CHAIN).min(product.k);
            let mut acc = [[_mm512_setzero_ph(); V]; R];
            while k < end {
                let mut line = [_mm512_setzero_ph(); V];
                for v in 0..V {
                    let at = right.add(v * F16_LANES);
                    line[v] = if MASKED { load_some(mask, at) } else { load(at) };
                }
                for r in 0..R {
                    let w = _mm512_castsi512_ph(_mm512_set1_epi32(*factor.add(r * left.row) as i32));
                    for v in 0..V {
                        acc[r][v] = _mm512_fmadd_ph(w, line[v], acc[r][v]);
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
            // Unrolled, since indices at run time would keep the accumulators in memory
            // (`unrolled!`).
            macro_rules! rows {
                ($($r:literal)*) => {$(
                    if $r < R {
                        for v in 0..V {
                            let at = out.add($r * product.out_row + v * F16_LANES);
                            join(acc[$r.min(R - 1)][v], at, old, row + $r, first);
                        }
                    }
                )*};
            }
            rows!(0 1 2 3 4 5 6 7);
            first = false;
        }
    }
}

/// Combines the accumulator of a row with the sums in memory.
///
/// # Safety
/// 32 elements at `out`, and factors for the row; the caller is compiled for AVX512-FP16.
#[inline(always)]
unsafe fn join(acc: __m512h, out: *mut f32, old: Accumulation<'_>, row: usize, first: bool) {
    // SAFETY: two halves of 16 of the 32 elements at `out`, and a factor of the row, by this
    // function's contract.
    unsafe {
        let all = _mm512_castph_si512(acc);
        let halves = [_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all)];
        for (i, half) in halves.into_iter().enumerate() {
            let out = out.add(16 * i);
            let new = _mm512_cvtxph_ps(_mm256_castsi256_ph(half));
            let new = match old {
                Accumulation::Replace if first => new,
                Accumulation::First(beta) => _mm512_mul_ps(new, _mm512_set1_ps(*beta.get_unchecked(row))),
                Accumulation::Replace | Accumulation::Add => _mm512_add_ps(_mm512_loadu_ps(out), new),
                Accumulation::Scale(alpha, beta) => {
                    let new = _mm512_mul_ps(new, _mm512_set1_ps(*beta.get_unchecked(row)));
                    let alpha = _mm512_set1_ps(*alpha.get_unchecked(row));
                    _mm512_fmadd_ps(_mm512_loadu_ps(out), alpha, new)
                }
            };
            _mm512_storeu_ps(out, new);
        }
    }
}

/// Prefetches one cache line.
///
/// # Safety
/// The caller is compiled for AVX512-FP16.
#[inline(always)]
pub(super) unsafe fn prefetch(ahead: &mut *const u8) {
    // SAFETY: a prefetch of any address is allowed.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(ahead.cast()) };
    *ahead = ahead.wrapping_add(64);
}

/// 32 elements.
///
/// # Safety
/// They are at `from`; the caller is compiled for AVX512-FP16.
#[inline(always)]
pub(super) unsafe fn load(from: *const u16) -> __m512h {
    // SAFETY: 32 elements by this function's contract.
    unsafe { _mm512_castsi512_ph(_mm512_loadu_si512(from.cast())) }
}

/// The elements of the mask, and zeros.
///
/// # Safety
/// They are at `from`; the caller is compiled for AVX512-FP16.
#[inline(always)]
pub(super) unsafe fn load_some(mask: __mmask32, from: *const u16) -> __m512h {
    // SAFETY: elements of the mask by this function's contract; masked lanes are not read.
    unsafe { _mm512_castsi512_ph(_mm512_maskz_loadu_epi16(mask, from.cast())) }
}

/// Sixteen elements as f16, each twice, as in a left factor.
///
/// # Safety
/// The caller is compiled for AVX512-FP16.
#[inline(always)]
pub(super) unsafe fn splat_pairs_f16(elements: __m512) -> __m512i {
    // SAFETY: registers only, in a caller compiled for AVX512-FP16.
    unsafe {
        let halves = _mm512_cvtepu16_epi32(_mm256_castph_si256(_mm512_cvtxps_ph(elements)));
        _mm512_or_si512(halves, _mm512_slli_epi32::<16>(halves))
    }
}

/// Runs `$body` with the address of each sixteen elements of a row, the last padded with zeros.
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
/// Largest magnitude of a row.
///
/// # Safety
/// The caller is compiled for AVX512-FP16.
#[inline(always)]
unsafe fn largest(row: &[f32]) -> f32 {
    // SAFETY: sixteen elements at the address of each line, in a caller compiled for AVX512-FP16.
    unsafe {
        let mut lanes = _mm512_setzero_ps();
        for_vectors!(row, line => lanes = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(line)), lanes));
        _mm512_reduce_max_ps(lanes)
    }
}

/// Scales a row to at most [`MAX_QUERY`], as a left factor: each element twice as f16. Returns the
/// factor that undoes the scaling.
///
/// # Safety
/// The caller is compiled for AVX512-FP16.
#[inline(always)]
pub(super) unsafe fn factor_row(row: &[f32], out: &mut [u32]) -> f32 {
    assert!(out.len() >= row.len().next_multiple_of(16), "room for whole vectors");
    // SAFETY: sixteen elements per line and place, in a caller compiled for AVX512-FP16.
    unsafe {
        let largest = largest(row);
        // A row of zeros has the factor 0: `MAX_QUERY` / 0 is infinite, and 0 · ∞ is NaN.
        let factor = if largest > 0.0 { MAX_QUERY / largest } else { 0.0 };
        let mut places = out.chunks_exact_mut(16);
        for_vectors!(row, line => {
            let scaled = _mm512_mul_ps(_mm512_loadu_ps(line), _mm512_set1_ps(factor));
            if let Some(place) = places.next() {
                _mm512_storeu_si512(place.as_mut_ptr().cast(), splat_pairs_f16(scaled));
            }
        });
        if largest > 0.0 { largest / MAX_QUERY } else { 0.0 }
    }
}

/// Scales a row to at most [`MAX_QUERY`] and rounds it to f16. Returns the factor that undoes the
/// scaling.
///
/// # Safety
/// The caller is compiled for AVX512-FP16.
#[inline(always)]
pub(super) unsafe fn scale_to_f16(row: &[f32], out: &mut [u32]) -> f32 {
    assert!(out.len() * 2 >= row.len().next_multiple_of(16), "room for whole vectors");
    // SAFETY: the caller is compiled for AVX512-FP16.
    let largest = unsafe { largest(row) };
    if largest == 0.0 {
        out.fill(0);
        return 0.0;
    }
    let factor = MAX_QUERY / largest;
    // SAFETY: sixteen f16 per place of eight words, in a caller compiled for AVX512-FP16.
    unsafe {
        let mut places = out.chunks_exact_mut(8);
        for_vectors!(row, line => {
            let scaled = _mm512_mul_ps(_mm512_loadu_ps(line), _mm512_set1_ps(factor));
            if let Some(place) = places.next() {
                _mm256_storeu_si256(place.as_mut_ptr().cast(), _mm256_castph_si256(_mm512_cvtxps_ph(scaled)));
            }
        });
    }
    1.0 / factor
}
