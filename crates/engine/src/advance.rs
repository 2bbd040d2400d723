//! Many answers at once: one step for all of them, prompts and decoding mixed, and their next tokens chosen in parallel.

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

/// How long a step waits for processors that are not ready, all answers together.
const GRACE: Duration = Duration::from_millis(2);

/// Answers that share the drafts of a step equally; others of a larger step have the rows that these leave.
const SHARED_DRAFTS: usize = 4;

/// A call without other work waits for processors for this number of rounds of this length.
const LATE_ROUNDS: usize = 20;
const LATE_ROUND: Duration = Duration::from_millis(1);

/// An answer that is being generated, and the sequence that holds its rows.
pub struct RunningAnswer<'a> {
    /// Its rows in the KV cache.
    pub sequence: &'a mut Sequence,
    /// Its state.
    pub generation: &'a mut Generation,
    /// Most of its tokens that run in this step.
    pub most: usize,
    /// Takes the hidden states of its rows. Nothing is chosen then.
    pub(crate) embedding: Option<&'a mut Embedding>,
}

impl<'a> RunningAnswer<'a> {
    /// An answer of which as many tokens may run as there is room for.
    pub fn new(sequence: &'a mut Sequence, generation: &'a mut Generation) -> RunningAnswer<'a> {
        RunningAnswer { sequence, generation, most: usize::MAX, embedding: None }
    }

    /// Checks that the rows of its sequence are those of the tokens that its generation has run.
    fn check(&self) -> Result<(), SeqError> {
        let (rows, tokens) = (self.sequence.len(), self.generation.ran());
        let known = self.sequence.tokens();
        if rows == tokens.len() && tokens.starts_with(known) {
            return Ok(());
        }
        let differs = || known.iter().zip(tokens).position(|(row, token)| row != token);
        let position = differs().unwrap_or(rows.min(tokens.len()));
        Err(SeqError::OtherTokens { position, rows, ran: tokens.len() })
    }

    /// Whether some of its tokens may run.
    fn may_run(&self) -> bool {
        self.most > 0 && !self.generation.is_finished() && !self.generation.pending().is_empty()
    }

    fn again(&mut self) -> RunningAnswer<'_> {
        let RunningAnswer { sequence, generation, most, embedding } = self;
        RunningAnswer { sequence, generation, most: *most, embedding: embedding.as_deref_mut() }
    }
}

/// What a call of [`Engine::advance`] did for one answer.
#[derive(Debug)]
pub enum AnswerProgress {
    /// It had ended before, or the step had no tokens left for it.
    Waited,
    /// Part of its prompt ran.
    Prompt,
    /// Its tokens have run, but a processor of its logits is not [ready](crate::LogitsProcessor::is_ready): the next token is chosen in a later call.
    Late,
    /// A token was chosen.
    Token(ChosenToken),
    /// Drafts were accepted: their tokens, and the one after them unless a processor is not ready for that.
    Tokens(Vec<ChosenToken>),
    /// Drafts were accepted, but no token can be chosen after them.
    Stuck(Vec<ChosenToken>, EngineError),
}

/// An answer's part of a step.
struct AnswerShare {
    /// Its place among those that run.
    at: usize,
    /// Tokens of it that run, without drafts.
    share: usize,
    /// Whether these are all that have to run before the next token is chosen.
    complete: bool,
    /// The tokens, and drafts behind them.
    tokens: Vec<u32>,
    /// What the step costs, in steps without drafts, for an answer whose drafts are looked up.
    cost: Option<f64>,
    /// The logits of each draft's row.
    after: Vec<KeptLogits>,
}

impl AnswerShare {
    /// The drafts behind its tokens.
    fn drafts(&self) -> &[u32] {
        &self.tokens[self.share..]
    }
}

/// An answer, which keeps the logits of its last row, and where those of drafts' rows go.
pub(crate) struct GenerationTaker<'t> {
    pub(crate) generation: &'t mut Generation,
    pub(crate) after: &'t mut [KeptLogits],
}

impl LogitsTaker for GenerationTaker<'_> {
    fn enough(&self, _input: usize, row: usize) -> usize {
        // a draft's row is used once the tokens before it are chosen
        self.generation.enough(row)
    }

    fn take(&mut self, _input: usize, row: usize, logits: Logits<'_>) {
        match row.checked_sub(1).and_then(|draft| self.after.get_mut(draft)) {
            Some(after) => after.keep(logits),
            None => self.generation.keep_logits(logits),
        }
    }
}

/// The answers of a step, which keep their logits; those of drafts' rows stay with the part.
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
    /// The parts that run, and the number of each among the step's inputs.
    parts: Vec<AnswerShare>,
    inputs: Vec<usize>,
}

/// What [`Engine::begin_advance`] has begun, none where nothing runs, and what became of each answer; none of those that run.
pub(crate) type AdvanceStart = (Option<AdvanceFlight>, Vec<Option<Result<AnswerProgress, EngineError>>>);

/// Counts the tokens of the parts that ran, and leaves only these; the others' errors are results.
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
    /// Runs one step for all answers that have not ended: what decodes first, and prompts with the tokens that are left of the step, in the order of
    /// `running`. Then chooses the next token of every answer whose prompt is complete, in parallel.
    ///
    /// In an engine that drafts, an answer that decodes verifies drafts in the same step as its
    /// token, and gets a token more for each draft that is accepted. Its text stays the same.
    ///
    /// One result for each answer: an answer that cannot go on (a full KV cache, no token to choose from, a panic in its own code) has its error
    /// there and does not keep the others from going on.
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
        // nothing of an answer with the sequence of another one runs
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

    /// [`advance`](Self::advance) without its comparison of every sequence's tokens with those of its generation: for a caller that owns both.
    pub(crate) fn advance_owned(
        &mut self,
        running: &mut [RunningAnswer<'_>],
    ) -> Result<Vec<Result<AnswerProgress, EngineError>>, EngineError> {
        let mut results: Vec<Result<AnswerProgress, EngineError>> =
            running.iter().map(|_| Ok(AnswerProgress::Waited)).collect();
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
        self.look_up_drafts(running, &mut parts);
        self.draft_parts(running, &mut parts)?;
        self.keep_residual = running.iter().any(|running| running.embedding.is_some());
        let start = Instant::now();
        let outcomes = self.run_parts(running, &mut parts);
        self.keep_residual = false;
        if parts.iter().all(|part| part.complete && part.share == 1) {
            let rows = parts.iter().map(|part| part.tokens.len()).sum();
            self.step_costs.count(rows, start.elapsed().as_secs_f64());
        }
        mark_run(running, &mut parts, outcomes?, &mut results);
        let mut running: Vec<_> = running.iter_mut().map(|running| Some(running.again())).collect();
        self.follow_parts(&mut running, &parts, &mut results);
        Ok(results)
    }

    /// Chooses the next tokens of answers that are [late](Generation::is_late), those whose processors are ready. With `wait` it waits for one, for
    /// a bounded time.
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

    /// The same as a step in flight, without drafts.
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
        // counted among those that run from here on
        parts.iter_mut().enumerate().for_each(|(at, part)| part.at = at);
        Ok((ticket.map(|ticket| AdvanceFlight { ticket, parts, inputs }), results))
    }

    /// Ends what [`begin_advance`](Self::begin_advance) has begun, and chooses tokens. `running` has the answers that run, in their order; one that is none is
    /// given up.
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

    /// What follows for answers whose parts have run.
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
        let until = Instant::now() + GRACE;
        self.model.parallel(choosing.len(), &|at| {
            let mut choice = choosing[at].1.lock().unwrap_or_else(PoisonError::into_inner);
            choice.1 = Some(sample(choice.0, choosing[at].0, until));
        });
        let mut refused = Vec::new();
        for (part, choice) in choosing {
            let (_, chosen) = choice.into_inner().unwrap_or_else(PoisonError::into_inner);
            let Some(chosen) = chosen else { continue };
            let (progress, accepted) = match chosen {
                Ok((progress, accepted)) => (Ok(progress), accepted),
                Err(error) => (Err(error), 0),
            };
            refused.push((part.at, part.drafts().len() - accepted));
            results[part.at] = progress;
        }
        for (at, rows) in refused {
            if let Some(running) = &mut running[at] {
                running.sequence.truncate(running.sequence.len() - rows);
                running.sequence.settle();
            }
        }
    }

    /// What runs of each answer, without drafts.
    fn parts(&self, running: &[RunningAnswer<'_>]) -> Vec<AnswerShare> {
        let shares = self.shares(running);
        let part = |(at, share): (usize, usize)| {
            let pending = running[at].generation.pending();
            // copied, since a generation takes logits while they run
            let tokens = pending[..share].to_vec();
            let complete = share == pending.len() && running[at].embedding.is_none();
            (share > 0).then_some(AnswerShare { at, share, complete, tokens, cost: None, after: Vec::new() })
        };
        shares.into_iter().enumerate().filter_map(part).collect()
    }

    /// Gives embeddings the residual rows of the step.
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

    /// Drafts tokens that followed the same words before, in a step of answers that all decode: of each answer as many as
    /// are worth their rows, in turn until the rows of a small batch are used.
    fn look_up_drafts(&mut self, running: &mut [RunningAnswer<'_>], parts: &mut [AnswerShare]) {
        let decodes = parts.iter().all(|part| part.complete && part.share == 1);
        if !(self.lookup && decodes && parts.len() < StepCosts::ROWS) {
            return;
        }
        let (rows, mut left) = (parts.len(), StepCosts::ROWS - parts.len());
        // each draft has a state of its own until it is known whether it is right
        left = left.min(self.cache.room_for_drafted_states(rows));
        for (turn, part) in parts.iter_mut().enumerate() {
            let RunningAnswer { sequence, generation, .. } = &mut running[part.at];
            // what the others leave goes to those that come after
            let most = left / (rows - turn).min(SHARED_DRAFTS);
            let (drafts, cost) = self.drafts_of_text(sequence, generation, rows, most);
            left -= drafts.len();
            part.tokens.extend(drafts);
            part.cost = cost;
        }
    }

    /// Drafts a token for each answer that decodes and has no drafts yet, as long as the step and the KV cache have room.
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
        // rows of the MTP layer's step
        let mut rows = self.max_batch_tokens();
        let (mut inputs, mut places) = (Vec::new(), Vec::new());
        let count = running.len();
        for (at, running) in running.iter_mut().enumerate() {
            let Some(place) = parts.iter().position(|part| part.at == at && part.complete) else { continue };
            let waiting = running.sequence.draft.waiting().0.len() + 1;
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
            // no room for rows that the MTP layer writes: this step runs without drafts
            Err(EngineError::CacheFull(_)) => Ok(()),
            ran => ran,
        }
    }

    /// Runs the parts in one step; the logits stay with the generations, and those of drafts in the parts.
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
        // answers that decode take precedence over prompts
        for decodes in [true, false] {
            for (share, running) in shares.iter_mut().zip(running) {
                let pending = pending(running);
                if pending > 0 && (pending == 1) == decodes {
                    *share = pending.min(left).min(running.most);
                    left -= *share;
                }
            }
        }
        shares
    }
}

/// Waits until one of some answers can be continued, without keeping a core busy also if processors return at once.
fn wait_for_any(late: &mut [&mut Generation]) {
    for round in 0..LATE_ROUNDS {
        let until = Instant::now() + LATE_ROUND;
        let turn = round % late.len();
        let mut ready = late.iter_mut().enumerate().map(|(at, generation)| {
            generation.is_ready(if at == turn { LATE_ROUND } else { Duration::ZERO })
        });
        if ready.any(|ready| ready) {
            return;
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

/// Chooses the next token of an answer. As long as that is its next draft and the answer continues, chooses the
/// token after it as well. Returns also how many drafts' rows stay.
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
        // as many as are chosen: a processor that is not ready ends the drafts
        let Some(last) = chosen.get(accepted) else { break };
        let right = last.token == *draft;
        generation.count_draft(accepted == 0, right);
        if !right || generation.is_finished() {
            break;
        }
        accepted += 1;
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
