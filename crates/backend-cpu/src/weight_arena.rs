//! One memory area for the tiles of all weights, in the order in which steps read them.
//!
//! Huge pages cover only aligned ranges of 2 MB. With an area per weight, about half of each weight
//! of 2 to 4 MB was in small pages, and was read at two thirds of the speed.
// measured: docs/notes/memory-and-prefetch.md "Huge pages end at two megabytes"
#![allow(unsafe_code, reason = "parts of one map are handed out to be written")]

use latent_backend::BackendError;
use memmap2::{MmapOptions, MmapRaw};
use std::sync::Arc;

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Minimum bytes of a matrix per memory node for huge pages. A page at the boundary between two
/// nodes' shares is entirely on one of them, so smaller shares would be mostly misplaced.
#[cfg(target_os = "linux")]
const MIN_HUGE_SHARE: usize = 8 << 20;

/// Memory for tiles, from which weights take consecutive parts.
pub struct WeightArena {
    map: Arc<MmapRaw>,
    taken: usize,
    nodes: usize,
}

impl WeightArena {
    /// Reserves memory for weights, given as (matrices, bytes per matrix), that a thread pool on
    /// `nodes` memory nodes will write and read.
    pub fn reserve(
        weights: impl Iterator<Item = (usize, usize)>,
        nodes: usize,
    ) -> Result<WeightArena, BackendError> {
        let end = weights.fold(0, |taken, (count, bytes)| place(taken, nodes, count * bytes).end);
        let map = MmapOptions::new()
            .len(end.max(1))
            .map_anon()
            .map_err(|error| BackendError::System { what: "reserving memory for the weights", error })?;
        let map = Arc::new(MmapRaw::from(map));
        #[cfg(target_os = "linux")]
        if nodes == 1 && end >= HUGE_PAGE {
            // Only a hint: the system may have no huge pages.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(WeightArena { map, taken: 0, nodes })
    }

    /// Takes the next part, for `count` matrices of `bytes` bytes.
    ///
    /// # Errors
    /// If the remaining memory is too small: the parts differ from those that were reserved, which
    /// is a fault of Latent.
    pub(crate) fn take(&mut self, count: usize, bytes: usize) -> Result<ArenaRange, BackendError> {
        let range = place(self.taken, self.nodes, count * bytes);
        if range.end > self.map.len() {
            let error = std::io::ErrorKind::OutOfMemory.into();
            return Err(BackendError::System {
                what: "placing the weights in the memory reserved for them",
                error,
            });
        }
        #[cfg(target_os = "linux")]
        if self.nodes > 1 && count * bytes >= HUGE_PAGE {
            // Huge pages are faster to read. But each expert's matrix is divided among the nodes,
            // and shares of small matrices that belong to different nodes would be in one page.
            let small = count > 1 && bytes / self.nodes < MIN_HUGE_SHARE;
            let advice = if small { memmap2::Advice::NoHugePage } else { memmap2::Advice::HugePage };
            let _ = self.map.advise_range(advice, range.start, range.len());
        }
        self.taken = range.end;
        Ok(ArenaRange { map: Arc::clone(&self.map), start: range.start, len: range.len() })
    }
}

/// The range of the next `bytes` bytes after `taken`.
fn place(taken: usize, nodes: usize, bytes: usize) -> std::ops::Range<usize> {
    // With several nodes, each large weight chooses its page size, so it may not share a huge page.
    let aligned = nodes > 1 && bytes >= HUGE_PAGE;
    let start = if aligned { taken.next_multiple_of(HUGE_PAGE) } else { taken };
    start..start + bytes
}

/// The part of the memory that belongs to one weight.
pub(crate) struct ArenaRange {
    map: Arc<MmapRaw>,
    start: usize,
    len: usize,
}

impl ArenaRange {
    /// Address of the first byte.
    ///
    /// # Safety
    /// No slice from [`bytes`](Self::bytes) may exist while the bytes are written.
    pub(crate) unsafe fn start(&self) -> *mut u8 {
        // SAFETY: inside the map: `take` compared the end with its length.
        unsafe { self.map.as_mut_ptr().add(self.start) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: inside the map, which `self` keeps alive, and initialized, since anonymous maps
        // are zero; parts do not overlap, and no thread writes to this one after packing.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.start), self.len) }
    }
}
