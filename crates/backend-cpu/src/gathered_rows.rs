//! Cached rows of selected tokens, copied together for kernels that read blocks of rows.

use latent_backend::KV_BLOCK;
use latent_kernels::CacheView;
use latent_types::CacheRow;

/// Memory for gathered rows.
#[derive(Default)]
pub(crate) struct GatheredRows {
    bytes: Vec<u8>,
    /// The block table of the gathered rows.
    blocks: Vec<u32>,
}

impl GatheredRows {
    /// Copies rows to the beginning of the memory. The rows of the last block behind them are those
    /// of earlier calls.
    ///
    /// # Panics
    /// When a row has other than `format.bytes()` bytes.
    pub(crate) fn gather<'r>(
        &mut self,
        format: CacheRow,
        rows: impl ExactSizeIterator<Item = &'r [u8]>,
    ) -> CacheView<'_> {
        let (row, blocks) = (format.bytes(), rows.len().div_ceil(KV_BLOCK));
        if self.bytes.len() < blocks * KV_BLOCK * row {
            self.bytes.resize(blocks * KV_BLOCK * row, 0);
        }
        for (to, from) in self.bytes.chunks_exact_mut(row).zip(rows) {
            to.copy_from_slice(from);
        }
        self.blocks.clear();
        self.blocks.extend(0..blocks as u32);
        CacheView::new(format, &self.bytes, KV_BLOCK, &self.blocks).expect("blocks of the gathered rows")
    }
}
