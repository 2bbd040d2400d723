//! Many answers at once: one step for all of them, prompts and decoding mixed, and their next tokens chosen in parallel.

use crate::cache::Sequence;
use crate::draft::{DraftInput, DraftedTokens};
use crate::embedding::Embedding;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generation::{ChosenToken, Generation};
use crate::in_flight::Ticket;
use crate::logits_taker::{KeptLogits, LogitsTaker};
use crate::seq_error::SeqError;
use crate::step::{LogitsRequest, SeqInput};
use latent_backend::Logits;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a step waits for processors that are not ready, all answers together.
const GRACE: Duration = Duration::from_millis(2);

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
    /// A draft was accepted: its token, and the one after it unless a processor is not ready for that.
    Tokens(Vec<ChosenToken>),
    /// A token was chosen and its draft accepted, but no token can be chosen after it.
    Stuck(ChosenToken, EngineError),
}

/// An answer's part of a step.
struct AnswerShare {
    /// Its place among those that run.
    at: usize,
    /// Tokens of it that run, without a draft.
    share: usize,
    /// Whether these are all that have to run before the next token is chosen.
    complete: bool,
    /// The tokens, and a draft behind them.
    tokens: Vec<u32>,
    draft: Option<u32>,
    /// The logits of the draft's row.
    after: KeptLogits,
}

/// The answers of a step, which keep their logits; those of a draft's row stay with the part.
struct AnswerTakers<'t>(Vec<(&'t mut Generation, Option<&'t mut KeptLogits>)>);

impl LogitsTaker for AnswerTakers<'_> {
    fn enough(&self, input: usize, row: usize) -> usize {
        let (generation, after) = &self.0[input];
        // a draft's row is used once the token before it is chosen
        generation.enough(usize::from(after.is_some() && row == 1))
    }

    fn take(&mut self, input: usize, row: usize, logits: Logits<'_>) {
        match &mut self.0[input] {
            (_, Some(after)) if row == 1 => after.keep(logits),
            (generation, _) => generation.keep_logits(logits),
        }
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
    /// In an engine that drafts, an answer that decodes verifies a draft in the same step as its
    /// token, and gets two tokens if the draft is accepted. Its text stays the same.
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
        let mut results: Vec<Result<AnswerProgress, EngineError>> =
            running.iter().map(|_| Ok(AnswerProgress::Waited)).collect();
        let mut parts = self.parts(running);
        let late = running.iter_mut().enumerate().filter(|(_, running)| running.generation.is_late());
        let (late, mut generations): (Vec<_>, Vec<_>) =
            late.map(|(at, running)| (at, &mut *running.generation)).unzip();
        for (at, result) in late.into_iter().zip(self.choose_late(&mut generations, parts.is_empty())) {
            results[at] = result;
        }
        if parts.is_empty() {
            return Ok(results);
        }
        self.draft_parts(running, &mut parts)?;
        self.keep_residual = running.iter().any(|running| running.embedding.is_some());
        let outcomes = self.run_parts(running, &mut parts);
        self.keep_residual = false;
        mark_run(running, &mut parts, outcomes?, &mut results);
        let mut running: Vec<_> = running.iter_mut().map(|running| Some(running.again())).collect();
        self.follow_parts(&mut running, &parts, &mut results);
        Ok(results)
    }

    /// Chooses the next tokens of answers that are [late](Generation::is_late), those whose processors are ready. With `wait` it waits for one, for
    /// a bounded time.
    pub(crate) fn choose_late(
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
            let chosen = choice.0.choose_until(until);
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
        let mut parts = self.parts(running);
        let mut results: Vec<_> = running.iter().map(|_| Ok(AnswerProgress::Waited)).collect();
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
                running.generation.take_logits(logits);
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
            choice.1 = Some(choose(choice.0, choosing[at].0, until));
        });
        let mut kept = Vec::new();
        for (part, choice) in choosing {
            let (_, chosen) = choice.into_inner().unwrap_or_else(PoisonError::into_inner);
            let Some(chosen) = chosen else { continue };
            let accepted = matches!(chosen, Ok(AnswerProgress::Tokens(_) | AnswerProgress::Stuck(..)));
            kept.push((part.at, part.draft.is_some() && !accepted));
            results[part.at] = chosen;
        }
        // drafts that were not accepted
        for (at, _) in kept.into_iter().filter(|(_, refused)| *refused) {
            if let Some(running) = &mut running[at] {
                running.sequence.truncate(running.sequence.len() - 1);
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
            (share > 0).then_some(AnswerShare {
                at,
                share,
                complete,
                tokens,
                draft: None,
                after: KeptLogits::default(),
            })
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

    /// Drafts a token for each answer that decodes, as long as the step and the KV cache have room.
    fn draft_parts(
        &mut self,
        running: &mut [RunningAnswer<'_>],
        parts: &mut [AnswerShare],
    ) -> Result<(), EngineError> {
        if !self.drafts() {
            return Ok(());
        }
        let mut left = self.max_batch_tokens() - parts.iter().map(|part| part.share).sum::<usize>();
        // rows of the MTP layer's step
        let mut rows = self.max_batch_tokens();
        let (mut inputs, mut places) = (Vec::new(), Vec::new());
        let count = running.len();
        for (at, running) in running.iter_mut().enumerate() {
            let Some(place) = parts.iter().position(|part| part.at == at && part.complete) else { continue };
            let waiting = running.sequence.draft.waiting().0.len() + 1;
            let room = left > 0 && waiting <= rows && running.generation.left() > 1;
            if parts[place].share == 1 && room && self.has_room_for_draft(running.sequence, count) {
                inputs.push(DraftInput { sequence: &mut *running.sequence, token: parts[place].tokens[0] });
                places.push(place);
                left -= 1;
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
            part.draft = draft;
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
            let AnswerShare { tokens, draft, complete, after, .. } = part;
            let drafted = draft.is_some();
            inputs.push(match (drafted, *complete) {
                (true, _) => SeqInput::drafted(&mut *running.sequence, tokens),
                (false, true) => SeqInput::tokens(&mut *running.sequence, tokens, LogitsRequest::Last),
                (false, false) => SeqInput::tokens(&mut *running.sequence, tokens, LogitsRequest::Nothing),
            });
            takers.push((&mut *running.generation, drafted.then_some(after)));
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

/// Chooses the next token of an answer. If that is its draft and the answer continues, chooses the
/// token after it as well, and keeps the draft's row.
fn choose(
    generation: &mut Generation,
    part: &AnswerShare,
    until: Instant,
) -> Result<AnswerProgress, EngineError> {
    let Some(first) = generation.choose_until(until)? else { return Ok(AnswerProgress::Late) };
    let Some(draft) = part.draft else { return Ok(AnswerProgress::Token(first)) };
    let accepted = first.token == draft;
    generation.count_draft(accepted);
    if !accepted || generation.is_finished() {
        return Ok(AnswerProgress::Token(first));
    }
    generation.mark_run(1);
    generation.keep_logits(part.after.logits());
    Ok(match generation.choose_until(until) {
        Ok(second) => AnswerProgress::Tokens([first].into_iter().chain(second).collect()),
        Err(error) => AnswerProgress::Stuck(first, error),
    })
}
