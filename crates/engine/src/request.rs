//! Requests for generation, and its results.

use crate::context_shift::ContextShift;
use crate::draft_kind::DraftCount;
use crate::sampling::{LogProbability, SamplingParams};
use latent_backend::{AdapterScales, CancelToken};
use std::time::Duration;

/// A request for an answer.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Maximum number of tokens of the answer. `None`: until the model ends it or the context is
    /// full.
    pub max_tokens: Option<usize>,
    /// Stop strings. The answer ends before the first of them.
    pub stop: Vec<String>,
    /// Further tokens that end the answer, in addition to the model's own.
    pub stop_tokens: Vec<u32>,
    /// Whether the model's own end tokens are banned.
    pub ignore_eos: bool,
    /// Minimum number of tokens of the answer. Before, end tokens are banned and stop strings are
    /// ignored.
    pub min_tokens: usize,
    /// Token sequences that the answer must not contain. The last token of one is never chosen
    /// after its other tokens.
    pub bad_words: Vec<Vec<u32>>,
    /// Minimum number of spaces and tabs at the beginning of each line but the first. The answer
    /// ends before a line with fewer.
    pub min_indent: usize,
    /// Time after the first token at which the answer ends with the current line. `None`: no limit.
    pub max_time: Option<Duration>,
    /// Maximum time for the prompt. If it takes longer, the answer ends without a token. `None`: no
    /// limit.
    pub max_prompt_time: Option<Duration>,
    /// Number of alternatives per token to report log-probabilities of. `None`: no
    /// log-probabilities, not even of the chosen token.
    pub logprobs: Option<usize>,
    /// Whether to report the probabilities after all samplers instead of the model's.
    pub sampled_logprobs: bool,
    /// The tokens to discard when the context is full. `None`: the answer ends there.
    pub shift: Option<ContextShift>,
    /// Cancels this answer from any thread, also within a step. The answer then ends with the text
    /// so far and [`StopReason::Interrupted`]. `None`: only the listener can end the answer. A
    /// clone of the request shares the token. To cancel a job of a scheduler, use its
    /// [`Canceller`](crate::scheduler::Canceller).
    pub cancel: Option<CancelToken>,
    /// Scales of the model's adapters, one for each. `None`: those that the model was loaded with.
    pub adapter_scales: Option<AdapterScales>,
    /// Maximum number of drafts per step of this answer; `None`: as many as the engine verifies. 0
    /// disables drafts, and a later answer with MTP drafts then runs the session's tokens again.
    pub max_drafts: Option<usize>,
}

impl Request {
    /// Whether steps of this answer may verify drafts.
    pub(crate) fn wants_drafts(&self) -> bool {
        self.max_drafts != Some(0)
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended it.
    End,
    /// The answer contained a stop string.
    StopString,
    /// The answer reached a limit of the request: number of tokens, time, or indentation.
    Length,
    /// The context is full.
    Context,
    /// The caller stopped or cancelled it.
    Interrupted,
}

impl StopReason {
    /// Whether the answer was cut, neither ended by the model nor by a stop string.
    pub fn is_cut(self) -> bool {
        matches!(self, StopReason::Length | StopReason::Context | StopReason::Interrupted)
    }
}

/// A token of an answer, for a [`Listener`].
#[derive(Clone, Debug)]
pub struct TokenEvent<'a> {
    /// The token id.
    pub token: u32,
    /// The text that is complete with this token. May be empty.
    pub text: &'a str,
    /// The natural logarithms of its probability and of those of the likeliest tokens, if
    /// requested.
    pub logprob: Option<(f32, &'a [LogProbability])>,
}

/// A finished answer.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Answer {
    /// The chosen tokens, including the one that ended the answer.
    pub tokens: Vec<u32>,
    /// The text.
    pub text: String,
    /// Why the answer ended.
    pub stop: StopReason,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Number of prompt tokens that were cached.
    pub cached_tokens: usize,
    /// Seconds for the prompt.
    pub prompt_seconds: f64,
    /// Seconds for the answer.
    pub generate_seconds: f64,
    /// Number of tokens that context shifts discarded.
    pub discarded_tokens: usize,
    /// Drafted and accepted tokens.
    pub drafts: DraftCount,
}

/// Callbacks of the generation loop. Each returns whether to continue.
pub trait Listener {
    /// Called when `done` of `total` prompt tokens have run.
    fn prompt(&mut self, _done: usize, _total: usize) -> bool {
        true
    }

    /// Called for each token of the answer. If it returns false, the answer ends with the tokens of
    /// this step, which can be several with drafts.
    fn token(&mut self, _event: &TokenEvent<'_>) -> bool {
        true
    }

    /// Called at the end with text that was held back because it could have become a stop string or
    /// was part of a character.
    fn rest(&mut self, _text: &str) {}
}
