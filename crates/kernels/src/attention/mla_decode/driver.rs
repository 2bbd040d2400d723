//! The loop of MLA decode: blocks of cached rows are scored (QKᵀ), weighted by an online softmax
//! and summed (PV), while the next block is prefetched.
#![allow(
    unsafe_code,
    reason = "kernels are compiled for an instruction set, and read the KV cache by address"
)]

use crate::kv_cache::{CacheView, KvPrefetch};
use std::ops::Range;

/// Consecutive cached rows, all in one page, so that they are contiguous in memory.
#[derive(Clone, Copy)]
pub(super) struct KvBlock<'a> {
    pub cache: &'a CacheView<'a>,
    /// Index of the first row.
    pub start: usize,
    /// Number of rows, at least 1 and at most the kernel's [`KV_BLOCK`](DecodeKernel::KV_BLOCK).
    pub count: usize,
    /// Whether this is the first block of the call.
    pub is_first: bool,
}

impl KvBlock<'_> {
    /// Address of the first row; the rows are [`stride`](Self::stride) bytes apart.
    #[inline(always)]
    pub fn address(&self) -> *const u8 {
        self.cache.row(self.start).as_ptr()
    }

    /// Bytes from one row to the next.
    #[inline(always)]
    pub fn stride(&self) -> usize {
        self.cache.row_bytes()
    }

    /// The bytes of row `index` of the block.
    #[inline(always)]
    pub fn row(&self, index: usize) -> &[u8] {
        self.cache.row(self.start + index)
    }
}

/// One arithmetic of MLA decode: its operands, scratch, running softmax and sums.
///
/// Prefetching is spread over [`qk`](Self::qk) and [`pv`](Self::pv): in one burst, more requests
/// would be issued than a core keeps in flight.
///
/// # Safety
/// Callers of each method are compiled for the kernel's instruction set, on a CPU that has it;
/// methods are `#[inline(always)]` for that, or call functions that are compiled for it themselves.
/// Blocks are of the cache that the kernel was made for.
pub(super) trait DecodeKernel {
    /// Cached rows of a block.
    const KV_BLOCK: usize;

    /// Converts the rows of a block, if scores or sums do not read the cache itself.
    #[inline(always)]
    unsafe fn load(&mut self, block: &KvBlock<'_>) {
        let _ = block;
    }

    /// Scores of the block's rows with all heads.
    unsafe fn qk(&mut self, block: &KvBlock<'_>, prefetch: &mut KvPrefetch);

    /// Turns the scores into weights, and updates the running max and sum.
    unsafe fn softmax(&mut self, block: &KvBlock<'_>);

    /// Rescales earlier sums and adds the weighted rows of the block.
    unsafe fn pv(&mut self, block: &KvBlock<'_>, prefetch: &mut KvPrefetch);
}

/// Runs a kernel over the blocks of a KV split.
///
/// # Safety
/// As for [`DecodeKernel`]; `cache` is the kernel's.
#[inline(always)]
pub(super) unsafe fn run<K: DecodeKernel>(kernel: &mut K, cache: &CacheView<'_>, rows: Range<usize>) {
    let mut start = rows.start;
    while start < rows.end {
        let (count, mut prefetch) = cache.block(start, rows.end, K::KV_BLOCK);
        let block = KvBlock { cache, start, count, is_first: start == rows.start };
        // SAFETY: the caller is compiled for the kernel's instruction set, and the block is in one
        // page of its cache.
        unsafe {
            kernel.load(&block);
            kernel.qk(&block, &mut prefetch);
            kernel.softmax(&block);
            kernel.pv(&block, &mut prefetch);
        }
        start += count;
    }
}
