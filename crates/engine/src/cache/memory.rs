//! Memory of one cache stream: reserved at once, committed page by page as it is written.
#![allow(unsafe_code, reason = "the threads of a step write disjoint rows of one memory")]

use super::PAGE_ROWS;
use memmap2::{MmapMut, MmapOptions};

/// Streams of fewer bytes than this would waste most of a large page.
#[cfg(target_os = "linux")]
const LARGE: usize = 8 << 20;

/// Rows of one stream, as many as the pool has places for tokens.
pub struct StreamMemory {
    map: MmapMut,
    row_bytes: usize,
}

impl StreamMemory {
    /// Reserves `rows` rows of `row_bytes` bytes, all zero.
    ///
    /// # Errors
    /// When the address space cannot be reserved, or the size overflows.
    pub(super) fn reserve(rows: usize, row_bytes: usize) -> std::io::Result<StreamMemory> {
        let len = rows.checked_mul(row_bytes).ok_or_else(|| {
            std::io::Error::new(std::io::ErrorKind::OutOfMemory, "the cache's size overflows")
        })?;
        let map = MmapOptions::new().len(len.max(1)).no_reserve_swap().map_anon()?;
        // attention reads long runs of rows: large pages save it a walk through page tables for each four rows
        #[cfg(target_os = "linux")]
        if len >= LARGE {
            // a wish: where the system refuses it, small pages serve
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(StreamMemory { map, row_bytes })
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// All rows.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// One row; `index` counts through the pages.
    pub fn row(&self, index: usize) -> &[u8] {
        &self.map[index * self.row_bytes..][..self.row_bytes]
    }

    /// One row, to be written.
    pub fn row_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.map[index * self.row_bytes..][..self.row_bytes]
    }

    /// One row, to be written by a thread of a step.
    ///
    /// # Safety
    /// No other thread reads or writes this row until the next barrier.
    #[allow(
        clippy::mut_from_ref,
        reason = "rows are handed to threads one owner each, as the caller promises"
    )]
    pub(crate) unsafe fn row_shared(&self, index: usize) -> &mut [u8] {
        assert!((index + 1) * self.row_bytes <= self.map.len(), "cache row {index} is out of range");
        let start = self.map.as_ptr().cast_mut();
        // SAFETY: in range by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start.add(index * self.row_bytes), self.row_bytes) }
    }

    /// Copies a whole page.
    pub(super) fn copy_page(&mut self, from: usize, to: usize) {
        let bytes = PAGE_ROWS * self.row_bytes;
        self.map.copy_within(from * bytes..(from + 1) * bytes, to * bytes);
    }
}
