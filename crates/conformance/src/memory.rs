//! Operands that may be larger than every cache.

use memmap2::{MmapMut, MmapOptions};

/// Copies of some bytes, one after the other, each at a multiple of 64 bytes when its length is.
pub(crate) struct Copies {
    map: MmapMut,
    len: usize,
    count: usize,
}

impl Copies {
    /// Makes the copies, in huge pages where the system has them, as the engine's KV cache is.
    ///
    /// # Panics
    /// When there is no memory for them, as when a vector cannot grow.
    pub(crate) fn new(bytes: &[u8], count: usize) -> Copies {
        let all = bytes.len() * count;
        let mut map = MmapOptions::new().len(all.max(1)).map_anon().expect("memory for the operands");
        // only a hint: small pages work too
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        if !bytes.is_empty() {
            map[..all].chunks_exact_mut(bytes.len()).for_each(|copy| copy.copy_from_slice(bytes));
        }
        Copies { map, len: bytes.len(), count }
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Copy `i`, modulo their number.
    pub(crate) fn copy(&self, index: usize) -> &[u8] {
        let from = index % self.count * self.len;
        &self.map[from..from + self.len]
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[u8] {
        &self.map[..self.len * self.count]
    }
}
