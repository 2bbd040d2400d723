//! Many answers at once: one step for all of them, prompts and decoding mixed, and their next tokens chosen in parallel.

use crate::cache::Sequence;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generation::{Chosen, Generation};
use crate::step::{LogitsRequest, SeqInput};
use std::sync::{Mutex, PoisonError};

/// An answer that is being generated, and the sequence that holds its rows.
pub struct Running<'a> {
    /// Its rows in the KV cache.
    pub sequence: &'a mut Sequence,
    /// Its state.
    pub generation: &'a mut Generation,
}

/// What a call of [`Engine::advance`] did for one answer.
#[derive(Debug)]
pub enum Progress {
    /// It had ended before, or there was no room in this step.
    Waited,
    /// Part of its prompt ran.
    Prompt,
    /// A token was chosen.
    Token(Chosen),
}

impl Engine {
    /// Runs one step for all answers that have not ended: what decodes first, and prompts with the tokens that are left of the step, in the order of
    /// `running`. Then chooses the next token of every answer whose prompt is complete, in parallel.
    ///
    /// One result for each answer: an answer that cannot go on (a full KV cache, no token to choose from) has its error there and does not keep the
    /// others from going on.
    ///
    /// # Errors
    /// When the whole step fails; see [`Engine::step`].
    pub fn advance(
        &mut self,
        running: &mut [Running<'_>],
    ) -> Result<Vec<Result<Progress, EngineError>>, EngineError> {
        let shares = self.shares(running);
        let mut results: Vec<Result<Progress, EngineError>> =
            running.iter().map(|_| Ok(Progress::Waited)).collect();
        // tokens are copied, since a generation takes logits while they run
        let tokens: Vec<Vec<u32>> = running
            .iter()
            .zip(&shares)
            .map(|(running, share)| running.generation.pending()[..*share].to_vec())
            .collect();
        let taking: Vec<usize> = (0..running.len()).filter(|i| shares[*i] > 0).collect();
        if taking.is_empty() {
            return Ok(results);
        }
        let mut inputs = Vec::with_capacity(taking.len());
        let mut generations = Vec::with_capacity(taking.len());
        for (i, running) in running.iter_mut().enumerate().filter(|(i, _)| shares[*i] > 0) {
            let complete = shares[i] == running.generation.pending().len();
            let wanted = if complete { LogitsRequest::Last } else { LogitsRequest::Nothing };
            inputs.push(SeqInput::tokens(&mut *running.sequence, &tokens[i], wanted));
            generations.push((&mut *running.generation, complete));
        }
        let outcome = self.step(&mut inputs, &mut |at, _, logits| generations[at].0.take_logits(logits))?;
        let outcomes: Vec<_> = outcome.results().to_vec();
        let mut choosing = Vec::new();
        for (at, ((generation, complete), outcome)) in generations.into_iter().zip(outcomes).enumerate() {
            let i = taking[at];
            results[i] = match outcome {
                Err(error) => Err(EngineError::Sequence { index: Some(i), error }),
                Ok(()) => {
                    generation.mark_run(shares[i]);
                    if complete {
                        choosing.push((i, Mutex::new((generation, None))));
                    }
                    Ok(Progress::Prompt)
                }
            };
        }
        self.model.parallel(choosing.len(), &|at| {
            let mut choice = choosing[at].1.lock().unwrap_or_else(PoisonError::into_inner);
            let chosen = choice.0.choose();
            choice.1 = Some(chosen);
        });
        for (i, choice) in choosing {
            let (_, chosen) = choice.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let Some(chosen) = chosen {
                results[i] = chosen.map(Progress::Token);
            }
        }
        Ok(results)
    }

    /// How many pending tokens of each answer run in the next step.
    fn shares(&self, running: &[Running<'_>]) -> Vec<usize> {
        let pending = |running: &Running<'_>| match running.generation.is_finished() {
            true => 0,
            false => running.generation.pending().len(),
        };
        let mut left = self.max_batch_tokens();
        let mut shares = vec![0; running.len()];
        // an answer that decodes waits for nobody's prompt
        for decodes in [true, false] {
            for (share, running) in shares.iter_mut().zip(running) {
                let pending = pending(running);
                if pending > 0 && (pending == 1) == decodes {
                    *share = pending.min(left);
                    left -= *share;
                }
            }
        }
        shares
    }
}
