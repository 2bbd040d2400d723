//! Incremental updates of answers.

use super::AnswerDelta;
use latent_engine::StopReason;
use latent_engine::sampling::LogProbability;
use latent_engine::scheduler::JobUsage;
use latent_text::CallEnding;
use serde_json::{Value, json};

/// An update of one of the answers to a request.
#[derive(Clone, Debug)]
pub(crate) struct AnswerUpdate {
    pub(crate) choice: usize,
    pub(crate) what: AnswerEvent,
}

/// An event of an answer.
#[derive(Clone, Debug)]
pub(crate) enum AnswerEvent {
    /// Generation started: `cached` of `prompt` tokens came from the prefix cache.
    Started {
        prompt: usize,
        cached: usize,
        slot: Option<usize>,
    },
    /// Progress of the prompt: processed, total and previously cached tokens.
    Prompt {
        done: usize,
        total: usize,
        cached: usize,
    },
    Delta(AnswerDelta),
    /// A token, if the request wants updates per token.
    Token(TokenUpdate),
    Finished(Box<AnswerFinish>),
}

impl AnswerEvent {
    /// Bytes that it adds to a collected answer.
    pub(super) fn bytes(&self) -> usize {
        match self {
            AnswerEvent::Token(TokenUpdate { logprob, .. }) => {
                let top = logprob.as_ref().map_or(0, |(_, top)| top.len());
                size_of::<TokenUpdate>() + top * size_of::<LogProbability>()
            }
            AnswerEvent::Delta(AnswerDelta::Reasoning(text) | AnswerDelta::Content(text)) => text.len(),
            AnswerEvent::Delta(AnswerDelta::CallArguments { delta, .. }) => delta.len(),
            AnswerEvent::Finished(finish) => size_of_val(finish.tokens.as_slice()),
            AnswerEvent::Delta(_) | AnswerEvent::Started { .. } | AnswerEvent::Prompt { .. } => 0,
        }
    }
}

/// Why an answer ended, as clients distinguish it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The model ended it.
    #[default]
    End,
    /// A stop string was found.
    Stop,
    /// `max_tokens` was reached.
    Length,
    /// The context is full.
    Context,
    /// The model has called tools and waits for their results.
    Tools,
}

impl EndReason {
    /// `called`: how the last tool call ended, if the model has called any.
    pub(super) fn of(reason: StopReason, called: Option<CallEnding>) -> EndReason {
        match reason {
            // `tool_calls` makes clients run the tools, so the arguments must be complete. If the
            // model itself ended a malformed call, the client's error message lets it repair the
            // call.
            StopReason::End if matches!(called, Some(CallEnding::Complete | CallEnding::Malformed)) => {
                EndReason::Tools
            }
            StopReason::StopString if called == Some(CallEnding::Complete) => EndReason::Tools,
            StopReason::End | StopReason::Interrupted => EndReason::End,
            StopReason::StopString => EndReason::Stop,
            StopReason::Length => EndReason::Length,
            StopReason::Context => EndReason::Context,
        }
    }

    /// OpenAI's `finish_reason`, which llama.cpp's and Ollama's clients also know.
    pub(crate) fn word(self) -> &'static str {
        match self {
            EndReason::End | EndReason::Stop => "stop",
            EndReason::Length | EndReason::Context => "length",
            EndReason::Tools => "tool_calls",
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerFinish {
    pub(crate) reason: EndReason,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
    pub(crate) usage: JobUsage,
    pub(crate) reasoning_tokens: usize,
    pub(crate) tokens: Vec<u32>,
    pub(crate) slot: Option<usize>,
}

/// A chosen token.
#[derive(Clone, Debug)]
pub(crate) struct TokenUpdate {
    pub(crate) id: u32,
    /// Whether it ends the answer. Such a token has no text.
    pub(crate) ends: bool,
    pub(crate) logprob: Option<TokenLogprob>,
    /// Whether `logprob` is the probability after all samplers, not the model's.
    pub(crate) sampled: bool,
}

/// The log-probability of a token, and the most likely alternatives.
pub(crate) type TokenLogprob = (f32, Vec<LogProbability>);

impl TokenUpdate {
    /// The field names of a token's probability and of its alternatives. llama.cpp renames them
    /// with `post_sampling_probs`, where values are probabilities in place of logarithms.
    pub(crate) fn probability_names(&self) -> (&'static str, &'static str) {
        if self.sampled { ("prob", "top_probs") } else { ("logprob", "top_logprobs") }
    }

    /// The value of a probability under these names.
    pub(crate) fn probability(&self, logprob: f32) -> Value {
        if self.sampled { f64::from(logprob).exp().into() } else { finite(logprob) }
    }
}

/// A log-probability as JSON, which has no −∞. OpenAI's API documents −9999.0 as the value for very
/// unlikely tokens.
pub(crate) fn finite(logprob: f32) -> Value {
    f64::from(logprob.max(-9999.0)).into()
}

impl AnswerFinish {
    /// llama.cpp's `timings`.
    pub(crate) fn timings(&self) -> Value {
        timings(&self.usage)
    }
}

/// llama.cpp's `timings` object.
pub(super) fn timings(usage: &JobUsage) -> Value {
    let ran = usage.prompt.saturating_sub(usage.cached);
    let [prompt_ms, predicted_ms] =
        [usage.prompt_time, usage.generate_time].map(|time| time.as_secs_f64() * 1e3);
    // The prompt's step yields the first token, so that `generate_time` covers one token less.
    let stepped = usage.completion.saturating_sub(1);
    let per_token = |ms: f64, tokens: usize| if tokens > 0 { ms / tokens as f64 } else { 0.0 };
    let per_second = |ms: f64, tokens: usize| if ms > 0.0 { tokens as f64 * 1e3 / ms } else { 0.0 };
    json!({
        "cache_n": usage.cached,
        "prompt_n": ran,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": per_token(prompt_ms, ran),
        "prompt_per_second": per_second(prompt_ms, ran),
        "predicted_n": usage.completion,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": per_token(predicted_ms, stepped),
        "predicted_per_second": per_second(predicted_ms, stepped),
        "draft_n": usage.drafts.drafted,
        "draft_n_accepted": usage.drafts.accepted,
    })
}
