//! Answers that are generated in the background and read piece by piece.

use crate::conversation::Chat;
use crate::error::Error;
use crate::listening::{AnswerCanceller, EventReceiver, JobEventResult};
use crate::message::{Message, MessageDelta, MessageParser, ToolCallDelta};
use crate::model::Model;
use crate::waiting::WaitCheck;
use latent_engine::StopReason;
use latent_engine::cache::CacheSalt;
use latent_engine::sampling::LogProbability;
use latent_engine::scheduler::{JobEvent, JobUsage};

/// Called with the cached and the total tokens of a prompt.
pub(crate) type PromptProgress = Box<dyn FnMut(usize, usize) + Send>;

/// An update of an answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum GenerationUpdate {
    /// Part of the prompt has run.
    Prompt {
        /// Tokens of the prompt that are in the KV cache.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was sampled.
    Token {
        /// The token id.
        token: u32,
        /// The text that is complete with this token. May be empty.
        text: String,
        /// The natural logarithm of its probability, and those of the likeliest tokens, if
        /// requested.
        logprob: Option<(f32, Vec<LogProbability>)>,
    },
    /// Text that was held back until the end.
    Rest(String),
}

/// A piece of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct AnswerPiece {
    /// The text that is complete with this token, including markers of reasoning. May be empty, for
    /// example for part of a character.
    pub text: String,
    /// The part of `text` that belongs to the content of a chat message.
    pub content: String,
    /// The part of `text` that belongs to the reasoning of a chat message.
    pub reasoning: String,
    /// The parts of `text` that belong to tool calls of a chat message.
    pub calls: Vec<ToolCallDelta>,
    /// The token id. `None` for text that was held back until the end.
    pub token: Option<u32>,
    /// Its log-probability, and those of the likeliest tokens, if requested.
    pub logprob: Option<TokenLogprob>,
}

/// The log-probability of a sampled token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TokenLogprob {
    /// The token id.
    pub token: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The log-probabilities of the likeliest tokens, as many as requested.
    pub top: Vec<LogProbability>,
}

/// A finished answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GeneratedAnswer {
    /// The text.
    pub text: String,
    /// The tokens, including the one that ended the answer.
    pub tokens: Vec<u32>,
    /// The log-probability of each token, if requested.
    pub logprobs: Vec<TokenLogprob>,
    /// Why the answer ended.
    pub stop: StopReason,
    /// Tokens and times.
    pub usage: JobUsage,
    /// The parsed message, for an answer to a conversation.
    pub message: Option<Message>,
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    pub(crate) chat: Option<Chat>,
    pub(crate) salt: CacheSalt,
}

impl GeneratedAnswer {
    /// The name of the stop reason: `end`, `stop_string`, `length`, `context` or `interrupted`.
    pub fn stop_name(&self) -> &'static str {
        match self.stop {
            StopReason::End => "end",
            StopReason::StopString => "stop_string",
            StopReason::Length => "length",
            StopReason::Context => "context",
            StopReason::Interrupted => "interrupted",
        }
    }

    /// The conversation with this answer as its last message, for the next turn. `None` for the
    /// answer to a text.
    pub fn chat(&self) -> Option<Chat> {
        let message = self.message.as_ref()?.to_json();
        self.chat.clone().map(|chat| chat.message(message))
    }
}

/// An answer that is being generated. The model may run ahead of the reader. Dropping the stream
/// ends the answer.
///
/// It is an [`Iterator`] over pieces, which blocks until the next piece is available, and, with the
/// feature `stream`, a `futures_core::Stream`. After an error no piece follows.
pub struct AnswerStream {
    /// Keeps the model loaded while it has answers.
    model: Model,
    events: EventReceiver,
    text: String,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    prompt: Vec<u32>,
    salt: CacheSalt,
    chat: Option<Chat>,
    parser: Option<MessageParser>,
    message: Option<Message>,
    /// The text that the last event has added to the message.
    added: MessageDelta,
    /// Called with the progress of the prompt.
    progress: Option<PromptProgress>,
    /// Whether the caller has called [`stop`](Self::stop).
    stopped: bool,
    ended: Option<Result<(StopReason, JobUsage), Error>>,
}

impl AnswerStream {
    pub(crate) fn new(
        model: Model,
        events: EventReceiver,
        prompt: Vec<u32>,
        salt: CacheSalt,
    ) -> AnswerStream {
        AnswerStream {
            model,
            events,
            text: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            prompt,
            salt,
            chat: None,
            parser: None,
            message: None,
            added: MessageDelta::default(),
            progress: None,
            stopped: false,
            ended: None,
        }
    }

    pub(crate) fn of_chat(self, chat: Option<Chat>, parser: Option<MessageParser>) -> AnswerStream {
        AnswerStream { chat, parser, ..self }
    }

    pub(crate) fn with_progress(self, progress: Option<PromptProgress>) -> AnswerStream {
        AnswerStream { progress, ..self }
    }

    /// The model of this answer.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// A handle with which any thread can cancel this answer.
    pub fn canceller(&self) -> AnswerCanceller {
        self.events.canceller()
    }

    /// The text of the pieces read so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The tokens of the pieces read so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Blocks until the next update, including those of the prompt. `None` after the last update.
    ///
    /// # Errors
    /// If the scheduler refuses the request, the request fails (for example at its deadline), or
    /// the engine has failed.
    pub fn next_update(&mut self) -> Result<Option<GenerationUpdate>, Error> {
        self.read(|events| events.next())
    }

    /// Like [`next_update`](Self::next_update), while `go_on` returns true. Otherwise the answer
    /// ends.
    ///
    /// # Errors
    /// As for [`next_update`](Self::next_update), and if `go_on` returns false.
    pub fn next_update_while(&mut self, go_on: WaitCheck<'_>) -> Result<Option<GenerationUpdate>, Error> {
        self.read(|events| events.next_while(&mut *go_on))
    }

    fn read(
        &mut self,
        mut next: impl FnMut(&EventReceiver) -> JobEventResult,
    ) -> Result<Option<GenerationUpdate>, Error> {
        while self.ended.is_none() {
            let event = next(&self.events);
            if let Some(update) = self.handle_event(event)? {
                return Ok(Some(update));
            }
        }
        Ok(None)
    }

    fn handle_event(&mut self, event: JobEventResult) -> Result<Option<GenerationUpdate>, Error> {
        // The text of the previous event must not count again if this event adds none.
        self.added = MessageDelta::default();
        // A failed job and a lost worker end the stream in the same way.
        let event = match event {
            Ok(JobEvent::Failed(error)) => Err(error.into()),
            other => other,
        };
        match event {
            Err(error) => {
                // With `go_on`, the job still runs although the caller has stopped waiting.
                self.events.canceller().cancel();
                self.ended = Some(Err(error.clone()));
                Err(error)
            }
            Ok(JobEvent::Finished { reason, rest, usage }) => Ok(self.end(reason, rest, usage)),
            // Pieces that the model has computed ahead are discarded.
            _ if self.stopped => Ok(None),
            Ok(JobEvent::Prompt { done, total }) => {
                if let Some(progress) = &mut self.progress {
                    progress(done, total);
                }
                Ok(Some(GenerationUpdate::Prompt { done, total }))
            }
            Ok(JobEvent::Token(chosen)) => {
                self.tokens.push(chosen.token);
                self.text.push_str(&chosen.text);
                if let Some(parser) = &mut self.parser {
                    self.added = parser.push(chosen.token, &chosen.text);
                }
                let (token, text, logprob) = (chosen.token, chosen.text, chosen.logprob);
                if let Some((logprob, top)) = &logprob {
                    self.logprobs.push(TokenLogprob { token, logprob: *logprob, top: top.clone() });
                }
                Ok(Some(GenerationUpdate::Token { token, text, logprob }))
            }
            Ok(_) => Ok(None),
        }
    }

    fn end(&mut self, reason: StopReason, rest: String, usage: JobUsage) -> Option<GenerationUpdate> {
        // After `stop`, the answer ends at the reader's position, so text and reason of the job do
        // not apply if the model was ahead.
        let ahead = usage.completion > self.tokens.len();
        let (reason, rest, completion) = match self.stopped && ahead {
            true => (StopReason::Interrupted, String::new(), self.tokens.len()),
            false => (reason, rest, usage.completion),
        };
        self.ended = Some(Ok((reason, JobUsage { completion, ..usage })));
        self.text.push_str(&rest);
        if let Some(parser) = self.parser.take() {
            let (message, added) = parser.finish(&rest, reason.is_cut());
            (self.message, self.added) = (Some(message), added);
        }
        (!rest.is_empty()).then_some(GenerationUpdate::Rest(rest))
    }

    /// A piece with text that the end of the answer has added to the message, if no update carried
    /// it.
    fn last_piece(&mut self) -> Option<AnswerPiece> {
        let added = std::mem::take(&mut self.added);
        let MessageDelta { reasoning, content, calls } = (!added.is_empty()).then_some(added)?;
        Some(AnswerPiece { reasoning, content, calls, ..AnswerPiece::default() })
    }

    /// The piece of an update. `None` for progress of the prompt.
    fn piece(&mut self, update: GenerationUpdate) -> Option<AnswerPiece> {
        let (text, token, logprob) = match update {
            GenerationUpdate::Prompt { .. } => return None,
            GenerationUpdate::Token { token, text, logprob } => (text, Some(token), logprob.zip(Some(token))),
            GenerationUpdate::Rest(text) => (text, None, None),
        };
        let logprob = logprob.map(|((logprob, top), token)| TokenLogprob { token, logprob, top });
        let MessageDelta { reasoning, content, calls } = std::mem::take(&mut self.added);
        Some(AnswerPiece { text, content, reasoning, calls, token, logprob })
    }

    /// Ends the answer at the reader's position and discards what the model has computed ahead.
    /// Text that was held back may still follow.
    pub fn stop(&mut self) {
        // Set even if the job has ended already: unread pieces are discarded.
        self.stopped = true;
        self.canceller().cancel();
    }

    /// Reads the rest of the answer, and returns all of it. A cancelled answer has the text until
    /// then.
    ///
    /// # Errors
    /// As for [`next_update`](Self::next_update), also if the error was returned before.
    pub fn finish(mut self) -> Result<GeneratedAnswer, Error> {
        while self.next_update()?.is_some() {}
        self.finished()
    }

    /// Like [`finish`](Self::finish), while `go_on` returns true. Otherwise the answer ends.
    ///
    /// # Errors
    /// As for [`finish`](Self::finish), and if `go_on` returns false.
    pub fn finish_while(mut self, go_on: WaitCheck<'_>) -> Result<GeneratedAnswer, Error> {
        while self.next_update_while(go_on)?.is_some() {}
        self.finished()
    }

    fn finished(self) -> Result<GeneratedAnswer, Error> {
        let AnswerStream { text, tokens, logprobs, prompt, salt, chat, message, ended, .. } = self;
        // `next_update` returns `None` only after the end, so the default is never used. An error
        // that an earlier call has returned is stored, and returned again.
        let (stop, usage) = ended.unwrap_or_else(|| Err(Error::cancelled()))?;
        Ok(GeneratedAnswer { text, tokens, logprobs, stop, usage, message, prompt, chat, salt })
    }
}

impl Iterator for AnswerStream {
    type Item = Result<AnswerPiece, Error>;

    fn next(&mut self) -> Option<Result<AnswerPiece, Error>> {
        loop {
            match self.next_update() {
                // `last_piece` takes the text, so that the next call returns `None`.
                Ok(None) => return self.last_piece().map(Ok),
                Err(error) => return Some(Err(error)),
                Ok(Some(update)) => {
                    if let Some(piece) = self.piece(update) {
                        return Some(Ok(piece));
                    }
                }
            }
        }
    }
}

#[cfg(feature = "stream")]
impl futures_core::Stream for AnswerStream {
    type Item = Result<AnswerPiece, Error>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        use std::task::Poll;
        let stream = self.get_mut();
        // Reads on after an event without a piece: only `EventReceiver::poll_next` stores the
        // waker, so returning `Pending` here would leave the task asleep.
        while stream.ended.is_none() {
            let Poll::Ready(event) = stream.events.poll_next(context) else { return Poll::Pending };
            match stream.handle_event(event) {
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
                Ok(Some(update)) => {
                    if let Some(piece) = stream.piece(update) {
                        return Poll::Ready(Some(Ok(piece)));
                    }
                }
            }
        }
        Poll::Ready(stream.last_piece().map(Ok))
    }
}
