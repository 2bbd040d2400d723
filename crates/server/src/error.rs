//! Errors of requests, independent of the API.

use crate::flags::flag_of;
use axum::http::StatusCode;
use latent_types::Setting;
use std::borrow::Cow;
use std::time::Duration;

/// The supported content codings of request bodies, as a value of `Accept-Encoding`.
pub(crate) const SUPPORTED_CODINGS: &str = "gzip, deflate, br, zstd";

/// Kinds of errors. Each has a status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The request is malformed, out of range, or not supported by this model.
    Invalid,
    /// The API key is missing or wrong.
    Key,
    /// The origin or host is not allowed.
    Forbidden,
    /// Unknown route, model or stored response.
    NotFound,
    /// The route does not have this method.
    Method,
    /// The body exceeds the limit.
    TooLarge,
    /// The content coding of the body is not supported.
    Unsupported,
    /// The body was sent, or the answer was read, too slowly.
    Slow,
    /// Too many waiting requests, or too much memory in use.
    Busy,
    /// The model is loading, or the server is shutting down.
    Unavailable,
    /// The request's deadline has passed.
    Deadline,
    /// The server or its model lacks this feature.
    NotImplemented,
    /// A fault of the server.
    Internal,
}

impl ErrorKind {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ErrorKind::Key => StatusCode::UNAUTHORIZED,
            ErrorKind::Forbidden => StatusCode::FORBIDDEN,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Method => StatusCode::METHOD_NOT_ALLOWED,
            ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorKind::Unsupported => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ErrorKind::Slow => StatusCode::REQUEST_TIMEOUT,
            ErrorKind::Busy => StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Deadline => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::NotImplemented => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// An error of a request.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    /// The path of the field that caused it.
    pub(crate) param: Option<String>,
    /// OpenAI's machine-readable `code`.
    pub(crate) code: Option<&'static str>,
    /// The delay before a retry.
    pub(crate) retry_after: Option<Duration>,
    /// A context overflow, for which each API has its own message.
    pub(crate) overflow: Option<ContextOverflow>,
}

/// A prompt that does not fit into the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContextOverflow {
    /// Tokens of the prompt.
    pub(crate) tokens: usize,
    /// Whether counting stopped early, so that the prompt may have more tokens.
    pub(crate) at_least: bool,
    /// Tokens of the context.
    pub(crate) context: usize,
    /// Whether the request is for an embedding, which needs no room for an answer.
    pub(crate) embeds: bool,
}

impl ContextOverflow {
    /// `at least `, if `tokens` is a lower bound.
    fn bound(&self) -> &'static str {
        if self.at_least { "at least " } else { "" }
    }

    /// The text that OpenAI's clients match.
    pub(crate) fn openai_message(&self) -> String {
        let (ContextOverflow { tokens, context, .. }, bound) = (self, self.bound());
        // LiteLLM recognizes an overflow by the first words of OpenAI's message.
        let reason = match self.embeds {
            true => "which is too large to embed",
            false => "and the answer needs room for at least one",
        };
        format!(
            "This model's maximum context length is {context} tokens. However, your prompt has {bound}{tokens} tokens, {reason}. Please \
             reduce the length of the prompt."
        )
    }

    /// The text that Anthropic's clients match.
    pub(crate) fn anthropic_message(&self) -> String {
        let ContextOverflow { tokens, context, .. } = *self;
        // Clients compute by how much to shorten the prompt. A prompt that fills the context is
        // already too long, so the maximum must be less than its length.
        let maximum = context.min(tokens.saturating_sub(1));
        format!("prompt is too long: {}{tokens} tokens > {maximum} maximum", self.bound())
    }

    /// The text that llama.cpp's and Ollama's clients match.
    pub(crate) fn llama_message(&self) -> String {
        let ContextOverflow { tokens, context, .. } = self;
        // Up to the colon this is llama.cpp's message.
        format!(
            "request ({}{tokens} tokens) exceeds the available context size ({context} tokens): shorten the prompt, or start the server with a \
             larger context",
            self.bound()
        )
    }
}

/// Maximum length of an error message in bytes. Messages quote the request, which may be long.
const MAX_MESSAGE: usize = 2048;

/// Truncates a text for messages and the log.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > MAX_MESSAGE {
        text.truncate(text.floor_char_boundary(MAX_MESSAGE));
        text.push('…');
        // A quoted request may have had megabytes, which truncation alone keeps allocated.
        text.shrink_to_fit();
    }
    text
}

/// Replaces the names of settings in a library's error by request fields and server flags.
fn in_fields(text: &str) -> Cow<'_, str> {
    Setting::rename(text, |setting| {
        Some(match setting {
            Setting::Keep => "`n_keep`",
            Setting::Tokens => "token ids",
            other => flag_of(other),
        })
    })
}

impl ApiError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
        let message = shortened(in_fields(&message.into()).into_owned());
        ApiError { kind, message, param: None, code: None, retry_after: None, overflow: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Invalid, message)
    }

    /// An error about a field.
    pub(crate) fn field(param: impl Into<String>, message: impl std::fmt::Display) -> ApiError {
        let param = param.into();
        let message = if param.is_empty() { message.to_string() } else { format!("`{param}`: {message}") };
        ApiError { param: (!param.is_empty()).then_some(param), ..ApiError::invalid(message) }
    }

    /// Marks an overflow as one of an embedding.
    pub(crate) fn embeds(mut self) -> ApiError {
        if let Some(overflow) = &mut self.overflow {
            overflow.embeds = true;
        }
        self
    }

    pub(crate) fn overflow(overflow: ContextOverflow) -> ApiError {
        let error = ApiError::invalid(overflow.llama_message()).with_code("context_length_exceeded");
        ApiError { overflow: Some(overflow), ..error }
    }

    pub(crate) fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Internal, message)
    }

    pub(crate) fn with_code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    pub(crate) fn retry(self, after: Duration) -> ApiError {
        ApiError { retry_after: Some(after), ..self }
    }
}
