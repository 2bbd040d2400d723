//! An answer, piece by piece.

use crate::error::Error;
use crate::listening::EventReceiver;
use crate::message::{Message, MessageParser};
use crate::model::ModelHandle;
use crate::waiting::WaitCheck;
use latent_engine::StopReason;
use latent_engine::sampling::LogProbability;
use latent_engine::scheduler::{JobEvent, JobUsage};

/// What has become of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerationUpdate {
    /// Part of the prompt has run.
    Prompt {
        /// Tokens of the prompt that are in the KV cache.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was chosen.
    Token {
        /// The token.
        token: u32,
        /// Text that is certain now; may be empty.
        text: String,
        /// ln of its probability, and the likeliest tokens with theirs, where asked for.
        logprob: Option<(f32, Vec<LogProbability>)>,
    },
    /// Text that was held back until the end.
    Rest(String),
}

/// A finished answer.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedAnswer {
    /// Its text.
    pub text: String,
    /// Its tokens, the one that ended it included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop: StopReason,
    /// What it took.
    pub usage: JobUsage,
    /// What it consists of, if it answers a conversation.
    pub message: Option<Message>,
}

impl GeneratedAnswer {
    /// The name of the reason why it ended: `end`, `stop_string`, `length`, `context` or `interrupted`.
    pub fn stop_name(&self) -> &'static str {
        match self.stop {
            StopReason::End => "end",
            StopReason::StopString => "stop_string",
            StopReason::Length => "length",
            StopReason::Context => "context",
            StopReason::Interrupted => "interrupted",
        }
    }
}

/// A running generation. The model may run ahead of the reader. Dropping it cancels the job.
pub struct RunningGeneration {
    /// Keeps the model as long as its answers.
    _model: ModelHandle,
    listening: EventReceiver,
    text: String,
    tokens: Vec<u32>,
    parser: Option<MessageParser>,
    /// Whether the reader has stopped the answer.
    stopped: bool,
    ended: Option<(StopReason, JobUsage)>,
}

impl RunningGeneration {
    pub(crate) fn new(model: ModelHandle, listening: EventReceiver) -> RunningGeneration {
        RunningGeneration {
            _model: model,
            listening,
            text: String::new(),
            tokens: Vec::new(),
            parser: None,
            stopped: false,
            ended: None,
        }
    }

    pub(crate) fn parsed_by(mut self, parser: MessageParser) -> RunningGeneration {
        self.parser = Some(parser);
        self
    }

    /// The next piece, none after the last. `go_on` is asked while there is none yet.
    ///
    /// # Errors
    /// A prompt or options that cannot be; the caller does not wait any longer, so that the answer ends; the engine has failed.
    pub fn next_piece(&mut self, go_on: WaitCheck<'_>) -> Result<Option<GenerationUpdate>, Error> {
        while self.ended.is_none() {
            let heard = self.listening.next(go_on).inspect_err(|_| self.listening.cancel())?;
            if let Some(piece) = self.hear(heard)? {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    fn hear(&mut self, event: JobEvent) -> Result<Option<GenerationUpdate>, Error> {
        match event {
            JobEvent::Failed(error) => Err(error.into()),
            JobEvent::Finished { reason, rest, usage } => Ok(self.end(reason, rest, usage)),
            _ if self.stopped => Ok(None),
            JobEvent::Prompt { done, total } => Ok(Some(GenerationUpdate::Prompt { done, total })),
            JobEvent::Token(chosen) => {
                self.tokens.push(chosen.token);
                self.text.push_str(&chosen.text);
                if let Some(parser) = &mut self.parser {
                    parser.push(chosen.token, &chosen.text);
                }
                let (token, text, logprob) = (chosen.token, chosen.text, chosen.logprob);
                Ok(Some(GenerationUpdate::Token { token, text, logprob }))
            }
            _ => Ok(None),
        }
    }

    fn end(&mut self, reason: StopReason, rest: String, usage: JobUsage) -> Option<GenerationUpdate> {
        let ahead = usage.completion > self.tokens.len();
        if self.stopped && ahead {
            let usage = JobUsage { completion: self.tokens.len(), ..usage };
            self.ended = Some((StopReason::Interrupted, usage));
            return None;
        }
        self.ended = Some((reason, usage));
        if rest.is_empty() {
            return None;
        }
        self.text.push_str(&rest);
        if let Some(parser) = &mut self.parser {
            parser.push_text(&rest);
        }
        Some(GenerationUpdate::Rest(rest))
    }

    /// Ends the answer at the reader's position and discards what the model has computed ahead.
    /// Text that was held back may still follow.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.listening.cancel();
    }

    /// The rest of the answer, and all of it.
    ///
    /// # Errors
    /// As for [`next_piece`](Self::next_piece).
    pub fn finish(mut self, go_on: WaitCheck<'_>) -> Result<GeneratedAnswer, Error> {
        while self.next_piece(go_on)?.is_some() {}
        self.answer().ok_or_else(Error::stopped)
    }

    /// The answer, once the last piece was taken.
    pub fn answer(&mut self) -> Option<GeneratedAnswer> {
        let (stop, usage) = self.ended?;
        let message = self.parser.take().map(MessageParser::finish);
        Some(GeneratedAnswer { text: self.text.clone(), tokens: self.tokens.clone(), stop, usage, message })
    }
}
