//! A sequence: the handle of a context's blocks and recurrent states, which releases them when
//! dropped.

use super::block_pool::BlockPool;
use super::draft_rows::DraftRows;
use super::recurrent::RecurrentState;
use latent_backend::{AdapterScales, KV_BLOCK, SpanState};
use std::sync::Arc;

/// One sequence in the KV cache: its block table, the number of cached rows, and its recurrent
/// state in a model with recurrent layers.
///
/// A new sequence belongs to the engine that first runs it, and other engines refuse it. Dropping
/// it releases its blocks and states. Only steps of the engine add rows: a block may hold rows of
/// an earlier sequence, so rows that no step has written must never count as cached.
///
/// ```compile_fail
/// fn rows_that_nobody_wrote(engine: &latent_engine::Engine, sequence: &mut latent_engine::cache::Sequence) {
///     engine.kv_cache().advance(sequence, 64);
/// }
/// ```
#[derive(Debug, Default)]
pub struct Sequence {
    pub(super) blocks: Vec<u32>,
    pub(super) len: usize,
    /// The pool of the blocks. `None` before the first step.
    pub(super) owner: Option<Arc<BlockPool>>,
    /// `None` if the model has no recurrent layers, or before the first step.
    pub(super) recurrent: Option<RecurrentState>,
    /// The tokens of the rows before the first embedding and before the first row that a context
    /// shift has moved.
    pub(super) tokens: Vec<u32>,
    /// The first row that was an embedding.
    pub(super) embedded_from: Option<usize>,
    /// State of the MTP layer.
    pub(crate) draft: DraftRows,
    /// Scales of the model's adapters. `None`: those that the model was loaded with.
    pub(super) adapters: Option<AdapterScales>,
}

impl Sequence {
    /// Number of cached rows, which is the position of the next token.
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

    /// Sets the scales of the model's adapters for later rows. Cached rows must have the same
    /// scales.
    pub(crate) fn set_adapter_scales(&mut self, scales: Option<&AdapterScales>) {
        self.adapters = scales.cloned();
    }

    /// The sequence's own scales of the model's adapters. `None`: those that the model was loaded
    /// with.
    pub fn adapter_scales(&self) -> Option<&AdapterScales> {
        self.adapters.as_ref()
    }

    /// The positions of the snapshots of the recurrent state, in ascending order. Empty in a model
    /// without recurrent layers.
    pub fn snapshots(&self) -> impl Iterator<Item = usize> {
        self.recurrent.iter().flat_map(RecurrentState::positions)
    }

    /// The number of rows, at most `len`, to which the sequence can be truncated or which it can
    /// share. With recurrent layers, this is the position of the newest snapshot at or before
    /// `len`. A prefix index must not offer longer prefixes.
    pub fn reusable(&self, len: usize) -> usize {
        match len >= self.len || self.recurrent.is_none() {
            true => len.min(self.len),
            false => self.snapshots().take_while(|position| *position <= len).last().unwrap_or(0),
        }
    }

    /// The tokens of the first rows. They are fewer than the [rows](Self::len) if some rows were
    /// embeddings, and after a context shift: moved rows have attended to discarded tokens, so no
    /// list of tokens describes them.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Counts rows of these tokens, which a step has just written, as cached.
    pub(crate) fn advance_tokens(&mut self, tokens: &[u32]) {
        // After an embedding or a context shift, the list has a gap and does not grow any more.
        if self.tokens.len() == self.len {
            self.tokens.extend_from_slice(tokens);
        }
        self.advance(tokens.len());
    }

    /// Counts `rows` rows that a step has just written as cached, and takes over the states that it
    /// has written.
    fn advance(&mut self, rows: usize) {
        self.len += rows;
        // Rows outside of the block table would be read from another sequence's blocks.
        assert!(
            self.len <= self.blocks.len() * KV_BLOCK,
            "{} rows in {} blocks",
            self.len,
            self.blocks.len()
        );
        self.recurrent.iter_mut().for_each(RecurrentState::commit);
        self.draft.commit();
    }

    /// Counts rows of embeddings, which a step has just written, as cached.
    pub(crate) fn advance_embedded(&mut self, rows: usize) {
        self.embedded_from.get_or_insert(self.len);
        self.advance(rows);
    }

    /// Number of rows that the MTP layer has run: at most [`len`](Self::len).
    pub fn drafted_rows(&self) -> usize {
        self.draft.done()
    }

    /// The position of the first row that was an embedding. No list of tokens describes the rows
    /// from there on.
    pub fn embedded_from(&self) -> Option<usize> {
        self.embedded_from
    }

    /// Releases the state slots of a failed step.
    pub(crate) fn abandon(&mut self) {
        self.draft.abandon(self.len);
        self.recurrent.iter_mut().for_each(RecurrentState::abandon);
    }

    /// Requests a snapshot of the recurrent state after `position` rows.
    pub(super) fn snapshot_at(&mut self, position: usize) {
        let len = self.len;
        self.recurrent.iter_mut().for_each(|state| state.ask(position, len));
    }

    /// Releases the states of the last step's drafts.
    pub(crate) fn settle(&mut self) {
        self.recurrent.iter_mut().for_each(RecurrentState::settle);
    }

    /// The state slots that were reserved for the next step.
    pub(crate) fn span_state(&self) -> Option<SpanState> {
        self.recurrent.as_ref()?.span(self.len)
    }

    /// Discards all rows from `len` on, and with recurrent layers also those after the newest
    /// snapshot at or before `len`. Returns the number of remaining rows.
    pub(crate) fn truncate(&mut self, len: usize) -> usize {
        if len < self.len {
            self.len = self.recurrent.as_mut().map_or(len, |state| state.restore(len));
            self.tokens.truncate(self.len);
            self.embedded_from = self.embedded_from.filter(|first| *first < self.len);
            self.draft.truncate(self.len);
        }
        // Also if no row was discarded: a failed step may have reserved blocks.
        self.release_spare_blocks();
        self.len
    }

    /// Releases the blocks after the last row.
    pub(super) fn release_spare_blocks(&mut self) {
        let keep = self.len.div_ceil(KV_BLOCK);
        if let Some(owner) = &self.owner
            && keep < self.blocks.len()
        {
            let mut blocks = owner.blocks();
            self.blocks.drain(keep..).for_each(|block| blocks.release(block));
        }
    }

    /// A sequence that shares the first `len` rows of this one, or fewer with recurrent layers
    /// ([`reusable`](Self::reusable)). Blocks are copied when one of the sequences writes to them.
    pub(crate) fn share(&self, len: usize) -> Sequence {
        let shared = self.recurrent.as_ref().map(|state| state.share(len, self.len)).unzip();
        let len = shared.1.unwrap_or_else(|| len.min(self.len));
        let blocks = self.blocks[..len.div_ceil(KV_BLOCK)].to_vec();
        if let Some(owner) = &self.owner {
            owner.blocks().add_user(&blocks);
        }
        let tokens = self.tokens[..len.min(self.tokens.len())].to_vec();
        let embedded_from = self.embedded_from.filter(|first| *first < len);
        let mut draft = self.draft.clone();
        // Waiting rows of the fork are copies: each sequence runs them when its own next token is
        // known.
        draft.truncate(len);
        Sequence {
            blocks,
            len,
            owner: self.owner.clone(),
            recurrent: shared.0,
            tokens,
            embedded_from,
            draft,
            adapters: self.adapters.clone(),
        }
    }

    /// The block of the next row, if the sequence has that block already.
    pub(super) fn next_block(&self) -> Option<u32> {
        self.blocks.get(self.len / KV_BLOCK).copied()
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        // Without rows, all blocks are spare. State slots return to their pool when they are
        // dropped.
        self.len = 0;
        self.release_spare_blocks();
    }
}
