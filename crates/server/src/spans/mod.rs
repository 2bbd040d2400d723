//! Tracing of requests. With the feature `otel`, spans are sent to an OpenTelemetry collector;
//! without it, nothing is traced.

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

/// The destination of spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Otlp {
    /// The collector at this URL, to which `/v1/traces` is appended.
    Endpoint(String),
    /// The collector in OpenTelemetry's environment variables.
    Environment,
}

/// Errors of the setup of traces.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    #[error(
        "this program was built without OpenTelemetry: omit the endpoint, or build it with `cargo build \
         --release --features otel`"
    )]
    NotBuilt,
    /// The endpoint is malformed.
    #[error("invalid OpenTelemetry endpoint {0:?}: expected a URL such as http://127.0.0.1:4318")]
    Endpoint(String),
    /// A setting of the environment is malformed.
    #[error("OpenTelemetry cannot be set up: {0}")]
    Setting(String),
}

/// Attributes of a request that is submitted to the engine.
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "read by the feature otel"))]
pub(crate) struct RequestRecord<'a> {
    /// The name of the model.
    pub(crate) model: &'a str,
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    pub(crate) max_tokens: Option<usize>,
    /// Number of answers.
    pub(crate) choices: usize,
    /// `None` for an embedding.
    pub(crate) sampling: Option<&'a SamplingParams>,
}

/// Attributes of a finished answer.
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "read by the feature otel"))]
pub(crate) struct AnswerRecord {
    /// When its request was submitted to the engine.
    pub(crate) submitted: SystemTime,
    /// The index among the answers to one prompt.
    pub(crate) choice: usize,
    pub(crate) usage: JobUsage,
    /// Reasoning tokens.
    pub(crate) reasoning: usize,
    /// `None` for an embedding.
    pub(crate) reason: Option<&'static str>,
}
