//! Requests for generation, and its results.

use crate::context_shift::ContextShift;
use crate::draft_kind::DraftCount;
use crate::sampling::{LogProbability, SamplingParams};
use latent_backend::{AdapterScales, CancelToken};
use std::time::Duration;

/// What is to be generated.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens of the answer; none: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts before which the answer ends.
    pub stop: Vec<String>,
    /// Tokens that end the answer as the model's own end does.
    pub stop_tokens: Vec<u32>,
    /// Whether the model's own end is banned.
    pub ignore_eos: bool,
    /// Minimum number of tokens of the answer: until then no token that ends it is chosen, and stop strings are not looked for.
    pub min_tokens: usize,
    /// Token sequences that the answer must not contain: the last token of one is never chosen after the others.
    pub bad_words: Vec<Vec<u32>>,
    /// Minimum number of blanks and tabs at the beginning of each line but the first: the answer ends before a line with fewer.
    pub min_indent: usize,
    /// Time after which the answer ends at the next end of a line, from its first token on; none: no limit.
    pub max_time: Option<Duration>,
    /// Time that the prompt may take; where it takes longer, the answer ends without a token. None: no limit.
    pub max_prompt_time: Option<Duration>,
    /// Report log-probabilities of this many alternatives; none: of none, not even of the chosen token.
    pub logprobs: Option<usize>,
    /// Whether these are the probabilities after all samplers, in place of the model's.
    pub sampled_logprobs: bool,
    /// What to discard when the context is full; none: the answer ends there.
    pub shift: Option<ContextShift>,
    /// Cancels this answer from any thread, and no other: it then ends with the text so far and [`StopReason::Interrupted`], also in the middle of
    /// a step. None: only its listener can end it. A clone of the request shares the token. Jobs of a scheduler are cancelled by its
    /// [`Canceller`](crate::scheduler::Canceller).
    pub cancel: Option<CancelToken>,
    /// Scales of the model's adapters, one for each; none: those that the model was loaded with.
    pub adapter_scales: Option<AdapterScales>,
    /// Draft nothing for this answer, in an engine that could. A later answer with drafts runs the session's tokens again.
    pub no_drafts: bool,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended it.
    End,
    /// A stop string came.
    StopString,
    /// It has as many tokens as were asked for, or has run into another limit of the request: of time, or of indentation.
    Length,
    /// The context is full.
    Context,
    /// The caller stopped or cancelled it.
    Interrupted,
}

impl StopReason {
    /// Whether the model did not end the answer itself.
    pub fn is_cut(self) -> bool {
        matches!(self, StopReason::Length | StopReason::Context | StopReason::Interrupted)
    }
}

/// A token of an answer, as it comes.
#[derive(Clone, Debug)]
pub struct TokenEvent<'a> {
    /// The token.
    pub token: u32,
    /// Text that is certain now; may be empty.
    pub text: &'a str,
    /// ln of its probability, and of the likeliest ones, where asked for.
    pub logprob: Option<(f32, &'a [LogProbability])>,
}

/// A finished answer.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Answer {
    /// Its tokens, the one that ended it included.
    pub tokens: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Why it ended.
    pub stop: StopReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the cache already.
    pub cached_tokens: usize,
    /// Seconds for the prompt.
    pub prompt_seconds: f64,
    /// Seconds for the answer.
    pub generate_seconds: f64,
    /// Tokens that context shifts discarded meanwhile.
    pub discarded_tokens: usize,
    /// Tokens that were drafted, in an engine that drafts.
    pub drafts: DraftCount,
}

/// Callbacks of the generation loop. Each returns whether to continue.
pub trait Listener {
    /// `done` of `total` prompt tokens have run.
    fn prompt(&mut self, _done: usize, _total: usize) -> bool {
        true
    }

    /// A token of the answer: called once for each. False ends the answer with the tokens of this step, of which drafts can make several.
    fn token(&mut self, _event: &TokenEvent<'_>) -> bool {
        true
    }

    /// Text that was held back until the end, since it might have become a stop string or was part of a character.
    fn rest(&mut self, _text: &str) {}
}
