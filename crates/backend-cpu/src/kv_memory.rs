//! Memory of the KV cache. The address space is reserved in one map, and the system commits pages
//! as they are written. A layer holds records of one size: rows of tokens, or states of a recurrent
//! layer.
#![allow(unsafe_code, reason = "the workers of a step write disjoint rows of one map")]

use latent_backend::KV_BLOCK;
use memmap2::{MmapOptions, MmapRaw};
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::sync::Arc;

/// Minimum cache size in bytes for huge pages. A smaller cache would waste most of a page of 2 MB.
#[cfg(target_os = "linux")]
const MIN_HUGE_BYTES: usize = 8 << 20;

/// Alignment of a layer's memory: a cache line, which also aligns the f32 of recurrent states.
const ALIGNMENT: usize = 64;

/// The rows or states of one layer, one per slot: a part of the memory of all layers.
pub(crate) struct KvLayerMemory {
    map: Arc<MmapRaw>,
    start: usize,
    len: usize,
    row_bytes: usize,
}

impl KvLayerMemory {
    /// Reserves zeroed memory for every layer, given as its number of rows and the bytes of each.
    ///
    /// # Errors
    /// When the address space cannot be reserved, or the size overflows.
    pub(crate) fn reserve(
        layers: impl Iterator<Item = (usize, usize)> + Clone,
    ) -> std::io::Result<Vec<KvLayerMemory>> {
        let total = layers.clone().try_fold(0usize, |total, (rows, row_bytes)| {
            let bytes = rows.checked_mul(row_bytes)?.checked_next_multiple_of(ALIGNMENT)?;
            total.checked_add(bytes)
        });
        let Some(total) = total else {
            return Err(Error::new(ErrorKind::OutOfMemory, "the cache's size overflows"));
        };
        // At least one byte, because an empty map is an error. MAP_NORESERVE, because a cache is
        // rarely full, and the kernel's overcommit check would refuse one that is larger than free
        // memory.
        let map = MmapOptions::new().len(total.max(1)).no_reserve_swap().map_anon()?;
        // Attention reads long runs of rows: huge pages save it a page walk per four rows, and let
        // software prefetch work. One map for all layers, because each layer of a small context
        // would end in the middle of a huge page.
        // measured: docs/notes/memory-and-prefetch.md "The KV cache needs huge pages too"
        #[cfg(target_os = "linux")]
        if total >= MIN_HUGE_BYTES {
            // Only a hint: the system may have no huge pages.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        let map = Arc::new(MmapRaw::from(map));
        let mut start = 0;
        let part = |(rows, row_bytes)| {
            let part = KvLayerMemory { map: Arc::clone(&map), start, len: rows * row_bytes, row_bytes };
            start += part.len.next_multiple_of(ALIGNMENT);
            part
        };
        Ok(layers.map(part).collect())
    }

    /// All rows.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: inside the map, by the sizes that `reserve` summed up, and initialized, since
        // anonymous maps are zero. Rows are written through `&mut self`, or through `row_shared`,
        // whose caller promises that no worker reads the row meanwhile.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.start), self.len) }
    }

    /// The row at a slot.
    pub fn row(&self, index: usize) -> &[u8] {
        &self.bytes()[index * self.row_bytes..][..self.row_bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: inside the map and initialized as in `bytes`; no other layer has this part, and
        // it is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(self.start), self.len) }
    }

    /// The row at a slot, to write.
    pub(crate) fn row_mut(&mut self, index: usize) -> &mut [u8] {
        let row = self.row_bytes;
        &mut self.bytes_mut()[index * row..][..row]
    }

    /// The row at a slot, to write while other workers write other rows.
    ///
    /// # Safety
    /// Until the next barrier this row is used only through the result.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the row is its own")]
    pub(crate) unsafe fn row_shared(&self, index: usize) -> &mut [u8] {
        assert!((index + 1) * self.row_bytes <= self.len, "cache row {index} is out of range");
        // SAFETY: in range by the assertion and initialized as in `bytes`; exclusive by the
        // caller's promise.
        unsafe {
            let start = self.map.as_mut_ptr().add(self.start + index * self.row_bytes);
            std::slice::from_raw_parts_mut(start, self.row_bytes)
        }
    }

    /// Elements of the state at a slot.
    pub(crate) fn state(&self, index: usize, elements: Range<usize>) -> &[f32] {
        let start = self.state_start(index, &elements);
        // SAFETY: inside the map and aligned, both by `state_start`; initialized as in `bytes`, and
        // f32 admits every bit pattern. A worker that writes a part of a state promises that no
        // other worker reads it meanwhile.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(start).cast(), elements.len()) }
    }

    /// Elements of the state at a slot, to write while other workers write other elements.
    ///
    /// # Safety
    /// Until the next barrier these elements are used only through the result.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that the elements are its own")]
    pub(crate) unsafe fn state_shared(&self, index: usize, elements: Range<usize>) -> &mut [f32] {
        let start = self.state_start(index, &elements);
        // SAFETY: as in `state`; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(start).cast(), elements.len()) }
    }

    /// Offset of elements of a state in the map. It is a multiple of 4: layers begin on cache
    /// lines, and a state is a whole number of f32.
    ///
    /// # Panics
    /// When the elements are not inside of the state.
    fn state_start(&self, index: usize, elements: &Range<usize>) -> usize {
        let float = size_of::<f32>();
        let inside = elements.start <= elements.end && elements.end <= self.row_bytes / float;
        assert!(
            inside && (index + 1) * self.row_bytes <= self.len,
            "elements {elements:?} of state {index} are out of range"
        );
        let start = self.start + index * self.row_bytes + elements.start * float;
        assert!(start.is_multiple_of(float), "a state is not aligned");
        start
    }

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
