//! Running answers: turns engine events into updates, from which the dialects write streams and
//! complete responses.

mod arguments;
mod embed;
mod outcome;
mod parser;
mod reasoning_budget;
mod running;
mod start;
mod update;

pub(crate) use arguments::{PartialArguments, complete_members};
pub(crate) use embed::embed;
pub(crate) use outcome::{AnswerCall, AnswerOutcome};
pub(crate) use parser::{AnswerDelta, Parser};
pub(crate) use reasoning_budget::ReasoningBudget;
pub(crate) use running::AnswerTimings;
pub(crate) use start::{PreparedRequest, begin};
pub(crate) use update::{
    AnswerEvent, AnswerFinish, AnswerUpdate, EndReason, TokenLogprob, TokenUpdate, finite,
};

use crate::error::{ApiError, ContextOverflow, ErrorKind};
use crate::memory::RequestCharge;
use crate::model::ServedModel;
use crate::models::Lease;
use crate::params::AnswerParams;
use crate::spans::{AnswerRecord, RequestSpan};
use crate::worker::{JobNotice, NoticeReceiver, SlotHold, SlotText};
use latent_engine::scheduler::{JobError, JobEvent, Refusal};
use latent_engine::{ChosenToken, StopReason};
use latent_text::CallEnding;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

/// The answers to one request. Dropping it cancels the jobs that still run.
pub(crate) struct RequestAnswers {
    listening: NoticeReceiver,
    pub(crate) served: Arc<Lease>,
    choices: Vec<ChoiceState>,
    /// Updates that were not fetched yet: one event can produce several.
    queue: VecDeque<AnswerUpdate>,
    /// Answers that have not ended.
    open: usize,
    /// Whether the request wants updates per token, in addition to text.
    show_tokens: bool,
    /// Whether probabilities are those after all samplers (`post_sampling_probs`).
    sampled: bool,
    stop: Vec<String>,
    /// Tokens of the prompt.
    prompt: usize,
    params: Arc<AnswerParams>,
    /// The number of slots of the model.
    slots: usize,
    /// The prompt, if slots can be saved.
    text: Option<SlotText>,
    span: RequestSpan,
    charge: Arc<RequestCharge>,
    /// When the request was submitted to the engine.
    submitted: SystemTime,
}

/// The state of one answer.
struct ChoiceState {
    parser: Parser,
    tokens: Vec<u32>,
    cached: usize,
    reasoning_tokens: usize,
    /// How its last tool call ended; `Cut` while it is open.
    called: Option<CallEnding>,
    /// Its slot, while it runs.
    slot: Option<SlotHold>,
    /// The prompt, if the answer repeats it (`echo`).
    echo: String,
}

impl RequestAnswers {
    pub(crate) fn choices(&self) -> usize {
        self.choices.len()
    }

    /// The next update. None: all answers have ended.
    pub(crate) async fn next(&mut self) -> Option<Result<AnswerUpdate, ApiError>> {
        poll_fn(|context| self.poll(context)).await
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<AnswerUpdate, ApiError>>> {
        loop {
            if let Some(update) = self.queue.pop_front() {
                return Poll::Ready(Some(Ok(update)));
            }
            if self.open == 0 {
                return Poll::Ready(None);
            }
            if self.listening.is_overrun() {
                return self.fails(ApiError::new(
                    ErrorKind::Slow,
                    "the answer was read too slowly and has been cancelled",
                ));
            }
            match self.listening.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return self.fails(ApiError::internal("the engine has stopped")),
                Poll::Ready(Some(notice)) => {
                    if let Err(error) = self.handle(notice) {
                        return self.fails(error);
                    }
                }
            }
        }
    }

    fn fails(&mut self, error: ApiError) -> Poll<Option<Result<AnswerUpdate, ApiError>>> {
        // The next poll returns `None`: an error is the last update.
        self.open = 0;
        self.span.failed(&error);
        Poll::Ready(Some(Err(error)))
    }

    fn handle(&mut self, notice: JobNotice) -> Result<(), ApiError> {
        match notice {
            JobNotice::Accepted => Ok(()),
            JobNotice::Refused(refusal) => Err(refused(&refusal)),
            JobNotice::Event { choice, event } => self.event(choice, event),
        }
    }

    fn event(&mut self, choice: usize, event: JobEvent) -> Result<(), ApiError> {
        let mut pieces = Vec::new();
        let Some(state) = self.choices.get_mut(choice) else { return Ok(()) };
        let push = |queue: &mut VecDeque<AnswerUpdate>, what| queue.push_back(AnswerUpdate { choice, what });
        match event {
            JobEvent::Started { cached_tokens, .. } => {
                state.cached = cached_tokens;
                // A preempted job starts again and keeps its slot.
                if state.slot.is_none() {
                    let slots = &self.served.worker_handle().slots;
                    let figures = (self.prompt, cached_tokens);
                    state.slot = Some(slots.take(&self.params, figures, self.slots, self.text.clone()));
                }
                let slot = state.slot.as_ref().map(SlotHold::index);
                push(
                    &mut self.queue,
                    AnswerEvent::Started { prompt: self.prompt, cached: cached_tokens, slot },
                );
                // Taken, so that a preempted job does not repeat it when it starts again.
                let echo = std::mem::take(&mut state.echo);
                state.parser.push(&echo, &mut pieces);
            }
            JobEvent::Prompt { done, total } => {
                // llama.cpp's slots count only tokens that were computed.
                let processed = done.saturating_sub(state.cached);
                state.slot.iter().for_each(|slot| slot.update(|task| task.processed = processed));
                push(&mut self.queue, AnswerEvent::Prompt { done, total, cached: state.cached });
            }
            JobEvent::Token(chosen) => {
                state.slot.iter().for_each(|slot| {
                    slot.update(|task| {
                        task.decoded += 1;
                        task.has_new_line |= chosen.text.contains('\n');
                    });
                    slot.push(chosen.token);
                });
                let token = state.push_token(&chosen, &self.served, &mut pieces);
                if self.show_tokens {
                    push(&mut self.queue, AnswerEvent::Token(TokenUpdate { sampled: self.sampled, ..token }));
                }
            }
            JobEvent::Finished { reason, rest, usage } => {
                // Released before the last update is sent: a client that polls /slots after its
                // answer must see the slot idle.
                let slot = state.slot.take().map(|slot| slot.index());
                // Text that the engine held back because a stop string could have begun in it.
                state.parser.push(&rest, &mut pieces);
                state.parser.finish(reason.is_cut(), &mut pieces);
                state.note_calls(&pieces);
                let stop = self.stop_string(choice, reason);
                pieces.into_iter().for_each(|piece| push(&mut self.queue, AnswerEvent::Delta(piece)));
                let state = &self.choices[choice];
                let finish = AnswerFinish {
                    reason: EndReason::of(reason, state.called),
                    stop,
                    usage,
                    reasoning_tokens: state.reasoning_tokens,
                    tokens: state.tokens.clone(),
                    slot,
                };
                self.span.ended(&AnswerRecord {
                    submitted: self.submitted,
                    choice,
                    usage,
                    reasoning: finish.reasoning_tokens,
                    reason: Some(finish.reason.word()),
                });
                push(&mut self.queue, AnswerEvent::Finished(Box::new(finish)));
                self.open -= 1;
                return Ok(());
            }
            JobEvent::Embedded { .. } => {
                return Err(ApiError::internal("an embedding in place of an answer"));
            }
            JobEvent::Failed(error) => return Err(failed(&error)),
            _ => {}
        }
        if let Some(state) = self.choices.get_mut(choice) {
            state.note_calls(&pieces);
        }
        pieces.into_iter().for_each(|piece| push(&mut self.queue, AnswerEvent::Delta(piece)));
        Ok(())
    }

    /// The stop string that ended an answer: the first one in its text, including text that the
    /// parser has removed.
    fn stop_string(&self, choice: usize, reason: StopReason) -> Option<String> {
        if reason != StopReason::StopString {
            return None;
        }
        // The common case needs no search. The engine reports only that a stop string was found.
        if let [only] = self.stop.as_slice() {
            return Some(only.clone());
        }
        let text = self.served.tokenizer.decode(&self.choices[choice].tokens, false);
        let found = self.stop.iter().filter_map(|stop| Some((text.find(stop.as_str())? + stop.len(), stop)));
        found.min_by_key(|(end, _)| *end).map(|(_, stop)| stop.clone())
    }

    /// Waits until the scheduler has accepted the request. After that the status 200 may be sent; a
    /// refusal still gets its own status.
    async fn accepted(&mut self) -> Result<(), ApiError> {
        match poll_fn(|context| self.listening.poll(context)).await {
            Some(notice) => self.handle(notice),
            None => Err(ApiError::new(ErrorKind::Unavailable, "the server is shutting down")),
        }
    }

    /// Collects the complete answers. They are charged until the response has been sent.
    pub(crate) async fn collect(mut self) -> Result<Vec<AnswerOutcome>, ApiError> {
        let mut outcomes: Vec<AnswerOutcome> =
            self.choices.iter().map(|_| AnswerOutcome::default()).collect();
        while let Some(update) = self.next().await {
            let AnswerUpdate { choice, what } = update?;
            self.charge.grow(what.bytes())?;
            outcomes[choice].add(what);
        }
        Ok(outcomes)
    }
}

impl ChoiceState {
    /// Tracks the state of tool calls, which decides the end reason.
    fn note_calls(&mut self, pieces: &[AnswerDelta]) {
        for piece in pieces {
            match piece {
                AnswerDelta::CallStart { .. } => self.called = Some(CallEnding::Cut),
                AnswerDelta::CallEnd { ending, .. } => self.called = Some(*ending),
                _ => {}
            }
        }
    }

    /// Passes the text of a chosen token to the parser. The name of a control token is passed
    /// separately: as text it could be a quotation of the marker.
    fn push_token(
        &mut self,
        chosen: &ChosenToken,
        served: &ServedModel,
        pieces: &mut Vec<AnswerDelta>,
    ) -> TokenUpdate {
        let ChosenToken { token, text, ends, logprob } = chosen;
        self.tokens.push(*token);
        self.parser.push(text, pieces);
        let tokenizer = &served.tokenizer;
        if !ends && tokenizer.is_control(*token) {
            let name = tokenizer.token_text(*token).unwrap_or_default();
            match &self.parser {
                // `--special` of llama-server.
                Parser::Raw if served.about.defaults.special => self.parser.push(name, pieces),
                _ => self.parser.push_control(name, pieces),
            }
        }
        // After the push, so that the start marker counts and the end marker does not.
        self.reasoning_tokens += usize::from(!ends && self.parser.in_reasoning());
        TokenUpdate { id: *token, ends: *ends, logprob: logprob.clone(), sampled: false }
    }
}

/// The error of a job that the scheduler refused.
pub(crate) fn refused(refusal: &Refusal) -> ApiError {
    let message = refusal.to_string();
    match refusal {
        Refusal::Full { retry_after, .. } => ApiError::new(ErrorKind::Busy, message).retry(*retry_after),
        Refusal::TooLong { tokens, context } => ApiError::overflow(ContextOverflow {
            tokens: *tokens,
            at_least: false,
            context: *context,
            embeds: false,
        }),
        Refusal::Closed => ApiError::new(ErrorKind::Unavailable, message),
        _ => ApiError::invalid(message),
    }
}

/// The error of a job that failed.
pub(crate) fn failed(error: &JobError) -> ApiError {
    match error {
        JobError::Deadline { .. } => ApiError::new(ErrorKind::Deadline, error.to_string()),
        // The client's grammar allows no token, which is not a fault of the server.
        JobError::Constraint(problem) => ApiError::invalid(problem),
        _ => ApiError::internal(error.to_string()),
    }
}
