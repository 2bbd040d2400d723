//! Drafts of an answer that are looked up in its text, as far as there is room for their rows.

use crate::cache::Sequence;
use crate::engine::Engine;
use crate::generation::Generation;
use crate::lookup::MAX_DRAFTS;
use latent_backend::KV_BLOCK;

impl Engine {
    /// Tokens that followed the same words before, at most `most`, as many as are worth their rows in a step of `rows` rows, and
    /// what such a step costs in steps without drafts. None for an answer that looks up no drafts.
    pub(crate) fn drafts_of_text(
        &self,
        sequence: &Sequence,
        generation: &mut Generation,
        rows: usize,
        most: usize,
    ) -> (Vec<u32>, Option<f64>) {
        let len = sequence.len() + 1;
        let in_blocks = match self.cache.available() >= (rows + 1) * KV_BLOCK {
            true => usize::MAX,
            false => (sequence.block_table().len() * KV_BLOCK).saturating_sub(len),
        };
        let in_context = self.context().saturating_sub(len).min(self.max_batch_tokens().saturating_sub(rows));
        let in_states = self.cache.room_for_drafted_states(rows);
        let most =
            most.min(in_states).min(in_blocks).min(in_context).min(generation.left().saturating_sub(1));
        generation.look_up_drafts(most.min(MAX_DRAFTS), |more| self.step_costs.ratio(rows, more))
    }
}
