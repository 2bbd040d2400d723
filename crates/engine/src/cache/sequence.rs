//! A sequence: the handle of a context's blocks and recurrent states, which gives them back when it is dropped.

use super::block_pool::BlockPool;
use super::draft_rows::DraftRows;
use super::recurrent::RecurrentState;
use latent_backend::{AdapterScales, KV_BLOCK, SpanState};
use std::sync::Arc;

/// One sequence in the KV cache: its block table, how many of its rows are filled, and its recurrent state in a model that has one.
///
/// A new sequence belongs to the engine that first runs it, and any other refuses it. Its blocks and states go back to that engine's cache when
/// it is dropped. Only steps of the engine add rows: a block may hold what another sequence left there, so that rows which no step has written must
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
    pub(super) len: usize,
    /// The pool of the blocks; none as long as there are none.
    pub(super) owner: Option<Arc<BlockPool>>,
    /// None where the model has no recurrent layers, or has not run it yet.
    pub(super) recurrent: Option<RecurrentState>,
    /// The tokens of its first rows: of all of them, or of those before the first embedding and the first row that a context shift has moved.
    pub(super) tokens: Vec<u32>,
    /// The first row that was an embedding.
    pub(super) embedded_from: Option<usize>,
    /// What is kept for the MTP layer of an engine that drafts with one.
    pub(crate) draft: DraftRows,
    /// Scales of the model's adapters; none for those that the model was loaded with.
    pub(super) adapters: Option<AdapterScales>,
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

    /// Gives its rows these scales of the model's adapters, in place of those that the model was loaded with. Cached rows must have them already.
    pub(crate) fn set_adapter_scales(&mut self, scales: Option<&AdapterScales>) {
        self.adapters = scales.cloned();
    }

    /// The scales that were set; none for those of the model.
    pub fn adapter_scales(&self) -> Option<&AdapterScales> {
        self.adapters.as_ref()
    }

    /// The positions at which a snapshot of its recurrent state is kept, in ascending order; none in a model without such state.
    pub fn snapshots(&self) -> impl Iterator<Item = usize> {
        self.recurrent.iter().flat_map(RecurrentState::positions)
    }

    /// How many of its first `len` rows can be gone back to, or shared with another sequence: all of them, or, where a recurrent state goes with
    /// them, those before the newest snapshot. A prefix index may name no other prefixes.
    pub fn reusable(&self, len: usize) -> usize {
        match len >= self.len || self.recurrent.is_none() {
            true => len.min(self.len),
            false => self.snapshots().take_while(|position| *position <= len).last().unwrap_or(0),
        }
    }

    /// The tokens of its first rows. They are fewer than the [rows](Self::len) where some rows were embeddings, and after a context shift: the
    /// rows that it moved have seen tokens which it discarded, so that no list of tokens stands for them.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Counts rows of these tokens, which a step has just written, as cached.
    pub(crate) fn advance_tokens(&mut self, tokens: &[u32]) {
        if self.tokens.len() == self.len {
            self.tokens.extend_from_slice(tokens);
        }
        self.advance(tokens.len());
    }

    /// Counts `rows` rows, which a step has just written, as cached, and the states that it has written as the sequence's.
    fn advance(&mut self, rows: usize) {
        self.len += rows;
        assert!(
            self.len <= self.blocks.len() * KV_BLOCK,
            "{} rows in {} blocks",
            self.len,
            self.blocks.len()
        );
        self.recurrent.iter_mut().for_each(RecurrentState::commit);
        self.draft.commit();
    }

    /// The same for rows of embeddings.
    pub(crate) fn advance_embedded(&mut self, rows: usize) {
        self.embedded_from.get_or_insert(self.len);
        self.advance(rows);
    }

    /// Rows that the MTP layer has run, in an engine that drafts: at most [`len`](Self::len).
    pub fn drafted_rows(&self) -> usize {
        self.draft.done()
    }

    /// The position of its first row that was an embedding and no token: no list of tokens stands for the rows from there on.
    pub fn embedded_from(&self) -> Option<usize> {
        self.embedded_from
    }

    /// Gives the slots of states back which a step that has failed was to write.
    pub(crate) fn abandon(&mut self) {
        self.draft.abandon(self.len);
        self.recurrent.iter_mut().for_each(RecurrentState::abandon);
    }

    /// Asks for a snapshot of the recurrent state after `position` rows, now or when a step gets there.
    pub(super) fn snapshot_at(&mut self, position: usize) {
        let len = self.len;
        self.recurrent.iter_mut().for_each(|state| state.ask(position, len));
    }

    /// Releases the states of the last step's drafts.
    pub(crate) fn settle(&mut self) {
        self.recurrent.iter_mut().for_each(RecurrentState::settle);
    }

    /// The recurrent state of the step for which room was made.
    pub(crate) fn span_state(&self) -> Option<SpanState> {
        self.recurrent.as_ref()?.span(self.len)
    }

    /// Forgets all rows from `len` on, and before it those that no snapshot of a recurrent state stands behind. Returns how many rows stay.
    pub(crate) fn truncate(&mut self, len: usize) -> usize {
        if len < self.len {
            self.len = self.recurrent.as_mut().map_or(len, |state| state.restore(len));
            self.tokens.truncate(self.len);
            self.embedded_from = self.embedded_from.filter(|first| *first < self.len);
            self.draft.truncate(self.len);
        }
        self.give_back_spare_blocks();
        self.len
    }

    /// Gives blocks behind the last row back.
    pub(super) fn give_back_spare_blocks(&mut self) {
        let keep = self.len.div_ceil(KV_BLOCK);
        if let Some(owner) = &self.owner
            && keep < self.blocks.len()
        {
            let mut blocks = owner.blocks();
            self.blocks.drain(keep..).for_each(|block| blocks.give_back(block));
        }
    }

    /// A sequence that begins with the first `len` rows of this one, or with fewer where a recurrent state goes with them
    /// ([`reusable`](Self::reusable)), and shares their blocks until one of them writes.
    pub(crate) fn share(&self, len: usize) -> Sequence {
        let shared = self.recurrent.as_ref().map(|state| state.share(len, self.len)).unzip();
        let len = shared.1.unwrap_or_else(|| len.min(self.len));
        let blocks = self.blocks[..len.div_ceil(KV_BLOCK)].to_vec();
        if let Some(owner) = &self.owner {
            owner.blocks().use_again(&blocks);
        }
        let tokens = self.tokens[..len.min(self.tokens.len())].to_vec();
        let embedded_from = self.embedded_from.filter(|first| *first < len);
        let mut draft = self.draft.clone();
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

    /// The block that the next row goes to, if the sequence has one already.
    pub(super) fn next_block(&self) -> Option<u32> {
        self.blocks.get(self.len / KV_BLOCK).copied()
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.len = 0;
        self.give_back_spare_blocks();
    }
}
