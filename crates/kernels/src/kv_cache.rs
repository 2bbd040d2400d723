//! KV cache rows: quantization, dequantization, and lookup through a sequence's block table.

mod quantized;

#[cfg(target_arch = "x86_64")]
pub(crate) use quantized::dequantize32;

use crate::shape::{ShapeError, times};
use crate::simd::Simd;
use latent_types::{CacheRow, CacheType};

/// Bytes of a CPU cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// Prefetch of the rows that follow a block.
// Kernels spread it evenly over QK and PV of the current block: 260 instead of 330 ns per row
// (Xeon).
// measured: docs/notes/memory-and-prefetch.md "Layout and prefetch"
#[derive(Clone, Copy)]
pub(crate) struct KvPrefetch {
    /// Address of the next cache line. Kernels that spread prefetches evenly advance it themselves.
    pub next: *const u8,
    /// Remaining cache lines. They cover as many bytes as the block has.
    pub lines: usize,
}

impl KvPrefetch {
    /// Prefetches up to `lines` of the remaining lines.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    #[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
    pub unsafe fn prefetch<S: Simd>(&mut self, lines: usize) {
        // SAFETY: the caller is compiled for `S`.
        unsafe { self.prefetch_all::<S>(lines.min(self.lines)) }
    }

    /// Prefetches `lines` lines without checking how many remain.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    #[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
    pub unsafe fn prefetch_all<S: Simd>(&mut self, lines: usize) {
        for _ in 0..lines {
            // SAFETY: a prefetch of any address is allowed, and the caller is compiled for `S`.
            unsafe { S::prefetch_far(self.next) };
            self.next = self.next.wrapping_add(CACHE_LINE);
        }
        self.lines = self.lines.saturating_sub(lines);
    }
}

/// The cached rows of one sequence in one layer. Rows of a page are consecutive, and all pages of
/// the block table are inside the memory. Kernels read rows by address, so fields are private and
/// cannot change after the check:
///
/// ```compile_fail
/// let row = latent_types::CacheRow { ty: latent_types::CacheType::F32, content: 4, rope: 2 };
/// let mut view = latent_kernels::CacheView::new(row, &[0; 24 * 64], 64, &[0]).unwrap();
/// view.row_bytes = 1 << 20;
/// ```
#[derive(Clone, Copy)]
pub struct CacheView<'a> {
    ty: CacheType,
    /// The memory of the whole layer.
    bytes: &'a [u8],
    page_rows: usize,
    row_bytes: usize,
    width: usize,
    /// The block table: the page of each `page_rows` rows.
    table: &'a [u32],
}

impl<'a> CacheView<'a> {
    /// Rows of the format `row` in the memory of a layer, in pages of `page_rows` rows; `table` has
    /// the page of each `page_rows` rows of the sequence.
    ///
    /// # Errors
    /// When `page_rows` is 0, a size overflows, or a page is outside the memory.
    pub fn new(
        row: CacheRow,
        bytes: &'a [u8],
        page_rows: usize,
        table: &'a [u32],
    ) -> Result<CacheView<'a>, ShapeError> {
        // Up to this size, neither the width (content + RoPE part) nor the bytes of a row (at most
        // 4 per element) overflow.
        const MAX_SIDE: usize = usize::MAX >> 4;
        let (what, expected) =
            ("a side of the cache", "one element or more, and less than a sixteenth of the memory");
        for value in [page_rows, row.content.max(row.rope)] {
            if value == 0 || value > MAX_SIDE {
                return Err(ShapeError::Range { what, value, expected });
            }
        }
        let (width, row_bytes) = (row.width(), row.bytes());
        // Rounded down: a last page that is cut off does not count, since kernels read whole pages.
        let pages = bytes.len() / times("a page of the cache", page_rows, row_bytes)?;
        if let Some(&page) = table.iter().max()
            && page as usize >= pages
        {
            return Err(ShapeError::Page { page, pages });
        }
        Ok(CacheView { ty: row.ty, bytes, page_rows, row_bytes, width, table })
    }

    /// Element type.
    pub fn ty(&self) -> CacheType {
        self.ty
    }

    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    #[inline]
    pub fn row(&self, index: usize) -> &'a [u8] {
        let page = self.table[index / self.page_rows] as usize;
        let at = (page * self.page_rows + index % self.page_rows) * self.row_bytes;
        &self.bytes[at..at + self.row_bytes]
    }

    /// The block of rows that begins with `start`: its number of rows, and the prefetch of the rows
    /// after it, which usually are this thread's next block. A block has at most `max_rows` rows
    /// and ends with the page or at `end`.
    ///
    /// All rows of a block are in one page. [`row`](Self::row) asserts that the block table has a
    /// page for the first one, so all of them are inside the memory.
    #[inline(always)]
    pub(crate) fn block(&self, start: usize, end: usize, max_rows: usize) -> (usize, KvPrefetch) {
        let count = max_rows.min(end - start).min(self.page_rows - start % self.page_rows);
        // After the last block there is nothing to prefetch; its last row keeps `row` in bounds.
        let next = (start + count).min(self.table.len() * self.page_rows - 1);
        let lines = (count * self.row_bytes).div_ceil(CACHE_LINE);
        (count, KvPrefetch { next: self.row(next).as_ptr(), lines })
    }
}

/// Quantizes a row to the cache's format, rounded to nearest even.
///
/// scale = largest magnitude of the elements that share it / largest quant. Elements that share a
/// scale with an infinite or NaN element become NaN.
///
/// # Panics
/// Unless there are `row.width()` elements and `row.bytes()` bytes.
#[inline(always)]
pub fn store_row(row: CacheRow, elements: &[f32], out: &mut [u8]) {
    check_row(row, elements.len(), out.len());
    if row.ty.is_float() {
        return store_floats(row.ty, elements, out);
    }
    let (content, rest) = out.split_at_mut(row.content_bytes());
    let (rope, scale) = rest.split_at_mut(row.rope * row.ty.float_bytes());
    quantized::store(row.ty, &elements[..row.content], content, scale);
    store_floats(row.ty, &elements[row.content..], rope);
}

/// Writes some elements of a row, from `first` on. In a quantized row only the RoPE part can be
/// written, since quants share a scale.
///
/// # Panics
/// When elements are beyond the row or in its quantized part.
pub fn store_part(row: CacheRow, first: usize, elements: &[f32], out: &mut [u8]) {
    check_row(row, row.width(), out.len());
    let at = if row.ty.is_float() {
        first * row.ty.float_bytes()
    } else {
        assert!(first >= row.content, "quants of a row can only be written together");
        row.content_bytes() + (first - row.content) * row.ty.float_bytes()
    };
    assert!(first + elements.len() <= row.width(), "elements from {first} on of {}", row.width());
    store_floats(row.ty, elements, &mut out[at..at + elements.len() * row.ty.float_bytes()]);
}

/// Dequantizes a row.
///
/// # Panics
/// Unless there are `row.width()` elements and `row.bytes()` bytes.
#[inline(always)]
pub fn load_row(row: CacheRow, bytes: &[u8], out: &mut [f32]) {
    check_row(row, out.len(), bytes.len());
    load_part(row, bytes, 0, out);
}

/// Dequantizes some elements of a row, from `first` on.
///
/// # Panics
/// When elements are beyond the row.
#[inline(always)]
pub fn load_part(row: CacheRow, bytes: &[u8], first: usize, out: &mut [f32]) {
    let size = row.ty.float_bytes();
    if row.ty.is_float() {
        return load_floats(row.ty, &bytes[first * size..(first + out.len()) * size], out);
    }
    let (quants, floats, scale) = parts(row, bytes);
    let count = row.content.saturating_sub(first).min(out.len());
    let (content, rope) = out.split_at_mut(count);
    if count > 0 {
        quantized::load(row.ty, quants, scale, first, content);
    }
    if !rope.is_empty() {
        let first = first + count - row.content;
        load_floats(row.ty, &floats[first * size..(first + rope.len()) * size], rope);
    }
}

#[inline(always)]
fn check_row(row: CacheRow, elements: usize, bytes: usize) {
    assert!(
        elements == row.width() && bytes == row.bytes(),
        "{elements} elements and {bytes} bytes of a cache row of {}",
        row.width()
    );
}

/// The content of a quantized row, its RoPE part, and the scale of the row, if it has one.
// The RoPE part is f16 in every quantized type, and shares no scale with the content, so that
// moving a row to another position rewrites it alone (`store_part`).
#[inline(always)]
fn parts(row: CacheRow, bytes: &[u8]) -> (&[u8], &[u8], f32) {
    let (content, rest) = bytes.split_at(row.content_bytes());
    let (rope, scale) = rest.split_at(row.rope * row.ty.float_bytes());
    (content, rope, scale_of(scale))
}

/// The scale of a row, in its last four bytes, for types with a scale per row.
#[inline(always)]
pub(crate) fn scale_of(row: &[u8]) -> f32 {
    row.last_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes))
}

#[inline(always)]
fn store_floats(ty: CacheType, elements: &[f32], out: &mut [u8]) {
    match ty {
        CacheType::F32 => {
            for (out, v) in out.chunks_exact_mut(4).zip(elements) {
                out.copy_from_slice(&v.to_le_bytes());
            }
        }
        CacheType::Bf16 => {
            for (out, v) in out.chunks_exact_mut(2).zip(elements) {
                out.copy_from_slice(&half::bf16::from_f32(*v).to_le_bytes());
            }
        }
        // f16, including the RoPE part of quantized rows.
        _ => {
            for (out, v) in out.chunks_exact_mut(2).zip(elements) {
                out.copy_from_slice(&half::f16::from_f32(*v).to_le_bytes());
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
        CacheType::Bf16 => {
            for (out, v) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *out = crate::widen::bf16(u16::from_le_bytes([v[0], v[1]]));
            }
        }
        _ => {
            for (out, v) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *out = crate::widen::f16(u16::from_le_bytes([v[0], v[1]]));
            }
        }
    }
}

/// [`load_row`] in the vectors of an ISA.
///
/// # Panics
/// Unless there are `row.width()` elements and `row.bytes()` bytes.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
pub(crate) unsafe fn widen<S: Simd>(row: CacheRow, bytes: &[u8], out: &mut [f32]) {
    check_row(row, out.len(), bytes.len());
    // SAFETY: chunks of sixteen elements, and the caller is compiled for `S`.
    unsafe {
        if row.ty.is_float() {
            return widen_floats::<S>(row.ty, bytes, out);
        }
        let (quants, floats, scale) = parts(row, bytes);
        let (content, rope) = out.split_at_mut(row.content);
        quantized::widen::<S>(row.ty, quants, scale, content);
        widen_floats::<S>(row.ty, floats, rope);
    }
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
unsafe fn widen_floats<S: Simd>(ty: CacheType, bytes: &[u8], out: &mut [f32]) {
    let whole = out.len() / 16 * 16;
    let (out, rest) = out.split_at_mut(whole);
    let (bytes, rest_bytes) = bytes.split_at(whole * ty.float_bytes());
    macro_rules! each {
        ($load:expr) => {
            for (out, from) in out.chunks_exact_mut(16).zip(bytes.chunks_exact(16 * ty.float_bytes())) {
                // SAFETY: sixteen elements in each chunk, and the caller is compiled for `S`.
                unsafe { S::store_f32(out.as_mut_ptr(), $load(from.as_ptr())) };
            }
        };
    }
    match ty {
        CacheType::F32 => each!(|from: *const u8| S::load_f32(from.cast())),
        CacheType::Bf16 => each!(|from| S::load_bf16(from)),
        _ => each!(|from| S::load_f16(from)),
    }
    load_floats(ty, rest_bytes, rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: CacheRow = CacheRow { ty: CacheType::F16, content: 4, rope: 2 };

    #[test]
    fn a_block_table_must_refer_to_whole_pages_of_the_memory() {
        let bytes = vec![0; 2 * 64 * 12];
        assert!(CacheView::new(ROW, &bytes, 64, &[1, 0, 1]).is_ok());
        assert_eq!(
            CacheView::new(ROW, &bytes, 64, &[0, 2]).err(),
            Some(ShapeError::Page { page: 2, pages: 2 })
        );
        // The last row of the second page is missing.
        assert!(CacheView::new(ROW, &bytes[12..], 64, &[1]).is_err());
        let view = CacheView::new(ROW, &bytes, 64, &[1]).unwrap();
        assert_eq!(view.block(0, 128, 64).0, 64);
        assert_eq!(view.row(63).as_ptr(), bytes[127 * 12..].as_ptr());
        assert!(std::panic::catch_unwind(|| view.row(64).len()).is_err());
    }

    #[test]
    fn sizes_of_zero_or_that_overflow_are_refused() {
        assert!(CacheView::new(ROW, &[0; 12], 0, &[]).is_err());
        assert!(CacheView::new(ROW, &[0; 12], 1 << 62, &[0]).is_err());
        for (content, rope) in [(0, 0), (usize::MAX, 2), (1 << 62, 1 << 62)] {
            for ty in CacheType::ALL {
                assert!(CacheView::new(CacheRow { ty, content, rope }, &[0; 64], 1, &[0]).is_err());
            }
        }
    }
}
