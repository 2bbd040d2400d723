//! Steps: one forward pass over new tokens or embeddings of several sequences.

use crate::cache::{KvError, Sequence};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::logits_taker::{LogitsTaker, ShiftedRows, WholeRows};
use crate::seq_error::SeqError;
use crate::tracing;
use latent_backend::{InputRows, LargestLogits, Logits, MAX_TOP_LOGITS, ModelStep};
use std::cell::RefCell;

/// The rows of an input whose logits the caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsRequest<'a> {
    /// No row.
    Nothing,
    /// The last row.
    Last,
    /// All rows.
    All,
    /// These rows, counted from the first row of the input.
    Rows(&'a [usize]),
}

impl<'a> LogitsRequest<'a> {
    /// The request for a chunk of `rows` rows from `first` on, if `self` is the request for all
    /// `all` rows. `inside` is a buffer for row numbers.
    pub(crate) fn within<'i>(
        self,
        first: usize,
        rows: usize,
        all: usize,
        inside: &'i mut Vec<usize>,
    ) -> LogitsRequest<'i>
    where
        'a: 'i,
    {
        match self {
            // Only the last chunk of the prompt has the last row.
            LogitsRequest::Last if first + rows < all => LogitsRequest::Nothing,
            LogitsRequest::Rows(wanted) => {
                inside.clear();
                let here = wanted.iter().filter(|row| (first..first + rows).contains(*row));
                inside.extend(here.map(|row| row - first));
                LogitsRequest::Rows(inside)
            }
            other => other,
        }
    }
}

/// New rows of one sequence in a step: tokens, or embeddings in place of them.
pub struct SeqInput<'a> {
    /// The sequence that the rows continue.
    pub sequence: &'a mut Sequence,
    /// The rows: at least one.
    pub rows: InputRows<'a>,
    /// The rows whose logits are needed.
    pub wanted: LogitsRequest<'a>,
    /// Whether all rows but the first are drafts, which the caller may truncate. All rows attend in
    /// the formulation of a single row, so that their logits are those of single-row steps.
    pub drafted: bool,
}

impl<'a> SeqInput<'a> {
    /// An input of tokens.
    pub fn tokens(sequence: &'a mut Sequence, tokens: &'a [u32], wanted: LogitsRequest<'a>) -> SeqInput<'a> {
        SeqInput { sequence, rows: InputRows::Tokens(tokens), wanted, drafted: false }
    }

    /// A chosen token followed by drafts, with the logits of all rows.
    pub fn drafted(sequence: &'a mut Sequence, tokens: &'a [u32]) -> SeqInput<'a> {
        SeqInput { drafted: true, ..SeqInput::tokens(sequence, tokens, LogitsRequest::All) }
    }

    /// An input of embeddings: `values` are rows of `width` elements, the model's hidden size, as
    /// the first layer reads them ([`InputRows::Embeddings`]). The same step may have token inputs
    /// for other sequences.
    pub fn embeddings(
        sequence: &'a mut Sequence,
        values: &'a [f32],
        width: usize,
        wanted: LogitsRequest<'a>,
    ) -> SeqInput<'a> {
        SeqInput { sequence, rows: InputRows::Embeddings { values, width }, wanted, drafted: false }
    }
}

/// The outcome of a step: for each input, in order, whether it ran.
#[derive(Clone, Copy, Debug)]
pub struct StepOutcome<'e>(&'e [Result<(), SeqError>]);

impl<'e> StepOutcome<'e> {
    pub(crate) fn of(results: &'e [Result<(), SeqError>]) -> StepOutcome<'e> {
        StepOutcome(results)
    }

    /// One result for each input.
    pub fn results(&self) -> &'e [Result<(), SeqError>] {
        self.0
    }

    /// The indices of the inputs that did not run, and their errors.
    pub fn refused(&self) -> impl Iterator<Item = (usize, &'e SeqError)> + use<'e> {
        self.0.iter().enumerate().filter_map(|(index, result)| Some((index, result.as_ref().err()?)))
    }

    /// Succeeds if all inputs ran.
    ///
    /// # Errors
    /// [`EngineError::Sequence`] with the first input that did not run.
    pub fn all(&self) -> Result<(), EngineError> {
        match self.refused().next() {
            None => Ok(()),
            Some((index, error)) => {
                let index = (self.0.len() > 1).then_some(index);
                Err(EngineError::Sequence { index, error: error.clone() })
            }
        }
    }
}

impl Engine {
    /// Runs new rows of one or several sequences. `sink` is called with the input, the row within
    /// it, and that row's logits.
    ///
    /// If an input cannot run (see [`SeqError`]), its sequence is unchanged and the other inputs
    /// run. [`StepOutcome`] has its error.
    ///
    /// # Errors
    /// No sequence has changed:
    /// * [`EngineError::Rows`] for a step without rows, or with more than
    ///   [`max_batch_tokens`](Self::max_batch_tokens);
    /// * [`EngineError::Stopped`] if the step was [cancelled](Engine::set_cancel_token);
    /// * [`EngineError::Backend`] if the backend fails.
    pub fn step(
        &mut self,
        inputs: &mut [SeqInput<'_>],
        sink: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<StepOutcome<'_>, EngineError> {
        self.step_for(inputs, &mut WholeRows(sink))
    }

    /// Like [`step`](Self::step), for a taker that needs only the largest logits of some rows.
    pub(crate) fn step_for(
        &mut self,
        inputs: &mut [SeqInput<'_>],
        taker: &mut dyn LogitsTaker,
    ) -> Result<StepOutcome<'_>, EngineError> {
        // Steps in flight whose tickets were dropped still use the model's buffers.
        self.collect_all()?;
        let rows = self.check_all(inputs)?;
        let span = tracing::debug_span!("step", sequences = inputs.len(), tokens = rows);
        let _entered = span.enter();
        let ran = self.run(inputs, taker);
        let drafts = self.drafts();
        // Rows count only after the MTP layer has run too: a failure of either leaves every
        // sequence as it was.
        if let Err(error) = ran.and_then(|()| if drafts { self.keep_up_drafts(inputs) } else { Ok(()) }) {
            inputs.iter_mut().for_each(|input| input.sequence.abandon());
            return Err(error);
        }
        self.count_rows(inputs);
        Ok(StepOutcome(&self.outcomes))
    }

    /// Counts the rows of the inputs that ran as cached.
    pub(crate) fn count_rows(&self, inputs: &mut [SeqInput<'_>]) {
        for (input, _) in inputs.iter_mut().zip(&self.outcomes).filter(|(_, outcome)| outcome.is_ok()) {
            match input.rows {
                InputRows::Tokens(tokens) => input.sequence.advance_tokens(tokens),
                rows @ InputRows::Embeddings { .. } => input.sequence.advance_embedded(rows.len()),
            }
        }
    }

    /// Runs the inputs that can run. The caller counts or abandons the new rows of their sequences.
    fn run(&mut self, inputs: &mut [SeqInput<'_>], taker: &mut dyn LogitsTaker) -> Result<(), EngineError> {
        self.admit(inputs)?;
        self.fill_batch(inputs);
        if self.batch.rows() == 0 {
            return Ok(());
        }
        let needs_hidden = self.drafts() || self.keep_residual;
        let (wanted, residual) = (&self.wanted, &mut self.residual);
        residual.clear();
        self.enough.clear();
        self.enough.extend(wanted.iter().map(|(input, row)| taker.enough(*input, *row).min(MAX_TOP_LOGITS)));
        let mut on_hidden = |rows: &[f32]| residual.extend_from_slice(rows);
        // Both callbacks borrow the taker: a row comes either whole or as its largest logits.
        let taker = RefCell::new(taker);
        let take = |i: usize, logits: Logits<'_>| taker.borrow_mut().take(wanted[i].0, wanted[i].1, logits);
        let step = ModelStep {
            batch: &self.batch,
            kv: self.cache.store(),
            cancel: &self.cancel,
            on_logits: &mut |i, logits| take(i, Logits::Whole(logits)),
            on_hidden: needs_hidden.then_some(&mut on_hidden),
        };
        if self.enough.iter().all(|count| *count == 0) {
            return Ok(self.model.step(step)?);
        }
        let on_largest = &mut |i: usize, logits: &[_]| take(i, Logits::Largest(logits));
        Ok(self.model.step_for_largest(step, LargestLogits { counts: &self.enough, on_largest })?)
    }

    /// Checks which inputs can run. Returns the number of their rows.
    pub(crate) fn check_all(&mut self, inputs: &[SeqInput<'_>]) -> Result<usize, EngineError> {
        let (mut rows, max_batch_tokens) = (0, self.max_batch_tokens());
        self.outcomes.clear();
        for input in inputs {
            let outcome = self.check(input);
            if outcome.is_ok() {
                rows += input.rows.len();
            }
            self.outcomes.push(outcome);
        }
        // A single empty input is an error of that input. A step of only such inputs is an error of
        // the call.
        let nothing = self.outcomes.iter().all(|outcome| *outcome == Err(SeqError::NoRows));
        if nothing || rows > max_batch_tokens {
            return Err(EngineError::Rows { rows, max_batch_tokens });
        }
        Ok(rows)
    }

    /// Reserves blocks and slots of recurrent state for the inputs that can run.
    pub(crate) fn admit(&mut self, inputs: &mut [SeqInput<'_>]) -> Result<(), EngineError> {
        // Inputs with drafts first: they need a slot for the state after each row, and the drafts
        // were limited to the free slots. Snapshots of other inputs are optional and take what
        // remains.
        for drafted in [true, false] {
            let fit = inputs.iter_mut().zip(&mut self.outcomes).filter(|(_, outcome)| outcome.is_ok());
            for (input, outcome) in fit.filter(|(input, _)| input.drafted == drafted) {
                let rows = input.rows.len();
                let reserved = match drafted {
                    true => self.cache.reserve_drafted(input.sequence, rows),
                    false => self.cache.reserve(input.sequence, rows),
                };
                match reserved {
                    // A full cache concerns this input only. A failing backend concerns the whole
                    // step.
                    Ok(()) => {}
                    Err(KvError::Full(full)) => *outcome = Err(full.into()),
                    Err(KvError::States(full)) => *outcome = Err(full.into()),
                    Err(KvError::Backend(error)) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn check(&self, input: &SeqInput<'_>) -> Result<(), SeqError> {
        let nothing = match input.rows {
            InputRows::Tokens(tokens) => tokens.is_empty(),
            InputRows::Embeddings { values, .. } => values.is_empty(),
        };
        if nothing {
            return Err(SeqError::NoRows);
        }
        if !self.cache.owns(input.sequence) {
            return Err(SeqError::Foreign);
        }
        match input.rows {
            InputRows::Tokens(tokens) => self.check_tokens(input.sequence.len(), tokens)?,
            InputRows::Embeddings { values, width } => {
                self.check_embeddings(input.sequence.len(), values, width)?;
            }
        }
        let rows = input.rows.len();
        match input.wanted {
            LogitsRequest::Rows(wanted) => match wanted.iter().find(|&&row| row >= rows) {
                Some(&row) => Err(SeqError::Wanted { row, rows }),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn check_tokens(&self, first: usize, tokens: &[u32]) -> Result<(), SeqError> {
        let vocab = self.config().vocab_size;
        match tokens.iter().position(|&token| token as usize >= vocab) {
            None => Ok(()),
            Some(i) => Err(SeqError::Token { token: tokens[i], position: first + i, vocab }),
        }
    }

    fn check_embeddings(&self, first: usize, values: &[f32], width: usize) -> Result<(), SeqError> {
        let (elements, hidden) = (values.len(), self.config().hidden_size);
        if width != hidden || elements % hidden != 0 {
            return Err(SeqError::EmbeddingWidth { elements, width, hidden });
        }
        // One NaN would spread to all later rows of the sequence through attention.
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(i) => {
                Err(SeqError::EmbeddingNotFinite { position: first + i / hidden, element: i % hidden })
            }
        }
    }

    /// The rows of the inputs that run.
    pub(crate) fn fill_batch(&mut self, inputs: &[SeqInput<'_>]) {
        self.wanted.clear();
        self.batch.clear();
        for (number, input) in inputs.iter().enumerate().filter(|(number, _)| self.outcomes[*number].is_ok())
        {
            let first = self.batch.rows();
            let rows = if input.drafted { 1 } else { input.rows.len() };
            let (len, block_table) = (input.sequence.len(), input.sequence.block_table());
            // A row and its drafts attend in the formulation of one row. Formulations differ in
            // their rounding, and drafts must not change the text.
            let path = self.path(len + input.rows.len() - rows, rows);
            self.batch.push(input.rows, len, block_table, path).state = input.sequence.span_state();
            self.batch.set_adapters(input.sequence.adapter_scales().unwrap_or(&self.adapter_scales));
            let mut want = |row: usize| {
                self.wanted.push((number, row));
                self.batch.wanted.push((first + row) as u32);
            };
            match input.wanted {
                LogitsRequest::Nothing => {}
                LogitsRequest::Last => want(input.rows.len() - 1),
                LogitsRequest::All => (0..input.rows.len()).for_each(want),
                LogitsRequest::Rows(rows) => rows.iter().copied().for_each(want),
            }
        }
    }

    /// Runs tokens of one sequence in chunks of at most `chunk` tokens. `sink` is called with rows
    /// counted from the first token, `progress` with the number of finished tokens; if it returns
    /// false, the run stops.
    ///
    /// # Errors
    /// As for [`step`](Self::step), and [`EngineError::Sequence`]. Chunks before the failing one
    /// stay in the cache.
    pub fn prefill(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        chunk: usize,
        wanted: LogitsRequest<'_>,
        sink: &mut dyn FnMut(usize, &[f32]),
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), EngineError> {
        let mut sink = |_: usize, row: usize, logits: &[f32]| sink(row, logits);
        self.prefill_for(sequence, tokens, chunk, wanted, &mut WholeRows(&mut sink), progress)
    }

    /// Like [`prefill`](Self::prefill), for a taker that needs only the largest logits of some
    /// rows.
    pub(crate) fn prefill_for(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        chunk: usize,
        wanted: LogitsRequest<'_>,
        taker: &mut dyn LogitsTaker,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), EngineError> {
        let chunk = chunk.clamp(1, self.max_batch_tokens());
        // A single chunk cannot overlap with another.
        if tokens.len() > chunk && self.steps_in_flight() > 1 {
            return self.prefill_in_flight(sequence, (tokens, chunk), wanted, taker, progress);
        }
        let (mut done, mut inside) = (0, Vec::new());
        for part in tokens.chunks(chunk) {
            let here = wanted.within(done, part.len(), tokens.len(), &mut inside);
            let mut inputs = [SeqInput::tokens(&mut *sequence, part, here)];
            self.step_for(&mut inputs, &mut ShiftedRows { taker: &mut *taker, by: done })?.all()?;
            done += part.len();
            if !progress(done) {
                return Err(EngineError::Stopped);
            }
        }
        Ok(())
    }
}
