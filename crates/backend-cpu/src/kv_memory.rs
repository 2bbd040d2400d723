//! Memory of the cache's streams: reserved at once, committed by the system as it is written.
#![allow(unsafe_code, reason = "the threads of a step write disjoint rows of one memory")]

use latent_backend::KV_BLOCK;
use memmap2::{MmapOptions, MmapRaw};
use std::io::{Error, ErrorKind};
use std::sync::Arc;

/// A cache of fewer bytes than this would waste most of its large pages.
#[cfg(target_os = "linux")]
const LARGE: usize = 8 << 20;

/// Rows of one stream, as many as the pool has places for tokens: a part of the memory of all streams.
pub(crate) struct KvLayerMemory {
    map: Arc<MmapRaw>,
    start: usize,
    len: usize,
    row_bytes: usize,
}

impl KvLayerMemory {
    /// Reserves `rows` rows for each stream, given the bytes of one; all are zero.
    ///
    /// # Errors
    /// When the address space cannot be reserved, or the size overflows.
    pub(crate) fn reserve(
        rows: usize,
        row_bytes: impl Iterator<Item = usize> + Clone,
    ) -> std::io::Result<Vec<KvLayerMemory>> {
        let total =
            row_bytes.clone().try_fold(0usize, |total, row| total.checked_add(row.checked_mul(rows)?));
        let Some(total) = total else {
            return Err(Error::new(ErrorKind::OutOfMemory, "the cache's size overflows"));
        };
        let map = MmapOptions::new().len(total.max(1)).no_reserve_swap().map_anon()?;
        // Attention reads long runs of rows: large pages save it a walk through page tables for each four
        // rows, and they let memory be asked for ahead. One memory for all streams, because those of a small
        // context would each end in the middle of one.
        #[cfg(target_os = "linux")]
        if total >= LARGE {
            // a wish: where the system refuses it, small pages serve
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        let map = Arc::new(MmapRaw::from(map));
        let mut start = 0;
        let part = |row_bytes| {
            let part = KvLayerMemory { map: Arc::clone(&map), start, len: rows * row_bytes, row_bytes };
            start += part.len;
            part
        };
        Ok(row_bytes.map(part).collect())
    }

    /// All rows.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: inside the map, in a part that only this stream has.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.start), self.len) }
    }

    /// One row; `index` counts through the pages.
    pub fn row(&self, index: usize) -> &[u8] {
        &self.bytes()[index * self.row_bytes..][..self.row_bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: inside the map, in a part that only this stream has, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(self.start), self.len) }
    }

    /// One row, to be written.
    pub(crate) fn row_mut(&mut self, index: usize) -> &mut [u8] {
        let row = self.row_bytes;
        &mut self.bytes_mut()[index * row..][..row]
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
        assert!((index + 1) * self.row_bytes <= self.len, "cache row {index} is out of range");
        // SAFETY: in range by the assertion; exclusive by the caller's promise.
        unsafe {
            let start = self.map.as_mut_ptr().add(self.start + index * self.row_bytes);
            std::slice::from_raw_parts_mut(start, self.row_bytes)
        }
    }

    /// Copies one row.
    pub(crate) fn copy_row(&mut self, from: usize, to: usize) {
        let bytes = self.row_bytes;
        self.bytes_mut().copy_within(from * bytes..(from + 1) * bytes, to * bytes);
    }

    /// Copies a whole block.
    pub(crate) fn copy_block(&mut self, from: usize, to: usize) {
        let bytes = KV_BLOCK * self.row_bytes;
        self.bytes_mut().copy_within(from * bytes..(from + 1) * bytes, to * bytes);
    }
}
