//! Rows of the cache: stored, loaded, and found through page tables.

use crate::activation::code_scale;
use crate::shape::{ShapeError, times};
use crate::simd::Simd;
use latent_types::{CacheRow, CacheType};

/// What codes of `int8` are raised by, so that they have no sign: instructions multiply such with signed numbers.
pub(super) const CODE_BIAS: f32 = 128.0;

/// The cached rows of one sequence in one stream. Rows of a page follow one another, and all pages of the table lie in the memory: kernels
/// read them by address. So the parts cannot be changed once they were compared:
///
/// ```compile_fail
/// let row = latent_types::CacheRow { ty: latent_types::CacheType::F32, content: 4, rope: 2 };
/// let mut view = latent_kernels::CacheView::new(row, &[0; 24 * 64], 64, &[0]).unwrap();
/// view.row_bytes = 1 << 20;
/// ```
#[derive(Clone, Copy)]
pub struct CacheView<'a> {
    ty: CacheType,
    /// The memory of the whole stream.
    bytes: &'a [u8],
    /// Rows of a page.
    page_rows: usize,
    row_bytes: usize,
    width: usize,
    /// The page of each block of rows.
    table: &'a [u32],
}

impl<'a> CacheView<'a> {
    /// Rows stored as `row` says in the memory of a stream, whose pages have `page_rows` rows; `table` has the page of each `page_rows` rows.
    ///
    /// # Errors
    /// When there are no rows in a page, a size overflows, or a page lies outside of the memory.
    pub fn new(
        row: CacheRow,
        bytes: &'a [u8],
        page_rows: usize,
        table: &'a [u32],
    ) -> Result<CacheView<'a>, ShapeError> {
        // rows of fewer elements than this have a width and a number of bytes
        const MOST: usize = usize::MAX >> 4;
        let (what, expected) =
            ("a side of the cache", "one element or more, and less than a sixteenth of the memory");
        for value in [page_rows, row.content.max(row.rope)] {
            if value == 0 || value > MOST {
                return Err(ShapeError::Range { what, value, expected });
            }
        }
        let (width, row_bytes) = (row.width(), row.bytes());
        let pages = bytes.len() / times("a page of the cache", page_rows, row_bytes)?;
        if let Some(&page) = table.iter().max()
            && page as usize >= pages
        {
            return Err(ShapeError::Page { page, pages });
        }
        Ok(CacheView { ty: row.ty, bytes, page_rows, row_bytes, width, table })
    }

    /// How numbers are stored.
    pub fn ty(&self) -> CacheType {
        self.ty
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Numbers of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// One row.
    #[inline]
    pub fn row(&self, index: usize) -> &'a [u8] {
        let page = self.table[index / self.page_rows] as usize;
        let at = (page * self.page_rows + index % self.page_rows) * self.row_bytes;
        &self.bytes[at..at + self.row_bytes]
    }

    /// How many rows lie one after the other from `start` on, at most `most` and none beyond the page or `end`; and where memory is to be
    /// asked for: what follows a piece is most often this thread's next one.
    ///
    /// They are rows of one page: where the table has one for the first of them, which [`row`](Self::row) asserts, all lie in the memory.
    #[inline(always)]
    pub(crate) fn together(&self, start: usize, end: usize, most: usize) -> (usize, *const u8) {
        let count = most.min(end - start).min(self.page_rows - start % self.page_rows);
        let next = (start + count).min(self.table.len() * self.page_rows - 1);
        (count, self.row(next).as_ptr())
    }
}

/// Writes a row of numbers as the cache stores them, rounded to nearest even.
///
/// Of `int8` the scale is the largest magnitude of the content / 127; content with an infinite number or NaN becomes NaN.
///
/// # Panics
/// When there are other than `row.width()` numbers or `row.bytes()` bytes.
#[inline(always)]
pub fn store_row(row: CacheRow, numbers: &[f32], out: &mut [u8]) {
    check_row(row, numbers.len(), out.len());
    if row.ty.is_float() {
        return store_floats(row.ty, numbers, out);
    }
    let (codes, out) = out.split_at_mut(row.content);
    let (rope, scale) = out.split_at_mut(out.len() - size_of::<f32>());
    scale.copy_from_slice(&quantize(&numbers[..row.content], codes).to_le_bytes());
    store_floats(row.ty, &numbers[row.content..], rope);
}

/// Writes some numbers of a row, from `first` on; of `int8`, of its rope part.
///
/// # Panics
/// When they are beyond the row, or in the codes of `int8`.
pub fn store_part(row: CacheRow, first: usize, numbers: &[f32], out: &mut [u8]) {
    check_row(row, row.width(), out.len());
    let at = if row.ty.is_float() {
        first * row.ty.float_bytes()
    } else {
        assert!(first >= row.content, "codes of a row can only be written together");
        row.content + (first - row.content) * row.ty.float_bytes()
    };
    assert!(first + numbers.len() <= row.width(), "numbers from {first} on of {}", row.width());
    store_floats(row.ty, numbers, &mut out[at..at + numbers.len() * row.ty.float_bytes()]);
}

/// Reads a row.
///
/// # Panics
/// When there are other than `row.width()` numbers or `row.bytes()` bytes.
#[inline(always)]
pub fn load_row(row: CacheRow, bytes: &[u8], out: &mut [f32]) {
    check_row(row, out.len(), bytes.len());
    load_part(row, bytes, 0, out);
}

/// Reads some numbers of a row, from `first` on.
///
/// # Panics
/// When they are beyond the row.
#[inline(always)]
pub fn load_part(row: CacheRow, bytes: &[u8], first: usize, out: &mut [f32]) {
    let size = row.ty.float_bytes();
    if row.ty.is_float() {
        return load_floats(row.ty, &bytes[first * size..(first + out.len()) * size], out);
    }
    let (codes, floats, scale) = int8_parts(row, bytes);
    let count = row.content.saturating_sub(first).min(out.len());
    let (content, rope) = out.split_at_mut(count);
    if count > 0 {
        for (out, code) in content.iter_mut().zip(&codes[first..first + count]) {
            *out = (f32::from(*code) - CODE_BIAS) * scale;
        }
    }
    if !rope.is_empty() {
        let first = first + count - row.content;
        load_floats(row.ty, &floats[first * size..(first + rope.len()) * size], rope);
    }
}

#[inline(always)]
fn check_row(row: CacheRow, numbers: usize, bytes: usize) {
    assert!(
        numbers == row.width() && bytes == row.bytes(),
        "{numbers} numbers and {bytes} bytes of a cache row of {}",
        row.width()
    );
}

/// The codes of a row of `int8`, its rope part, and its scale.
#[inline(always)]
fn int8_parts(row: CacheRow, bytes: &[u8]) -> (&[u8], &[u8], f32) {
    let (codes, rest) = bytes.split_at(row.content);
    let (rope, scale) = rest.split_at(row.rope * row.ty.float_bytes());
    (codes, rope, scale_of(scale))
}

/// The scale of a row of `int8`: what it ends with.
#[inline(always)]
pub(crate) fn scale_of(row: &[u8]) -> f32 {
    row.last_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes))
}

/// Sixteen codes of a row of `int8` times its scale.
///
/// # Safety
/// As for [`Simd`]; sixteen codes lie there.
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
pub(crate) unsafe fn widen_codes<L: Simd>(codes: *const u8, scale: f32) -> L::F32x16 {
    // SAFETY: the caller's promise.
    unsafe {
        // exact, fused or not
        let centered =
            L::mul_add_relaxed(L::load_u8(codes, 0, 0xff), L::splat_f32(1.0), L::splat_f32(-CODE_BIAS));
        L::mul(centered, L::splat_f32(scale))
    }
}

/// Rounds numbers to codes from −127 to 127, which are stored raised by 128. Returns their scale.
#[inline(always)]
fn quantize(numbers: &[f32], codes: &mut [u8]) -> f32 {
    // the bits of magnitudes sort like integers, and NaN sorts above all
    let largest = numbers.iter().map(|v| (v.to_bits() & 0x7fff_ffff).cast_signed()).fold(0, i32::max);
    let largest = f32::from_bits(largest.cast_unsigned());
    let Some((scale, inverse)) = code_scale(largest) else {
        codes.fill(CODE_BIAS as u8);
        return f32::NAN;
    };
    for (code, v) in codes.iter_mut().zip(numbers) {
        // adding 1.5 · 2^23 rounds to the nearest integer, even, and leaves it in the low bits; 128 more raise it
        *code = ((v * inverse + 12_582_912.0).to_bits() as u8) ^ 0x80;
    }
    scale
}

#[inline(always)]
fn store_floats(ty: CacheType, numbers: &[f32], out: &mut [u8]) {
    match ty {
        CacheType::F32 => {
            for (out, v) in out.chunks_exact_mut(4).zip(numbers) {
                out.copy_from_slice(&v.to_le_bytes());
            }
        }
        CacheType::F16 | CacheType::Int8 => {
            for (out, v) in out.chunks_exact_mut(2).zip(numbers) {
                out.copy_from_slice(&half::f16::from_f32(*v).to_le_bytes());
            }
        }
        CacheType::Bf16 => {
            for (out, v) in out.chunks_exact_mut(2).zip(numbers) {
                out.copy_from_slice(&half::bf16::from_f32(*v).to_le_bytes());
            }
        }
    }
}

#[inline(always)]
fn load_floats(ty: CacheType, bytes: &[u8], out: &mut [f32]) {
    match ty {
        CacheType::F32 => {
            for (out, v) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *out = f32::from_le_bytes([v[0], v[1], v[2], v[3]]);
            }
        }
        CacheType::F16 | CacheType::Int8 => {
            for (out, v) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *out = crate::widen::f16(u16::from_le_bytes([v[0], v[1]]));
            }
        }
        CacheType::Bf16 => {
            for (out, v) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *out = crate::widen::bf16(u16::from_le_bytes([v[0], v[1]]));
            }
        }
    }
}

/// Reads a row in the lanes of an instruction set.
///
/// # Panics
/// When there are other than `row.width()` numbers or `row.bytes()` bytes.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
pub(super) unsafe fn widen<L: Simd>(row: CacheRow, bytes: &[u8], out: &mut [f32]) {
    check_row(row, out.len(), bytes.len());
    // SAFETY: the caller's promise.
    unsafe {
        if row.ty.is_float() {
            return widen_floats::<L>(row.ty, bytes, out);
        }
        let (codes, floats, scale) = int8_parts(row, bytes);
        let (content, rope) = out.split_at_mut(row.content);
        let (mut to, mut from) = (content.chunks_exact_mut(16), codes.chunks_exact(16));
        for (out, codes) in (&mut to).zip(&mut from) {
            L::store_f32(out.as_mut_ptr(), widen_codes::<L>(codes.as_ptr(), scale));
        }
        for (out, code) in to.into_remainder().iter_mut().zip(from.remainder()) {
            *out = (f32::from(*code) - CODE_BIAS) * scale;
        }
        widen_floats::<L>(row.ty, floats, rope);
    }
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
unsafe fn widen_floats<L: Simd>(ty: CacheType, bytes: &[u8], out: &mut [f32]) {
    let whole = out.len() / 16 * 16;
    let (out, rest) = out.split_at_mut(whole);
    let (bytes, rest_bytes) = bytes.split_at(whole * ty.float_bytes());
    macro_rules! each {
        ($load:expr) => {
            for (out, from) in out.chunks_exact_mut(16).zip(bytes.chunks_exact(16 * ty.float_bytes())) {
                // SAFETY: sixteen numbers here and there.
                unsafe { L::store_f32(out.as_mut_ptr(), $load(from.as_ptr())) };
            }
        };
    }
    match ty {
        CacheType::F32 => each!(|from: *const u8| L::load_f32(from.cast())),
        CacheType::F16 | CacheType::Int8 => each!(|from| L::load_f16(from)),
        CacheType::Bf16 => each!(|from| L::load_bf16(from)),
    }
    load_floats(ty, rest_bytes, rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: CacheRow = CacheRow { ty: CacheType::F16, content: 4, rope: 2 };

    #[test]
    fn a_table_names_pages_of_the_memory() {
        let bytes = vec![0; 2 * 64 * 12];
        assert!(CacheView::new(ROW, &bytes, 64, &[1, 0, 1]).is_ok());
        assert_eq!(
            CacheView::new(ROW, &bytes, 64, &[0, 2]).err(),
            Some(ShapeError::Page { page: 2, pages: 2 })
        );
        // the last row of the second page is missing
        assert!(CacheView::new(ROW, &bytes[12..], 64, &[1]).is_err());
        let view = CacheView::new(ROW, &bytes, 64, &[1]).unwrap();
        assert_eq!(view.together(0, 128, 64).0, 64);
        assert_eq!(view.row(63).as_ptr(), bytes[127 * 12..].as_ptr());
        assert!(std::panic::catch_unwind(|| view.row(64).len()).is_err());
    }

    #[test]
    fn sizes_that_are_nothing_or_overflow_are_refused() {
        assert!(CacheView::new(ROW, &[0; 12], 0, &[]).is_err());
        assert!(CacheView::new(ROW, &[0; 12], 1 << 62, &[0]).is_err());
        for (content, rope) in [(0, 0), (usize::MAX, 2), (1 << 62, 1 << 62)] {
            for ty in CacheType::ALL {
                assert!(CacheView::new(CacheRow { ty, content, rope }, &[0; 64], 1, &[0]).is_err());
            }
        }
    }
}
