//! One step for many answers, prompts and decoding mixed. Their next tokens are chosen in parallel.

use crate::cache::Sequence;
use crate::draft::{DraftInput, DraftedTokens};
use crate::embedding::Embedding;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generation::{ChosenToken, Generation};
use crate::in_flight::Ticket;
use crate::logits_taker::{KeptLogits, LogitsTaker};
use crate::lookup::StepCosts;
use crate::seq_error::SeqError;
use crate::step::{LogitsRequest, SeqInput};
use latent_backend::{Instant, Logits};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Maximum time that a step waits for logits processors that are not ready, all answers together.
/// One slow mask must not delay the tokens of every answer.
const GRACE: Duration = Duration::from_millis(2);

/// Number of answers among which the draft rows of a step are divided. Each answer gets a fourth of
/// the rows that earlier ones have left, or more if fewer than four answers remain.
const SHARED_DRAFTS: usize = 4;

/// A call without other work waits for processors for `LATE_ROUNDS` rounds of `LATE_ROUND`.
const LATE_ROUNDS: usize = 20;
const LATE_ROUND: Duration = Duration::from_millis(1);

/// An answer that is being generated, and the sequence that holds its rows.
pub struct RunningAnswer<'a> {
    /// The rows in the KV cache.
    pub sequence: &'a mut Sequence,
    /// The state of the answer.
    pub generation: &'a mut Generation,
    /// Maximum number of tokens that run in this step.
    pub most: usize,
    /// Receives the hidden states of the rows. No token is chosen then.
    pub(crate) embedding: Option<&'a mut Embedding>,
}

impl<'a> RunningAnswer<'a> {
    /// An answer without a limit on the tokens that run in this step.
    pub fn new(sequence: &'a mut Sequence, generation: &'a mut Generation) -> RunningAnswer<'a> {
        RunningAnswer { sequence, generation, most: usize::MAX, embedding: None }
    }

    /// Checks that the rows of the sequence are those of the tokens that the generation has run.
    fn check(&self) -> Result<(), SeqError> {
        let (rows, tokens) = (self.sequence.len(), self.generation.ran());
        // After a context shift, or with embeddings, tokens are known for the first rows only.
        let known = self.sequence.tokens();
        if rows == tokens.len() && tokens.starts_with(known) {
            return Ok(());
        }
        let differs = || known.iter().zip(tokens).position(|(row, token)| row != token);
        let position = differs().unwrap_or(rows.min(tokens.len()));
        Err(SeqError::OtherTokens { position, rows, ran: tokens.len() })
    }

    fn may_run(&self) -> bool {
        self.most > 0 && !self.generation.is_finished() && !self.generation.pending().is_empty()
    }

    fn reborrow(&mut self) -> RunningAnswer<'_> {
        let RunningAnswer { sequence, generation, most, embedding } = self;
        RunningAnswer { sequence, generation, most: *most, embedding: embedding.as_deref_mut() }
    }
}

/// What a call of [`Engine::advance`] did for one answer.
#[derive(Debug)]
pub enum AnswerProgress {
    /// The answer had ended before, or the step had no room for its tokens.
    Waited,
    /// Part of the prompt ran.
    Prompt,
    /// The tokens have run, but a logits processor is not
    /// [ready](crate::LogitsProcessor::is_ready). A later call chooses the next token.
    Late,
    /// A token was chosen.
    Token(ChosenToken),
    /// Drafts were accepted. The list also has the token after them, unless a processor is not
    /// ready for it.
    Tokens(Vec<ChosenToken>),
    /// Drafts were accepted, but no token can be chosen after them.
    Stuck(Vec<ChosenToken>, EngineError),
}

/// An answer's part of a step.
struct AnswerShare {
    /// Index of the answer in the list of running answers.
    at: usize,
    /// Number of tokens that run, without drafts.
    share: usize,
    /// Whether the next token can be chosen after these tokens have run.
    complete: bool,
    /// The tokens, followed by drafts.
    tokens: Vec<u32>,
    /// Cost of the step, in steps without drafts. `None` if no drafts were looked up.
    cost: Option<f64>,
    /// The logits of the rows of drafts.
    after: Vec<KeptLogits>,
}

impl AnswerShare {
    fn drafts(&self) -> &[u32] {
        &self.tokens[self.share..]
    }
}

/// Receives the logits of one answer: the generation keeps those of its token's row, and `after`
/// has a place for each draft's row.
pub(crate) struct GenerationTaker<'t> {
    pub(crate) generation: &'t mut Generation,
    pub(crate) after: &'t mut [KeptLogits],
}

impl LogitsTaker for GenerationTaker<'_> {
    fn enough(&self, _input: usize, row: usize) -> usize {
        // Row `row` is sampled after `row` more tokens were chosen, and how many logits suffice can
        // depend on the number of tokens.
        self.generation.enough(row)
    }

    fn take(&mut self, _input: usize, row: usize, logits: Logits<'_>) {
        // Row 0 is that of the answer's token, row d that of draft d. A prompt has no drafts, and
        // the generation keeps the logits of its last row.
        match row.checked_sub(1).and_then(|draft| self.after.get_mut(draft)) {
            Some(after) => after.keep(logits),
            None => self.generation.keep_logits(logits),
        }
    }
}

/// The takers of all answers of a step, by input.
struct AnswerTakers<'t>(Vec<GenerationTaker<'t>>);

impl LogitsTaker for AnswerTakers<'_> {
    fn enough(&self, input: usize, row: usize) -> usize {
        self.0[input].enough(0, row)
    }

    fn take(&mut self, input: usize, row: usize, logits: Logits<'_>) {
        self.0[input].take(0, row, logits);
    }
}

/// A step of many answers that is in flight.
pub(crate) struct AdvanceFlight {
    ticket: Ticket,
    parts: Vec<AnswerShare>,
    /// The input of each part in the step.
    inputs: Vec<usize>,
}

/// The step that [`Engine::begin_advance`] has begun, or `None` if no answer runs, and the result
/// of each answer that does not run.
pub(crate) type AdvanceStart = (Option<AdvanceFlight>, Vec<Option<Result<AnswerProgress, EngineError>>>);

/// Counts the tokens of the parts that ran. Removes the other parts and sets their results to
/// errors.
fn mark_run(
    running: &mut [RunningAnswer<'_>],
    parts: &mut Vec<AnswerShare>,
    outcomes: Vec<Result<(), SeqError>>,
    results: &mut [Result<AnswerProgress, EngineError>],
) {
    let mut outcomes = outcomes.into_iter();
    parts.retain(|part| match outcomes.next() {
        Some(Err(error)) => {
            results[part.at] = Err(EngineError::Sequence { index: Some(part.at), error });
            false
        }
        _ => {
            running[part.at].generation.mark_run(part.share);
            true
        }
    });
}

impl Engine {
    /// Runs one step for all answers that have not ended. Decoding answers run first; prompts share
    /// the rest of the step, in the order of `running`. Then chooses the next token of every answer
    /// whose prompt is complete, in parallel.
    ///
    /// In an engine that drafts, a decoding answer verifies drafts in the same step as its token,
    /// and gets one more token for each accepted draft. Its text is the same as without drafts.
    ///
    /// Returns one result per answer. If an answer cannot continue (a full KV cache, no token to
    /// choose from, a panic in its own code), its result is the error, and the others continue.
    ///
    /// # Errors
    /// When the whole step fails; see [`Engine::step`].
    pub fn advance(
        &mut self,
        running: &mut [RunningAnswer<'_>],
    ) -> Result<Vec<Result<AnswerProgress, EngineError>>, EngineError> {
        let errors: Vec<Option<SeqError>> =
            running.iter().map(|running| running.check().err().filter(|_| running.may_run())).collect();
        let most: Vec<usize> = running.iter().map(|running| running.most).collect();
        // An answer whose sequence holds other tokens must not run: it would continue the wrong
        // text.
        for (running, _) in running.iter_mut().zip(&errors).filter(|(_, error)| error.is_some()) {
            running.most = 0;
        }
        let results = self.advance_owned(running);
        running.iter_mut().zip(most).for_each(|(running, most)| running.most = most);
        let mut results = results?;
        for (at, error) in errors.into_iter().enumerate() {
            if let Some(error) = error {
                results[at] = Err(EngineError::Sequence { index: Some(at), error });
            }
        }
        Ok(results)
    }

    /// [`advance`](Self::advance) for a caller that owns both sequences and generations. It does
    /// not compare their tokens, which takes time in proportion to the context.
    pub(crate) fn advance_owned(
        &mut self,
        running: &mut [RunningAnswer<'_>],
    ) -> Result<Vec<Result<AnswerProgress, EngineError>>, EngineError> {
        let mut results: Vec<Result<AnswerProgress, EngineError>> =
            running.iter().map(|_| Ok(AnswerProgress::Waited)).collect();
        // Late answers have no pending tokens, so they never have a part in this step.
        let mut parts = self.parts(running);
        let late = running.iter_mut().enumerate().filter(|(_, running)| running.generation.is_late());
        let (late, mut generations): (Vec<_>, Vec<_>) =
            late.map(|(at, running)| (at, &mut *running.generation)).unzip();
        for (at, result) in late.into_iter().zip(self.sample_late(&mut generations, parts.is_empty())) {
            results[at] = result;
        }
        if parts.is_empty() {
            return Ok(results);
        }
        self.look_up_parts(running, &mut parts);
        self.draft_parts(running, &mut parts)?;
        // Reset below in every case, so that later steps do not copy rows without need.
        self.keep_residual = running.iter().any(|running| running.embedding.is_some());
        let start = Instant::now();
        let outcomes = self.run_parts(running, &mut parts);
        self.keep_residual = false;
        // Only steps without prompts tell what a draft row costs.
        if parts.iter().all(|part| part.complete && part.share == 1) {
            let rows = parts.iter().map(|part| part.tokens.len()).sum();
            self.step_costs.count(rows, start.elapsed().as_secs_f64());
        }
        mark_run(running, &mut parts, outcomes?, &mut results);
        let mut running: Vec<_> = running.iter_mut().map(|running| Some(running.reborrow())).collect();
        self.follow_parts(&mut running, &parts, &mut results);
        Ok(results)
    }

    /// Chooses the next tokens of [late](Generation::is_late) answers whose processors are ready
    /// now. With `wait`, waits for the first of them, for a bounded time.
    pub(crate) fn sample_late(
        &mut self,
        late: &mut [&mut Generation],
        wait: bool,
    ) -> Vec<Result<AnswerProgress, EngineError>> {
        if late.is_empty() {
            return Vec::new();
        }
        if wait {
            wait_for_any(late);
        }
        let until = Instant::now();
        // Each element is accessed by one thread only. The mutex makes that safe without unsafe
        // code.
        let choices: Vec<_> =
            late.iter_mut().map(|late| Mutex::new((late, Ok(AnswerProgress::Late)))).collect();
        self.model.parallel(choices.len(), &|at| {
            let mut choice = choices[at].lock().unwrap_or_else(PoisonError::into_inner);
            let chosen = choice.0.sample_until(until);
            choice.1 = chosen.map(|chosen| chosen.map_or(AnswerProgress::Late, AnswerProgress::Token));
        });
        let results =
            choices.into_iter().map(|choice| choice.into_inner().unwrap_or_else(PoisonError::into_inner).1);
        results.collect()
    }

    /// Like [`advance_owned`](Self::advance_owned), as a step in flight and without drafts.
    ///
    /// # Errors
    /// As for [`Engine::submit`].
    pub(crate) fn begin_advance(
        &mut self,
        running: &mut [RunningAnswer<'_>],
    ) -> Result<AdvanceStart, EngineError> {
        let mut results: Vec<_> = running.iter().map(|_| Ok(AnswerProgress::Waited)).collect();
        let mut parts = self.parts(running);
        if parts.is_empty() {
            return Ok((None, results.into_iter().map(Some).collect()));
        }
        let mut of_parts = parts.iter().peekable();
        let mut inputs = Vec::new();
        for (at, running) in running.iter_mut().enumerate() {
            let Some(part) = of_parts.next_if(|part| part.at == at) else { continue };
            let wanted = if part.complete { LogitsRequest::Last } else { LogitsRequest::Nothing };
            inputs.push(SeqInput::tokens(&mut *running.sequence, &part.tokens, wanted));
        }
        let (ticket, outcome) = self.submit(&mut inputs)?;
        let outcomes = outcome.results().to_vec();
        let numbers = outcomes.iter().enumerate().filter(|(_, outcome)| outcome.is_ok());
        let inputs = numbers.map(|(number, _)| number).collect();
        mark_run(running, &mut parts, outcomes, &mut results);
        let runs = |at: usize| parts.iter().any(|part| part.at == at);
        let results = results.into_iter().enumerate().map(|(at, result)| (!runs(at)).then_some(result));
        let results = results.collect();
        // From here on, `at` is an index into the answers that run.
        parts.iter_mut().enumerate().for_each(|(at, part)| part.at = at);
        Ok((ticket.map(|ticket| AdvanceFlight { ticket, parts, inputs }), results))
    }

    /// Collects the step that [`begin_advance`](Self::begin_advance) has begun, and chooses tokens.
    /// `running` has the answers that run, in their order. Results of `None` elements are
    /// discarded.
    ///
    /// # Errors
    /// As for [`Engine::collect`].
    pub(crate) fn end_advance(
        &mut self,
        advancing: AdvanceFlight,
        running: &mut [Option<RunningAnswer<'_>>],
    ) -> Result<Vec<Result<AnswerProgress, EngineError>>, EngineError> {
        let AdvanceFlight { ticket, parts, inputs } = advancing;
        self.keep_residual = running.iter().flatten().any(|running| running.embedding.is_some());
        let collected = self.collect(ticket, &mut |input, _, logits| {
            // `inputs` is in ascending order, one element per part. Other inputs did not run.
            let part = inputs.binary_search(&input).ok().map(|place| &parts[place]);
            if let Some(running) = part.and_then(|part| running[part.at].as_mut()) {
                running.generation.keep_logits(Logits::Whole(logits));
            }
        });
        self.keep_residual = false;
        collected?;
        let mut results = running.iter().map(|_| Ok(AnswerProgress::Waited)).collect::<Vec<_>>();
        self.follow_parts(running, &parts, &mut results);
        Ok(results)
    }

    /// Chooses the next tokens of answers whose parts have run.
    fn follow_parts(
        &mut self,
        running: &mut [Option<RunningAnswer<'_>>],
        parts: &[AnswerShare],
        results: &mut [Result<AnswerProgress, EngineError>],
    ) {
        self.take_hidden(running, parts);
        let mut choosing = Vec::new();
        let mut generations: Vec<_> = running
            .iter_mut()
            .map(|running| running.as_mut().map(|running| &mut *running.generation))
            .collect();
        for part in parts {
            let Some(generation) = generations[part.at].take() else { continue };
            results[part.at] = Ok(AnswerProgress::Prompt);
            if part.complete {
                choosing.push((part, Mutex::new((generation, None))));
            }
        }
        // One time limit for all answers, whatever their number.
        let until = Instant::now() + GRACE;
        self.model.parallel(choosing.len(), &|at| {
            let mut choice = choosing[at].1.lock().unwrap_or_else(PoisonError::into_inner);
            choice.1 = Some(sample(choice.0, choosing[at].0, until));
        });
        let mut refused = Vec::new();
        for (part, choice) in choosing {
            let (_, chosen) = choice.into_inner().unwrap_or_else(PoisonError::into_inner);
            // Every task has run, so `None` does not occur.
            let Some(chosen) = chosen else { continue };
            let (progress, accepted) = match chosen {
                Ok((progress, accepted)) => (Ok(progress), accepted),
                Err(error) => (Err(error), 0),
            };
            refused.push((part.at, part.drafts().len() - accepted));
            results[part.at] = progress;
        }
        // Truncated after the sampling, which borrows all generations of `running`.
        for (at, rows) in refused {
            if let Some(running) = &mut running[at] {
                running.sequence.truncate(running.sequence.len() - rows);
                running.sequence.settle();
            }
        }
    }

    /// The parts of the answers that run in the next step, without drafts.
    fn parts(&self, running: &[RunningAnswer<'_>]) -> Vec<AnswerShare> {
        let shares = self.shares(running);
        let part = |(at, share): (usize, usize)| {
            let pending = running[at].generation.pending();
            // Copied, since the step borrows the generation mutably to store logits.
            let tokens = pending[..share].to_vec();
            let complete = share == pending.len() && running[at].embedding.is_none();
            (share > 0).then_some(AnswerShare { at, share, complete, tokens, cost: None, after: Vec::new() })
        };
        shares.into_iter().enumerate().filter_map(part).collect()
    }

    /// Adds the residual rows of the step to the embeddings.
    fn take_hidden(&self, running: &mut [Option<RunningAnswer<'_>>], parts: &[AnswerShare]) {
        let Some(norm) = &self.final_norm else { return };
        let (width, mut first) = (self.config().hidden_size, 0);
        for part in parts {
            let rows = part.tokens.len();
            if let Some(embedding) = running[part.at].as_mut().and_then(|running| running.embedding.as_mut())
            {
                embedding.add(norm, &self.residual[first * width..(first + rows) * width]);
            }
            first += rows;
        }
    }

    /// Drafts tokens that followed the same words earlier in the text (n-gram lookup), if all
    /// answers of the step decode. Each answer drafts as many tokens as are worth their rows, until
    /// the step has the rows of a small batch.
    fn look_up_parts(&mut self, running: &mut [RunningAnswer<'_>], parts: &mut [AnswerShare]) {
        let decodes = parts.iter().all(|part| part.complete && part.share == 1);
        // A step of `StepCosts::ROWS` answers leaves no rows of a small batch for drafts.
        if !(self.lookup && decodes && parts.len() < StepCosts::ROWS) {
            return;
        }
        let (rows, mut left) = (parts.len(), StepCosts::ROWS - parts.len());
        // In a recurrent model, each draft row keeps a state until the drafts are verified.
        left = left.min(self.cache.room_for_drafted_states(rows));
        for (turn, part) in parts.iter_mut().enumerate() {
            let RunningAnswer { sequence, generation, .. } = &mut running[part.at];
            // Rows that earlier answers did not use go to the later ones.
            let most = left / (rows - turn).min(SHARED_DRAFTS);
            let (drafts, cost) = self.look_up_drafts(sequence, generation, rows, most);
            left -= drafts.len();
            part.tokens.extend(drafts);
            part.cost = cost;
        }
    }

    /// Drafts one token by the MTP layer for each decoding answer that has no drafts yet, while the
    /// step and the KV cache have room.
    fn draft_parts(
        &mut self,
        running: &mut [RunningAnswer<'_>],
        parts: &mut [AnswerShare],
    ) -> Result<(), EngineError> {
        if !self.drafts() {
            return Ok(());
        }
        let mut left = self.max_batch_tokens() - parts.iter().map(|part| part.tokens.len()).sum::<usize>();
        let looked_up: usize = parts.iter().map(|part| part.drafts().len()).sum();
        let mut states = self.cache.room_for_drafted_states(parts.len()).saturating_sub(looked_up);
        // Rows left in the step of the MTP layer, which also runs rows that wait for it.
        let mut rows = self.max_batch_tokens();
        let (mut inputs, mut places) = (Vec::new(), Vec::new());
        let count = running.len();
        for (at, running) in running.iter_mut().enumerate() {
            let Some(place) = parts.iter().position(|part| part.at == at && part.complete) else { continue };
            let waiting = running.sequence.draft.waiting().0.len() + 1;
            // An answer that ends with this step's token (`left` is 1) needs no draft.
            let room = left > 0 && states > 0 && waiting <= rows && running.generation.left() > 1;
            if parts[place].tokens.len() == 1 && room && self.has_room_for_draft(running.sequence, count) {
                inputs.push(DraftInput { sequence: &mut *running.sequence, token: parts[place].tokens[0] });
                places.push(place);
                left -= 1;
                states -= 1;
                rows -= waiting;
            }
        }
        if inputs.is_empty() {
            return Ok(());
        }
        let mut drafted = DraftedTokens(vec![None; inputs.len()]);
        let ran = self.draft_for(&mut inputs, &mut drafted);
        for (place, draft) in places.into_iter().zip(drafted.0) {
            let part = &mut parts[place];
            part.tokens.extend(draft);
        }
        match ran {
            // No block is free for the rows of the MTP layer. Run this step without drafts.
            Err(EngineError::CacheFull(_)) => Ok(()),
            ran => ran,
        }
    }

    /// Runs the parts in one step. Generations keep the logits of their tokens, and parts those of
    /// drafts.
    fn run_parts(
        &mut self,
        running: &mut [RunningAnswer<'_>],
        parts: &mut [AnswerShare],
    ) -> Result<Vec<Result<(), SeqError>>, EngineError> {
        let mut of_parts = parts.iter_mut().peekable();
        let (mut inputs, mut takers) = (Vec::new(), Vec::new());
        for (at, running) in running.iter_mut().enumerate() {
            let Some(part) = of_parts.next_if(|part| part.at == at) else { continue };
            let drafts = part.drafts().len();
            let AnswerShare { tokens, complete, after, .. } = part;
            after.resize_with(drafts, KeptLogits::default);
            inputs.push(match (drafts > 0, *complete) {
                (true, _) => SeqInput::drafted(&mut *running.sequence, tokens),
                (false, true) => SeqInput::tokens(&mut *running.sequence, tokens, LogitsRequest::Last),
                (false, false) => SeqInput::tokens(&mut *running.sequence, tokens, LogitsRequest::Nothing),
            });
            takers.push(GenerationTaker { generation: &mut *running.generation, after });
        }
        Ok(self.step_for(&mut inputs, &mut AnswerTakers(takers))?.results().to_vec())
    }

    /// How many pending tokens of each answer run in the next step.
    fn shares(&self, running: &[RunningAnswer<'_>]) -> Vec<usize> {
        let pending = |running: &RunningAnswer<'_>| match running.generation.is_finished() {
            true => 0,
            false => running.generation.pending().len(),
        };
        let mut left = self.max_batch_tokens();
        let mut shares = vec![0; running.len()];
        // Decoding answers first: a prompt that fills the step would stop them all.
        for decodes in [true, false] {
            for (share, running) in shares.iter_mut().zip(running) {
                let pending = pending(running);
                // One pending token is a decode step, or the end of a prompt, which is as short.
                if pending > 0 && (pending == 1) == decodes {
                    *share = pending.min(left).min(running.most);
                    left -= *share;
                }
            }
        }
        shares
    }
}

/// Waits until one of the answers can continue, or all rounds have passed.
fn wait_for_any(late: &mut [&mut Generation]) {
    for round in 0..LATE_ROUNDS {
        let until = Instant::now() + LATE_ROUND;
        // One processor per round may wait for the whole round. The others are only polled, and
        // each gets its turn.
        let turn = round % late.len();
        let mut ready = late.iter_mut().enumerate().map(|(at, generation)| {
            generation.is_ready(if at == turn { LATE_ROUND } else { Duration::ZERO })
        });
        if ready.any(|ready| ready) {
            return;
        }
        // `is_ready` may return early. Sleep for the rest of the round to keep the core free.
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

/// Chooses the next token of an answer. While the chosen token equals the next draft and the answer
/// continues, chooses the token after it as well. Also returns the number of accepted drafts.
fn sample(
    generation: &mut Generation,
    part: &AnswerShare,
    until: Instant,
) -> Result<(AnswerProgress, usize), EngineError> {
    let Some(first) = generation.sample_until(until)? else { return Ok((AnswerProgress::Late, 0)) };
    let mut chosen = vec![first];
    let mut accepted = 0;
    let mut stuck = None;
    for (draft, logits) in part.drafts().iter().zip(&part.after) {
        // No token is left to compare if a processor was not ready for the row before.
        let Some(last) = chosen.get(accepted) else { break };
        let right = last.token == *draft;
        generation.count_draft(accepted == 0, right);
        if !right || generation.is_finished() {
            break;
        }
        accepted += 1;
        // The draft's row has run and is right, so its logits are those of the next token.
        generation.mark_run(1);
        generation.keep_logits(logits.logits());
        match generation.sample_until(until) {
            Ok(next) => chosen.extend(next),
            Err(error) => {
                stuck = Some(error);
                break;
            }
        }
    }
    if let Some(cost) = part.cost {
        generation.count_looked_up(part.drafts().len(), accepted, cost);
    }
    let progress = match (stuck, chosen.len()) {
        (Some(error), _) => AnswerProgress::Stuck(chosen, error),
        (None, 1) if accepted == 0 => AnswerProgress::Token(chosen.remove(0)),
        (None, _) => AnswerProgress::Tokens(chosen),
    };
    Ok((progress, accepted))
}
