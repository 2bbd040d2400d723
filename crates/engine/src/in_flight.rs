//! Steps in flight. If ranks share a model layer by layer, a step may begin while later ranks still
//! run earlier ones.

use crate::cache::Sequence;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::flights::StepFlight;
use crate::logits_taker::LogitsTaker;
use crate::step::{LogitsRequest, SeqInput, StepOutcome};
use crate::tracing;
use latent_backend::{CancelToken, Logits, ModelStep};
use std::collections::VecDeque;

/// A step that [`Engine::submit`] has begun, for [`Engine::collect`]. If a ticket is dropped, its
/// step stays in flight until a later one is collected or the engine runs another step. Its logits
/// are discarded.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Ticket(u64);

impl Engine {
    /// Maximum number of steps in flight: the number of pipeline stages of the ranks, so that each
    /// stage works on one step. It is 1 for a model on one host, where [`submit`](Self::submit)
    /// fails.
    pub fn steps_in_flight(&self) -> usize {
        // A draft depends on the logits of the step before it, so such steps cannot overlap.
        if self.drafts() { 1 } else { self.model.steps_in_flight() }
    }

    /// Begins a step, and returns while later ranks still run it. Its rows count as cached
    /// immediately: a later step may continue the sequences if it needs no logits to do so, and a
    /// sequence may be dropped. If the step fails, all steps in flight fail, and the engine cannot
    /// be used any more.
    ///
    /// The ticket is `None` if no input could run. [`StepOutcome`] has the reasons, as for
    /// [`step`](Self::step).
    ///
    /// # Errors
    /// No sequence has changed:
    /// * those of [`step`](Self::step);
    /// * [`EngineError::Stopped`] if the [cancel token](Engine::set_cancel_token) was cancelled
    ///   before the call. A step in flight cannot be cancelled;
    /// * [`EngineError::Options`] if the engine does not support steps in flight, or has
    ///   [`steps_in_flight`](Self::steps_in_flight) of them. [Collect](Self::collect) the oldest
    ///   first.
    pub fn submit(
        &mut self,
        inputs: &mut [SeqInput<'_>],
    ) -> Result<(Option<Ticket>, StepOutcome<'_>), EngineError> {
        self.check_room()?;
        let rows = self.check_all(inputs)?;
        let _entered = tracing::debug_span!("submit", sequences = inputs.len(), tokens = rows).entered();
        if self.cancel.is_cancelled() {
            return Err(EngineError::Stopped);
        }
        if let Err(error) = self.begin(inputs) {
            // `begin` may have reserved state slots for some of the inputs.
            inputs.iter_mut().for_each(|input| input.sequence.abandon());
            return Err(error);
        }
        self.count_rows(inputs);
        if self.batch.rows() == 0 {
            return Ok((None, StepOutcome::of(&self.outcomes)));
        }
        self.flights.begun += 1;
        let number = self.flights.begun;
        // `collect` needs the batch of this step, and the next submission fills a new one.
        let (batch, wanted) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.wanted));
        self.flights.queue.push_back(StepFlight { number, batch, wanted });
        Ok((Some(Ticket(number)), StepOutcome::of(&self.outcomes)))
    }

    /// Checks that one more step may be in flight. The model has buffers for the rows of
    /// `steps_in_flight` steps.
    fn check_room(&self) -> Result<(), EngineError> {
        let (most, now) = (self.steps_in_flight(), self.flights.queue.len());
        let problem = if self.drafts() {
            "steps in flight are not supported with drafts: use Engine::step".into()
        } else if most < 2 {
            "steps in flight need a model with at least two stretches of layers: use Engine::step".into()
        } else if now >= most {
            format!("{now} steps are in flight, which is the maximum: collect the first one")
        } else {
            return Ok(());
        };
        Err(EngineError::Options(problem))
    }

    fn begin(&mut self, inputs: &mut [SeqInput<'_>]) -> Result<(), EngineError> {
        self.admit(inputs)?;
        self.fill_batch(inputs);
        if self.batch.rows() == 0 {
            Ok(())
        } else {
            Ok(self.model.submit(&self.batch, self.cache.store())?)
        }
    }

    /// Waits for the end of a step. `sink` is called with the input, the row within it, and that
    /// row's logits. Earlier uncollected steps are waited for first.
    ///
    /// # Errors
    /// [`EngineError::Backend`] if any step in flight has failed. All of them have failed then.
    pub fn collect(
        &mut self,
        ticket: Ticket,
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), EngineError> {
        self.collect_before(ticket.0)?;
        // Another step stays in front of the queue, where its own ticket can still collect it.
        match self.flights.queue.pop_front_if(|flight| flight.number == ticket.0) {
            Some(flight) => self.wait_for(flight, sink),
            None => {
                let problem = "the step in flight has failed or belongs to another engine";
                Err(EngineError::Options(problem.into()))
            }
        }
    }

    /// Waits for all uncollected steps.
    pub(crate) fn collect_all(&mut self) -> Result<(), EngineError> {
        self.collect_before(u64::MAX)
    }

    fn collect_before(&mut self, number: u64) -> Result<(), EngineError> {
        while let Some(flight) = self.flights.queue.pop_front_if(|flight| flight.number < number) {
            self.wait_for(flight, &mut |_, _, _| {})?;
        }
        Ok(())
    }

    fn wait_for(
        &mut self,
        mut flight: StepFlight,
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), EngineError> {
        let residual = &mut self.residual;
        residual.clear();
        let mut on_hidden = |rows: &[f32]| residual.extend_from_slice(rows);
        let wanted = &flight.wanted;
        let collected = self.model.collect(ModelStep {
            batch: &flight.batch,
            kv: self.cache.store(),
            // Other ranks have begun the step and must finish it.
            cancel: &CancelToken::new(),
            on_logits: &mut |i, logits| sink(wanted[i].0, wanted[i].1, logits),
            on_hidden: self.keep_residual.then_some(&mut on_hidden),
        });
        if collected.is_err() {
            self.flights.queue.clear();
        }
        // Reuse the allocations for the next step.
        flight.wanted.clear();
        (self.batch, self.wanted) = (flight.batch, flight.wanted);
        Ok(collected?)
    }

    /// [`prefill`](Self::prefill) with the maximum number of chunks in flight. A chunk needs the
    /// rows of earlier chunks, but not their logits.
    pub(crate) fn prefill_in_flight(
        &mut self,
        sequence: &mut Sequence,
        (tokens, chunk): (&[u32], usize),
        wanted: LogitsRequest<'_>,
        taker: &mut dyn LogitsTaker,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), EngineError> {
        // Steps of callers that dropped their tickets would occupy places in flight.
        self.collect_all()?;
        let (most, before) = (self.steps_in_flight(), sequence.len());
        let (mut begun, mut done, mut inside) = (0, 0, Vec::new());
        let mut tickets = VecDeque::new();
        let ran = loop {
            if tickets.len() < most && begun < tokens.len() {
                let part = &tokens[begun..tokens.len().min(begun + chunk)];
                let here = wanted.within(begun, part.len(), tokens.len(), &mut inside);
                let mut inputs = [SeqInput::tokens(&mut *sequence, part, here)];
                match self.submit(&mut inputs) {
                    Ok((Some(ticket), _)) => tickets.push_back((ticket, part.len())),
                    Ok((None, outcome)) => break outcome.all(),
                    Err(error) => break Err(error),
                }
                begun += part.len();
                continue;
            }
            let Some((ticket, rows)) = tickets.pop_front() else { break Ok(()) };
            let mut take = |_: usize, row, logits: &[f32]| taker.take(0, done + row, Logits::Whole(logits));
            if let Err(error) = self.collect(ticket, &mut take) {
                break Err(error);
            }
            done += rows;
            if !progress(done) || self.cancel.is_cancelled() {
                break Err(EngineError::Stopped);
            }
        };
        if ran.is_err() {
            // Chunks that were submitted run to their end. Count those that succeed, and discard
            // the rows of the others.
            while let Some((ticket, rows)) = tickets.pop_front()
                && self.collect(ticket, &mut |_, _, _| {}).is_ok()
            {
                done += rows;
            }
            sequence.truncate(before + done);
        }
        ran
    }
}
