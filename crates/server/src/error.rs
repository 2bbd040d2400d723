//! What a client did wrong, or the server could not do, before any dialect gives it a shape.

use crate::flags::flag_of;
use axum::http::StatusCode;
use latent_types::Setting;
use std::borrow::Cow;
use std::time::Duration;

/// The content codings of request bodies that the server decodes, as the header `Accept-Encoding` of a 415 lists them.
pub(crate) const SUPPORTED_CODINGS: &str = "gzip, deflate, br, zstd";

/// Kinds of errors, each with its status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The request is malformed, out of range, or asks for what this model cannot do.
    Invalid,
    /// No key, or a wrong one.
    Key,
    /// The origin or host may not ask.
    Forbidden,
    /// Unknown address, model or stored answer.
    NotFound,
    /// The address knows other methods only.
    Method,
    /// The body is larger than the limit.
    TooLarge,
    /// The body has a form that is not read.
    Unsupported,
    /// The body did not arrive in time.
    Slow,
    /// Too many requests wait.
    Busy,
    /// The model is loading, or the server is shutting down.
    Unavailable,
    /// The deadline passed.
    Deadline,
    /// No model of this server can do this.
    NotImplemented,
    /// The server's own fault.
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
    /// The field that it is about.
    pub(crate) param: Option<String>,
    /// A word for programs, as OpenAI's clients know it.
    pub(crate) code: Option<&'static str>,
    /// When to try again.
    pub(crate) retry_after: Option<Duration>,
    /// The numbers of a prompt that does not fit into the context. Each dialect has its own text for it.
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
    /// Whether nothing is answered, so that the prompt could fill the context.
    pub(crate) embeds: bool,
}

impl ContextOverflow {
    /// `at least ` where that is all that is known of the number of tokens.
    fn bound(&self) -> &'static str {
        if self.at_least { "at least " } else { "" }
    }

    /// The text that OpenAI's clients match.
    pub(crate) fn openai_message(&self) -> String {
        let (ContextOverflow { tokens, context, .. }, bound) = (self, self.bound());
        let reason = match self.embeds {
            true => "which is too large to embed",
            false => "and the answer needs room for at least one",
        };
        format!(
            "This model's maximum context length is {context} tokens. However, your prompt has {bound}{tokens} tokens, {reason}. Please \
             reduce the length of the prompt."
        )
    }

    /// The text that Anthropic's clients match. The maximum is always less than the number of tokens.
    pub(crate) fn anthropic_message(&self) -> String {
        let ContextOverflow { tokens, context, .. } = *self;
        let maximum = context.min(tokens.saturating_sub(1));
        format!("prompt is too long: {}{tokens} tokens > {maximum} maximum", self.bound())
    }

    /// The text that llama.cpp's and Ollama's clients match.
    pub(crate) fn llama_message(&self) -> String {
        let ContextOverflow { tokens, context, .. } = self;
        format!(
            "request ({}{tokens} tokens) exceeds the available context size ({context} tokens): shorten the prompt, or start the server with a \
             larger context",
            self.bound()
        )
    }
}

/// Bytes of an error message. Messages quote the request, which may be long.
const MESSAGE: usize = 2048;

/// A text for messages and the log: the beginning of a long one.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > MESSAGE {
        text.truncate(text.floor_char_boundary(MESSAGE));
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

/// A text with the fields of a request, and the flags of the server, that set what it names.
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

    /// A request that cannot be served as it is.
    pub(crate) fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::Invalid, message)
    }

    /// A field that cannot be served as it is.
    pub(crate) fn field(param: impl Into<String>, message: impl std::fmt::Display) -> ApiError {
        let param = param.into();
        let message = if param.is_empty() { message.to_string() } else { format!("`{param}`: {message}") };
        ApiError { param: (!param.is_empty()).then_some(param), ..ApiError::invalid(message) }
    }

    /// The same, about a prompt that has no answer.
    pub(crate) fn embeds(mut self) -> ApiError {
        if let Some(overflow) = &mut self.overflow {
            overflow.embeds = true;
        }
        self
    }

    /// A prompt that does not fit into the context.
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
