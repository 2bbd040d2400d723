//! Rows of the cache: stored, loaded, and found through page tables.

use crate::lanes::Lanes;
use base::CacheType;

/// The cached rows of one sequence in one stream.
#[derive(Clone, Copy)]
pub struct CacheView<'a> {
    /// How numbers are stored.
    pub ty: CacheType,
    /// The memory of the whole stream.
    pub bytes: &'a [u8],
    /// Rows of a page.
    pub page_rows: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Numbers of a row.
    pub width: usize,
    /// The page of each block of rows.
    pub table: &'a [u32],
}

impl<'a> CacheView<'a> {
    /// One row.
    #[inline]
    pub fn row(&self, index: usize) -> &'a [u8] {
        let page = self.table[index / self.page_rows] as usize;
        let at = (page * self.page_rows + index % self.page_rows) * self.row_bytes;
        &self.bytes[at..at + self.row_bytes]
    }
}

/// Writes a row of numbers in the cache's type, rounded to nearest even.
///
/// # Panics
/// When `out` is not as many numbers of `ty`.
#[inline(always)]
pub fn store_row(ty: CacheType, row: &[f32], out: &mut [u8]) {
    assert_eq!(out.len(), row.len() * ty.bytes(), "a cache row of {} numbers", row.len());
    match ty {
        CacheType::F32 => {
            for (out, v) in out.chunks_exact_mut(4).zip(row) {
                out.copy_from_slice(&v.to_le_bytes());
            }
        }
        CacheType::F16 => {
            for (out, v) in out.chunks_exact_mut(2).zip(row) {
                out.copy_from_slice(&half::f16::from_f32(*v).to_le_bytes());
            }
        }
        CacheType::Bf16 => {
            for (out, v) in out.chunks_exact_mut(2).zip(row) {
                out.copy_from_slice(&half::bf16::from_f32(*v).to_le_bytes());
            }
        }
    }
}

/// Reads a row in the lanes of an instruction set.
///
/// # Panics
/// When `bytes` is not as many numbers of `ty`.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Lanes`")]
pub(super) unsafe fn widen<L: Lanes>(ty: CacheType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * ty.bytes(), "a cache row of {} numbers", out.len());
    let whole = out.len() / 16 * 16;
    let (out, rest) = out.split_at_mut(whole);
    let (bytes, rest_bytes) = bytes.split_at(whole * ty.bytes());
    macro_rules! each {
        ($load:expr) => {
            for (out, from) in out.chunks_exact_mut(16).zip(bytes.chunks_exact(16 * ty.bytes())) {
                // SAFETY: sixteen numbers here and there.
                unsafe { L::store_floats(out.as_mut_ptr(), $load(from.as_ptr())) };
            }
        };
    }
    match ty {
        CacheType::F32 => each!(|from: *const u8| L::load_floats(from.cast())),
        CacheType::F16 => each!(|from| L::halves(from)),
        CacheType::Bf16 => each!(|from| L::brains(from)),
    }
    load_row(ty, rest_bytes, rest);
}

/// Reads a row.
///
/// # Panics
/// When `bytes` is not as many numbers of `ty`.
#[inline(always)]
pub fn load_row(ty: CacheType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * ty.bytes(), "a cache row of {} numbers", out.len());
    match ty {
        CacheType::F32 => {
            for (out, v) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *out = f32::from_le_bytes([v[0], v[1], v[2], v[3]]);
            }
        }
        CacheType::F16 => {
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
