//! Drafts by the model's MTP layer: its rows are kept up as steps run, and it proposes the token after the next.

use crate::cache::Sequence;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::logits_taker::{LogitsTaker, WholeRows};
use crate::seq_error::SeqError;
use crate::step::SeqInput;
use latent_backend::{DraftStep, InputRows, KV_BLOCK, LargestLogits, Logits, TokenLogit};
use latent_graph::stage_index;
use std::cell::RefCell;

/// One sequence of [`Engine::draft`], and the token that was chosen after its last row.
pub struct DraftInput<'a> {
    /// The sequence; its rows stay as many as they are.
    pub sequence: &'a mut Sequence,
    /// The token of the row that it will run next.
    pub token: u32,
}

/// Rows of one sequence behind those that its MTP layer has.
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

/// The token of the largest logit, the first of equal ones; none where no logit is a number above −∞.
fn likeliest(logits: impl Iterator<Item = (u32, f32)>) -> Option<u32> {
    let mut best = None;
    for (token, logit) in logits {
        if logit > best.map_or(f32::NEG_INFINITY, |(_, most)| most) {
            best = Some((token, logit));
        }
    }
    best.map(|(token, _)| token)
}

impl Engine {
    /// Whether the engine was loaded with its model's MTP layer, so that it can [draft](Self::draft).
    pub fn drafts(&self) -> bool {
        stage_index::mtp(self.model.stages()).is_some()
    }

    /// Whether a token can be drafted after the next token of this sequence: its rows were run by this engine as tokens, from the first on, and
    /// its last row since anything was truncated.
    pub fn can_draft(&self, sequence: &Sequence) -> bool {
        self.drafts()
            && self.cache.owns(sequence)
            && sequence.draft.is_complete(sequence.len())
            && !sequence.draft.waiting().1.is_empty()
    }

    /// Whether a token and a draft of the next one have room behind a sequence, one of `running` that take blocks of the KV cache, and one can
    /// be drafted.
    pub(crate) fn has_room_for_draft(&self, sequence: &Sequence, running: usize) -> bool {
        let len = sequence.len() + 2;
        let there = len <= sequence.block_table().len() * KV_BLOCK;
        let room = there || self.cache.available() >= running * KV_BLOCK;
        let rows = (sequence.draft.waiting().0.len() + 1).max(2);
        let states = self.cache.room_for_drafted_states(running) >= running;
        len <= self.context() && room && states && rows <= self.max_batch_tokens() && self.can_draft(sequence)
    }

    /// Enables or disables drafts for this sequence. Without drafts, its steps do not run the MTP
    /// layer and its draft rows are discarded, so that drafts cannot be enabled again before the
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
    /// No sequence has changed then:
    /// * [`EngineError::Options`] when the engine was loaded without drafts;
    /// * [`EngineError::Sequence`] for a sequence that [cannot be drafted for](Self::can_draft), a token out of range;
    /// * [`EngineError::CacheFull`] when a block that others share would have to be copied and none is free;
    /// * [`EngineError::Rows`], [`EngineError::Stopped`] and [`EngineError::Backend`] as for [`step`](Self::step).
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
        if rows == 0 || rows > max_batch_tokens {
            return Err(EngineError::Rows { rows, max_batch_tokens });
        }
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

    /// Takes the residual rows of a step that has just run for the MTP layer, and runs it over those whose next tokens the step has; its
    /// sequences are as they were before the step.
    pub(crate) fn keep_up_drafts(&mut self, inputs: &mut [SeqInput<'_>]) -> Result<(), EngineError> {
        let width = self.config().hidden_size;
        let mut at = 0;
        for (input, _) in inputs.iter_mut().zip(&self.outcomes).filter(|(_, outcome)| outcome.is_ok()) {
            let (len, rows) = (input.sequence.len(), input.rows.len());
            let hidden = &self.residual[at * width..(at + rows) * width];
            at += rows;
            // embeddings have no tokens that the layer could read: nothing is drafted after them
            if let InputRows::Tokens(tokens) = input.rows {
                input.sequence.draft.push(len, tokens, hidden);
            }
        }
        let mut left = self.max_batch_tokens();
        for (input, _) in inputs.iter_mut().zip(&self.outcomes).filter(|(_, outcome)| outcome.is_ok()) {
            let sequence = &mut *input.sequence;
            let rows = sequence.draft.run_overdue(left);
            let done = sequence.draft.done();
            // blocks behind the sequence's last row are its own already
            let cached = done..sequence.len().max(done);
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
        // rows come whole or cut
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
