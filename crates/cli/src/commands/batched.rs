//! Batches of sequences of equal length with reproducible tokens, for `bench` and `profile`.

use crate::args::EngineArgs;
use crate::exit::UsageError;
use crate::{interrupt, model};
use anyhow::Result;
use latent_backend::KV_BLOCK;
use latent_engine::cache::Sequence;
use latent_engine::{DraftInput, Engine, EngineError, LogitsRequest, SeqInput};
use std::collections::VecDeque;
use std::ops::Range;

/// Sequences and all tokens that they will run.
pub(super) struct BatchedSequences {
    sequences: Vec<Sequence>,
    tokens: Vec<Vec<u32>>,
}

/// Pseudo-random token ids, the same in every run.
pub(super) fn token(i: usize, vocab: usize) -> u32 {
    // Fibonacci hashing: 2^64 divided by the golden ratio. Its high bits are well mixed, so
    // neighbours get unrelated tokens and, in MoE models, unrelated experts. A fixed token would
    // measure a warm subset of the experts.
    let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 20) % vocab as u64) as u32
}

/// Tokens of context that `count` sequences of `length` tokens need.
pub(super) fn context(count: usize, length: usize) -> usize {
    // The cache allocates whole blocks. A single sequence may end within its last one.
    if count == 1 { length } else { count * length.next_multiple_of(KV_BLOCK) }
}

/// Sets the context to the number of tokens needed, or checks that the given one suffices. `limit`
/// is the model's.
pub(super) fn fit(args: &mut EngineArgs, needed: usize, limit: usize) -> Result<()> {
    *args = model::with_context(args, limit).into_owned();
    if needed > limit && args.ctx_size.is_none() {
        let problem = format!(
            "{needed} tokens needed (depth, prompt and generated, all sequences), but the model's context is \
             {limit}: use smaller -d, -p, -n or --sequences"
        );
        return Err(UsageError(problem).into());
    }
    let given = *args.ctx_size.get_or_insert(needed.max(1));
    // The last block is allocated as a whole.
    if needed > given.next_multiple_of(KV_BLOCK) {
        let problem = format!(
            "{needed} tokens needed (depth, prompt and generated, all sequences), but --ctx-size is {given}: \
             omit --ctx-size, or use fewer tokens"
        );
        return Err(UsageError(problem).into());
    }
    Ok(())
}

impl BatchedSequences {
    /// `count` sequences of `length` tokens, with an empty KV cache.
    pub(super) fn new(engine: &Engine, count: usize, length: usize) -> BatchedSequences {
        let vocab = engine.config().vocab_size;
        let tokens = |s: usize| (0..length).map(|i| token(s * length + i, vocab)).collect();
        BatchedSequences {
            sequences: (0..count).map(|_| Sequence::default()).collect(),
            tokens: (0..count).map(tokens).collect(),
        }
    }

    /// Prefills the first `depth` tokens of all sequences. [`truncate`](Self::truncate) returns to
    /// this point.
    pub(super) fn fill(&mut self, engine: &mut Engine, depth: usize) -> Result<(), EngineError> {
        for sequence in 0..self.sequences.len() {
            if depth > 0 {
                self.prefill(engine, sequence, 0..depth, LogitsRequest::Nothing)?;
                // A recurrent state cannot be truncated. Without a snapshot each repetition would
                // prefill `depth` tokens again.
                engine.snapshot(&mut self.sequences[sequence])?;
            }
        }
        Ok(())
    }

    /// Prefills some tokens of the first sequence and requests the last logits.
    pub(super) fn prompt(&mut self, engine: &mut Engine, tokens: Range<usize>) -> Result<(), EngineError> {
        self.prefill(engine, 0, tokens, LogitsRequest::Last)
    }

    fn prefill(
        &mut self,
        engine: &mut Engine,
        sequence: usize,
        tokens: Range<usize>,
        wanted: LogitsRequest,
    ) -> Result<(), EngineError> {
        let (chunk, go_on) = (engine.chunk_for(tokens.len()), &mut |_: usize| !interrupt::asked());
        let tokens = &self.tokens[sequence][tokens];
        engine.prefill(&mut self.sequences[sequence], tokens, chunk, wanted, &mut |_, _| {}, go_on)
    }

    /// Runs some tokens of all sequences in one step.
    pub(super) fn step(
        &mut self,
        engine: &mut Engine,
        tokens: Range<usize>,
        wanted: LogitsRequest,
    ) -> Result<(), EngineError> {
        if interrupt::asked() {
            return Err(EngineError::Stopped);
        }
        let of_each = self.sequences.iter_mut().zip(&self.tokens);
        let mut items: Vec<SeqInput<'_>> =
            of_each.map(|(sequence, all)| SeqInput::tokens(sequence, &all[tokens.clone()], wanted)).collect();
        engine.step(&mut items, &mut |_, _, _| {})?.all()
    }

    /// Decodes these tokens of all sequences, one per step. If several steps may be in flight
    /// (pipeline), the sequences are divided into as many groups.
    pub(super) fn decode(&mut self, engine: &mut Engine, tokens: Range<usize>) -> Result<(), EngineError> {
        let groups = engine.steps_in_flight().min(self.sequences.len());
        if groups < 2 {
            return tokens.into_iter().try_for_each(|at| self.step(engine, at..at + 1, LogitsRequest::Last));
        }
        let size = self.sequences.len().div_ceil(groups);
        let groups = self.sequences.len().div_ceil(size);
        let mut tickets = VecDeque::new();
        for at in tokens {
            for (sequences, all) in self.sequences.chunks_mut(size).zip(self.tokens.chunks(size)) {
                if interrupt::asked() {
                    return Err(EngineError::Stopped);
                }
                // The oldest step in flight is this group's previous one: its next token depends on
                // it.
                if tickets.len() == groups
                    && let Some(ticket) = tickets.pop_front()
                {
                    engine.collect(ticket, &mut |_, _, _| {})?;
                }
                let mut items: Vec<SeqInput<'_>> = sequences
                    .iter_mut()
                    .zip(all)
                    .map(|(sequence, all)| SeqInput::tokens(sequence, &all[at..=at], LogitsRequest::Last))
                    .collect();
                let (ticket, outcome) = engine.submit(&mut items)?;
                outcome.all()?;
                tickets.extend(ticket);
            }
        }
        tickets.into_iter().try_for_each(|ticket| engine.collect(ticket, &mut |_, _, _| {}))
    }

    /// Runs a token and its draft of all sequences in one step.
    pub(super) fn verify(&mut self, engine: &mut Engine, tokens: Range<usize>) -> Result<(), EngineError> {
        let of_each = self.sequences.iter_mut().zip(&self.tokens);
        let mut items: Vec<SeqInput<'_>> =
            of_each.map(|(sequence, all)| SeqInput::drafted(sequence, &all[tokens.clone()])).collect();
        engine.step(&mut items, &mut |_, _, _| {})?.all()
    }

    /// Drafts for all sequences. Their next token is the one at `at`.
    pub(super) fn draft(&mut self, engine: &mut Engine, at: usize) -> Result<(), EngineError> {
        let of_each = self.sequences.iter_mut().zip(&self.tokens);
        let mut items: Vec<DraftInput<'_>> =
            of_each.map(|(sequence, all)| DraftInput { sequence, token: all[at] }).collect();
        engine.draft(&mut items, &mut |_, _| {})
    }

    /// Truncates all sequences to their first tokens.
    pub(super) fn truncate(&mut self, engine: &mut Engine, depth: usize) -> Result<(), EngineError> {
        for sequence in 0..self.sequences.len() {
            let length = engine.truncate(&mut self.sequences[sequence], depth);
            // A recurrent state returns to its last snapshot, which may be before `depth`.
            if length < depth {
                self.prefill(engine, sequence, length..depth, LogitsRequest::Nothing)?;
            }
        }
        Ok(())
    }

    /// Releases all but the first `count` sequences.
    pub(super) fn keep(&mut self, engine: &mut Engine, count: usize) {
        self.tokens.truncate(count);
        let others = self.sequences.split_off(count.min(self.sequences.len()));
        others.into_iter().for_each(|sequence| engine.release(sequence));
    }

    /// Releases all sequences.
    pub(super) fn release(mut self, engine: &mut Engine) {
        self.keep(engine, 0);
    }
}
