//! One area of memory for the tiles of all weights, in the order in which steps read them.
//!
//! One area, because large pages (2 MB) cover only whole multiples of themselves: with an area a weight,
//! those of 2 to 4 MB, half of them in a small model, lay in small pages, and were read at two thirds of the
//! speed.
#![allow(unsafe_code, reason = "parts of one memory are handed out to be written")]

use latent_backend::BackendError;
use memmap2::{MmapOptions, MmapRaw};
use std::sync::Arc;

/// Bytes of a large page.
const LARGE: usize = 2 << 20;

/// Least bytes that a node should have of each matrix for large pages, of which those at its borders lie in
/// one node whole.
const LARGE_OF_NODE: usize = 8 << 20;

/// Memory for tiles, of which weights take parts one after the other.
pub struct WeightArena {
    map: Arc<MmapRaw>,
    taken: usize,
    nodes: usize,
}

impl WeightArena {
    /// Reserves memory for weights of as many matrices of as many bytes, which a thread pool on `nodes`
    /// memory nodes will write and read.
    ///
    /// # Errors
    /// When the system refuses the memory.
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
        if nodes == 1 && end >= LARGE {
            // a wish; the system may have no large pages
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(WeightArena { map, taken: 0, nodes })
    }

    /// The next part: of `count` matrices of `bytes` bytes.
    ///
    /// # Errors
    /// When less is left than was reserved for: an error of Latent.
    pub(crate) fn take(&mut self, count: usize, bytes: usize) -> Result<Place, BackendError> {
        let range = place(self.taken, self.nodes, count * bytes);
        if range.end > self.map.len() {
            let error = std::io::ErrorKind::OutOfMemory.into();
            return Err(BackendError::System {
                what: "placing the weights in the memory reserved for them",
                error,
            });
        }
        #[cfg(target_os = "linux")]
        if self.nodes > 1 && count * bytes >= LARGE {
            // large pages are quicker to read, but the rows of small matrices (experts) that belong to
            // different nodes would share them
            let small = count > 1 && bytes / self.nodes < LARGE_OF_NODE;
            let advice = if small { memmap2::Advice::NoHugePage } else { memmap2::Advice::HugePage };
            let _ = self.map.advise_range(advice, range.start, range.len());
        }
        self.taken = range.end;
        Ok(Place { map: Arc::clone(&self.map), start: range.start, len: range.len() })
    }
}

/// Where the next `bytes` bytes lie after `taken`. On several nodes weights share no large page, so that each
/// has its own kind of page.
fn place(taken: usize, nodes: usize, bytes: usize) -> std::ops::Range<usize> {
    let start = if nodes > 1 && bytes >= LARGE { taken.next_multiple_of(LARGE) } else { taken };
    start..start + bytes
}

/// A part of the memory, which one weight has.
pub(crate) struct Place {
    map: Arc<MmapRaw>,
    start: usize,
    len: usize,
}

impl Place {
    /// Where it begins.
    ///
    /// # Safety
    /// What is written there is not read through [`bytes`](Self::bytes) meanwhile.
    pub(crate) unsafe fn start(&self) -> *mut u8 {
        // SAFETY: inside the map, as checked when it was taken.
        unsafe { self.map.as_mut_ptr().add(self.start) }
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: inside the map, which lives as long as this; parts do not overlap, and nobody writes to
        // this one after packing.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.start), self.len) }
    }
}
