//! Drafts by the model's MTP layer, and by n-gram lookup in the text. The MTP layer runs over the
//! rows of each step, and proposes the token after the next.

use crate::cache::Sequence;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generation::Generation;
use crate::logits_taker::{LogitsTaker, WholeRows};
use crate::lookup::MAX_DRAFTS;
use crate::seq_error::SeqError;
use crate::step::SeqInput;
use latent_backend::{DraftStep, InputRows, KV_BLOCK, LargestLogits, Logits, TokenLogit};
use latent_graph::stage_index;
use std::cell::RefCell;

/// One sequence of [`Engine::draft`], and the token that was chosen after its last row.
pub struct DraftInput<'a> {
    /// The sequence. Drafting adds no rows to it.
    pub sequence: &'a mut Sequence,
    /// The token of the row that it will run next.
    pub token: u32,
}

/// Rows of one sequence that the MTP layer has not run.
struct MtpRows<'a> {
    sequence: &'a Sequence,
    /// The token after each row.
    tokens: &'a [u32],
    /// The rows of the residual stream.
    hidden: &'a [f32],
}

/// The likeliest token of each input.
pub(crate) struct DraftedTokens(pub(crate) Vec<Option<u32>>);

impl LogitsTaker for DraftedTokens {
    fn enough(&self, _input: usize, _row: usize) -> usize {
        1
    }

    fn take(&mut self, input: usize, _row: usize, logits: Logits<'_>) {
        self.0[input] = match logits {
            Logits::Whole(logits) => likeliest((0..).zip(logits.iter().copied())),
            Logits::Largest(logits) => {
                likeliest(logits.iter().map(|TokenLogit { token, logit }| (*token, *logit)))
            }
        };
    }
}

/// The token of the largest logit, the first of equal ones. `None` if no logit is a number above
/// −∞.
fn likeliest(logits: impl Iterator<Item = (u32, f32)>) -> Option<u32> {
    let mut best = None;
    for (token, logit) in logits {
        // The comparison is false for NaN, which is never chosen.
        if logit > best.map_or(f32::NEG_INFINITY, |(_, most)| most) {
            best = Some((token, logit));
        }
    }
    best.map(|(token, _)| token)
}

impl Engine {
    /// Whether the engine was loaded with its model's MTP layer, so that it can
    /// [draft](Self::draft).
    pub fn drafts(&self) -> bool {
        stage_index::mtp(self.model.stages()).is_some()
    }

    /// Whether a token can be drafted after the next token of this sequence. This engine must have
    /// run all of its rows, as tokens, and its last row after the last truncation.
    pub fn can_draft(&self, sequence: &Sequence) -> bool {
        self.drafts()
            && self.cache.owns(sequence)
            && sequence.draft.is_complete(sequence.len())
            && !sequence.draft.waiting().1.is_empty()
    }

    /// Whether a token can be drafted for a sequence, and the KV cache has room for a token and its
    /// draft. `running` is the number of sequences in the step.
    pub(crate) fn has_room_for_draft(&self, sequence: &Sequence, running: usize) -> bool {
        let len = sequence.len() + 2;
        let there = len <= sequence.block_table().len() * KV_BLOCK;
        // Any of the running sequences may take a block in this step, and none must lack one
        // because of a draft.
        let room = there || self.cache.available() >= running * KV_BLOCK;
        let rows = (sequence.draft.waiting().0.len() + 1).max(2);
        let states = self.cache.room_for_drafted_states(running) >= running;
        len <= self.context() && room && states && rows <= self.max_batch_tokens() && self.can_draft(sequence)
    }

    /// Enables or disables drafts for this sequence. Without drafts, its steps do not run the MTP
    /// layer and its draft rows are discarded. Drafts can then be enabled again only once the
    /// sequence is empty.
    pub fn keep_drafts(&self, sequence: &mut Sequence, wanted: bool) {
        sequence.draft.turn(wanted);
    }

    /// Runs the MTP layer over rows that the model has run: `sink` is called, for each input, with
    /// the MTP layer's logits of the token after [`DraftInput::token`]. The caller picks a draft
    /// from them, runs both tokens in one step with the logits of both rows, and chooses a token
    /// from the first row. If that is the draft, it continues with the second row; otherwise it
    /// [truncates](Self::truncate) the sequence by a row.
    ///
    /// # Errors
    /// No sequence has changed:
    /// * [`EngineError::Options`] if the engine was loaded without drafts;
    /// * [`EngineError::Sequence`] for a sequence that [cannot be drafted for](Self::can_draft), or
    ///   a token out of range;
    /// * [`EngineError::CacheFull`] if a shared block must be copied and none is free;
    /// * [`EngineError::Rows`], [`EngineError::Stopped`] and [`EngineError::Backend`] as for
    ///   [`step`](Self::step).
    pub fn draft(
        &mut self,
        inputs: &mut [DraftInput<'_>],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        self.draft_for(inputs, &mut WholeRows(&mut |input, _, logits| sink(input, logits)))
    }

    /// Like [`draft`](Self::draft), for a taker that needs only the largest logits.
    pub(crate) fn draft_for(
        &mut self,
        inputs: &mut [DraftInput<'_>],
        taker: &mut dyn LogitsTaker,
    ) -> Result<(), EngineError> {
        if !self.drafts() {
            return Err(EngineError::Options("the engine was loaded without drafts".into()));
        }
        let (vocab, max_batch_tokens) = (self.config().vocab_size, self.max_batch_tokens());
        let mut rows = 0;
        for (index, DraftInput { sequence, token }) in inputs.iter().enumerate() {
            let wrong = |error| EngineError::Sequence { index: (inputs.len() > 1).then_some(index), error };
            if !self.can_draft(sequence) {
                return Err(wrong(SeqError::NoDraft { rows: sequence.len() }));
            }
            if *token as usize >= vocab {
                return Err(wrong(SeqError::Token { token: *token, position: sequence.len(), vocab }));
            }
            rows += sequence.draft.waiting().0.len() + 1;
        }
        // Checked before block tables change, so that a refused call has no effect.
        if rows == 0 || rows > max_batch_tokens {
            return Err(EngineError::Rows { rows, max_batch_tokens });
        }
        // The MTP layer writes its rows into blocks that the sequence may share. This can fail, so
        // it happens before any sequence is changed.
        for DraftInput { sequence, .. } in inputs.iter_mut() {
            let rows = sequence.draft.done()..sequence.len();
            self.cache.own_rows(sequence, rows)?;
        }
        let mut tokens = Vec::with_capacity(inputs.len());
        for DraftInput { sequence, token } in inputs.iter_mut() {
            let of_sequence = [sequence.draft.waiting().0, &[*token]].concat();
            sequence.draft.ran(of_sequence.len());
            tokens.push(of_sequence);
        }
        let rows = inputs.iter().zip(&tokens).map(|(input, tokens)| {
            let sequence = &*input.sequence;
            MtpRows { sequence, tokens, hidden: sequence.draft.waiting().1 }
        });
        let ran = self.run_mtp(rows, Some(taker));
        for DraftInput { sequence, .. } in inputs.iter_mut() {
            match ran {
                Ok(()) => sequence.draft.commit(),
                Err(_) => sequence.draft.abandon(sequence.len()),
            }
        }
        ran
    }

    /// Takes the residual rows of the step that has just run, and runs the MTP layer over those
    /// whose next tokens are known. Called before the step's rows count as cached.
    pub(crate) fn keep_up_drafts(&mut self, inputs: &mut [SeqInput<'_>]) -> Result<(), EngineError> {
        let width = self.config().hidden_size;
        let mut at = 0;
        for (input, _) in inputs.iter_mut().zip(&self.outcomes).filter(|(_, outcome)| outcome.is_ok()) {
            let (len, rows) = (input.sequence.len(), input.rows.len());
            let hidden = &self.residual[at * width..(at + rows) * width];
            at += rows;
            // The MTP layer reads tokens, and embeddings have none. `push` takes no rows after the
            // gap, so that nothing is drafted for the rest of the sequence.
            if let InputRows::Tokens(tokens) = input.rows {
                input.sequence.draft.push(len, tokens, hidden);
            }
        }
        let mut left = self.max_batch_tokens();
        for (input, _) in inputs.iter_mut().zip(&self.outcomes).filter(|(_, outcome)| outcome.is_ok()) {
            let sequence = &mut *input.sequence;
            let rows = sequence.draft.run_overdue(left);
            let done = sequence.draft.done();
            // The step has reserved its new blocks, so only blocks with earlier rows can be shared.
            let cached = done..sequence.len().max(done);
            // Without a free block for the copy, the sequence continues without drafts.
            if rows > 0 && self.cache.own_rows(sequence, cached).is_err() {
                sequence.draft.clear();
                continue;
            }
            left -= rows;
        }
        let rows = inputs.iter().map(|input| {
            let sequence = &*input.sequence;
            let (tokens, hidden) = sequence.draft.running(width);
            MtpRows { sequence, tokens, hidden }
        });
        self.run_mtp(rows.filter(|rows| !rows.tokens.is_empty()), None)
    }

    /// Drafts for an answer by n-gram lookup in its text, at most `most`, limited by the room for
    /// their rows and to those that are worth verifying in a step of `rows` answers. Also returns
    /// the cost of the step, in steps without drafts, or `None` for an answer that wants no drafts.
    pub(crate) fn look_up_drafts(
        &self,
        sequence: &Sequence,
        generation: &mut Generation,
        rows: usize,
        most: usize,
    ) -> (Vec<u32>, Option<f64>) {
        let len = sequence.len() + 1;
        // Each answer of the step may take a block for its token, and this one another for its
        // drafts. If fewer are free, the drafts must fit into the last block.
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

    /// Runs the MTP layer; calls `taker` with the logits of each sequence's last row.
    fn run_mtp<'a>(
        &mut self,
        rows: impl Iterator<Item = MtpRows<'a>>,
        taker: Option<&mut dyn LogitsTaker>,
    ) -> Result<(), EngineError> {
        self.batch.clear();
        let mut all_hidden = Vec::new();
        for MtpRows { sequence, tokens, hidden } in rows {
            let path = self.path(sequence.draft.done(), tokens.len());
            self.batch.push(InputRows::Tokens(tokens), sequence.draft.done(), sequence.block_table(), path);
            self.batch.set_adapters(sequence.adapter_scales().unwrap_or(&self.adapter_scales));
            let end = self.batch.rows() as u32;
            // Sums over the inputs of the MTP head (`input_squares`) need every row, and the head
            // runs only over rows whose logits are wanted.
            match (self.all_draft_logits, &taker) {
                (true, None) => self.batch.wanted.extend(end - tokens.len() as u32..end),
                (_, Some(_)) => self.batch.wanted.push(end - 1),
                (false, None) => {}
            }
            all_hidden.push(hidden);
        }
        if self.batch.rows() == 0 {
            return Ok(());
        }
        self.enough.clear();
        if let Some(taker) = &taker {
            self.enough.extend((0..self.batch.wanted.len()).map(|input| taker.enough(input, 0)));
        }
        // Both callbacks borrow the taker: a row comes either whole or as its largest logits.
        let taker = RefCell::new(taker);
        let take = |input: usize, logits: Logits<'_>| {
            if let Some(taker) = &mut *taker.borrow_mut() {
                taker.take(input, 0, logits);
            }
        };
        let step = DraftStep {
            batch: &self.batch,
            hidden: &all_hidden,
            kv: self.cache.store(),
            cancel: &self.cancel,
            on_logits: &mut |input, logits| take(input, Logits::Whole(logits)),
        };
        if self.enough.iter().all(|count| *count == 0) {
            return Ok(self.model.draft(step)?);
        }
        let on_largest = &mut |input: usize, logits: &[_]| take(input, Logits::Largest(logits));
        Ok(self.model.draft_for_largest(step, LargestLogits { counts: &self.enough, on_largest })?)
    }
}
