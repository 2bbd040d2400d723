//! What a request leaves in a trace: with the feature `otel` spans for an OpenTelemetry collector, without it nothing.

#[cfg(feature = "otel")]
mod collector;
#[cfg(feature = "otel")]
mod export;
#[cfg(feature = "otel")]
mod request;
#[cfg(not(feature = "otel"))]
mod without;

#[cfg(feature = "otel")]
pub(crate) use self::{export::Spans, request::RequestSpan};
#[cfg(not(feature = "otel"))]
pub(crate) use without::{RequestSpan, Spans};

use latent_engine::sampling::SamplingParams;
use latent_engine::scheduler::JobUsage;
use std::time::SystemTime;

/// Where spans are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Otlp {
    /// To the collector at this URL, to which `/v1/traces` is added.
    Endpoint(String),
    /// To where OpenTelemetry's environment variables say.
    Environment,
}

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The feature is missing.
    #[error(
        "this program was built without OpenTelemetry: leave the endpoint away, or build it with `cargo build --release --features otel`"
    )]
    NotBuilt,
    /// The endpoint is malformed.
    #[error("invalid OpenTelemetry endpoint {0:?}: expected a URL such as http://127.0.0.1:4318")]
    Endpoint(String),
    /// A setting of the environment is malformed.
    #[error("OpenTelemetry cannot be set up: {0}")]
    Setting(String),
}

/// What a trace tells of a request that is given to the engine.
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "read by the feature otel"))]
pub(crate) struct RequestRecord<'a> {
    /// The model that answers.
    pub(crate) model: &'a str,
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Most tokens of an answer.
    pub(crate) max_tokens: Option<usize>,
    /// Answers.
    pub(crate) choices: usize,
    /// None for an embedding.
    pub(crate) sampling: Option<&'a SamplingParams>,
}

/// What a trace tells of an answer that has ended.
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "read by the feature otel"))]
pub(crate) struct AnswerRecord {
    /// When its request was given to the engine.
    pub(crate) submitted: SystemTime,
    /// Which of the answers to one prompt.
    pub(crate) choice: usize,
    pub(crate) usage: JobUsage,
    /// Tokens of reasoning.
    pub(crate) reasoning: usize,
    /// None for an embedding.
    pub(crate) reason: Option<&'static str>,
}
