//! A sequence: the handle of a context's blocks, which gives them back when it is dropped.

use super::block_pool::BlockPool;
use latent_backend::KV_BLOCK;
use std::sync::Arc;

/// One sequence in the KV cache: its block table, and how many of its rows are filled.
///
/// A new sequence belongs to the engine that first runs it, and any other refuses it. Its blocks go back to that engine's cache when it is
/// dropped. Only steps of the engine add rows: a block may hold what another sequence left there, so that rows which no step has written must
/// never count as cached.
///
/// ```compile_fail
/// fn rows_that_nobody_wrote(engine: &latent_engine::Engine, sequence: &mut latent_engine::cache::Sequence) {
///     engine.kv_cache().advance(sequence, 64);
/// }
/// ```
#[derive(Debug, Default)]
pub struct Sequence {
    pub(super) blocks: Vec<u32>,
    len: usize,
    /// The pool of the blocks; none as long as there are none.
    pub(super) owner: Option<Arc<BlockPool>>,
}

impl Sequence {
    /// Cached rows: the position of the next token.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The block table: the block of each [`KV_BLOCK`] rows, in order.
    pub fn block_table(&self) -> &[u32] {
        &self.blocks
    }

    /// Counts `rows` rows, which a step has just written, as cached.
    pub(crate) fn advance(&mut self, rows: usize) {
        self.len += rows;
        assert!(
            self.len <= self.blocks.len() * KV_BLOCK,
            "{} rows in {} blocks",
            self.len,
            self.blocks.len()
        );
    }

    /// Forgets all rows from `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        let keep = self.len.div_ceil(KV_BLOCK);
        if let Some(owner) = &self.owner
            && keep < self.blocks.len()
        {
            let mut blocks = owner.blocks();
            self.blocks.drain(keep..).for_each(|block| blocks.give_back(block));
        }
    }

    /// A sequence that begins with the first `len` rows of this one and shares their blocks until one of them writes.
    pub(crate) fn share(&self, len: usize) -> Sequence {
        let len = len.min(self.len);
        let blocks = self.blocks[..len.div_ceil(KV_BLOCK)].to_vec();
        if let Some(owner) = &self.owner {
            owner.blocks().use_again(&blocks);
        }
        Sequence { blocks, len, owner: self.owner.clone() }
    }

    /// The block that the next row goes to, if the sequence has one already.
    pub(super) fn next_block(&self) -> Option<u32> {
        self.blocks.get(self.len / KV_BLOCK).copied()
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.truncate(0);
    }
}
