//! Operands larger than the caches.

use memmap2::{MmapMut, MmapOptions};

/// Contiguous copies of some bytes. Each is aligned to 64 bytes if the length is a multiple of 64.
pub(crate) struct OperandCopies {
    map: MmapMut,
    len: usize,
    count: usize,
}

impl OperandCopies {
    /// Creates `count` copies, in huge pages if the system supports them, like the engine's KV
    /// cache.
    ///
    /// # Panics
    /// If there is not enough memory.
    pub(crate) fn new(bytes: &[u8], count: usize) -> OperandCopies {
        let all = bytes.len() * count;
        // A mapping of 0 bytes would be refused.
        let mut map = MmapOptions::new().len(all.max(1)).map_anon().expect("memory for the operands");
        // Only a hint: without huge pages, normal ones are used.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        if !bytes.is_empty() {
            map[..all].chunks_exact_mut(bytes.len()).for_each(|copy| copy.copy_from_slice(bytes));
        }
        OperandCopies { map, len: bytes.len(), count }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// One copy. Indices wrap around.
    pub(crate) fn copy(&self, index: usize) -> &[u8] {
        let from = index % self.count * self.len;
        &self.map[from..from + self.len]
    }

    pub(crate) fn all(&self) -> &[u8] {
        &self.map[..self.len * self.count]
    }
}
