//! JSON responses, and the format of errors in each API.

use crate::error::{ApiError, ErrorKind, SUPPORTED_CODINGS};
use axum::http::HeaderValue;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};

/// An API, which determines the format of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    /// OpenAI's Responses API, whose streams have events of their own.
    Responses,
    Anthropic,
    LlamaCpp,
    Ollama,
}

impl Dialect {
    /// The API that a path belongs to.
    pub(crate) fn of_path(path: &str) -> Dialect {
        // The order matters: `/v1/` is also a prefix of the paths of Anthropic's API and of the
        // Responses API.
        match path {
            _ if path.starts_with("/v1/messages") => Dialect::Anthropic,
            _ if path.starts_with("/v1/responses") || path.starts_with("/responses") => Dialect::Responses,
            _ if path.starts_with("/v1/") || path.starts_with("/chat/") => Dialect::OpenAi,
            _ if path.starts_with("/api/") => Dialect::Ollama,
            _ => Dialect::LlamaCpp,
        }
    }

    /// The message of an error.
    pub(crate) fn message(self, error: &ApiError) -> String {
        // LiteLLM and Claude Code recognize a context overflow only by the text of the original
        // API.
        match (error.overflow, self) {
            (None, _) => error.message.clone(),
            (Some(overflow), Dialect::OpenAi | Dialect::Responses) => overflow.openai_message(),
            (Some(overflow), Dialect::Anthropic) => overflow.anthropic_message(),
            (Some(overflow), Dialect::LlamaCpp | Dialect::Ollama) => overflow.llama_message(),
        }
    }

    /// The body of an error response.
    pub(crate) fn error_value(self, error: &ApiError, id: &str) -> Value {
        let mut value = self.plain_error_value(error, id);
        if let Some(overflow) = error.overflow {
            // llama.cpp's fields are next to the message, which Ollama's format has at the top
            // level.
            let object = if value["error"].is_object() { &mut value["error"] } else { &mut value };
            object["n_prompt_tokens"] = overflow.tokens.into();
            object["n_ctx"] = overflow.context.into();
        }
        value
    }

    fn plain_error_value(self, error: &ApiError, id: &str) -> Value {
        let ApiError { kind, param, code, .. } = error;
        let message = self.message(error);
        match self {
            Dialect::OpenAi | Dialect::Responses => json!({"error": {
                "message": message, "type": if error.overflow.is_some() { OVERFLOW } else { openai_type(*kind) },
                "param": param, "code": code,
            }}),
            Dialect::Anthropic => json!({
                "type": "error", "error": {"type": anthropic_type(*kind), "message": message}, "request_id": id,
            }),
            Dialect::LlamaCpp => json!({"error": {
                "code": kind.status().as_u16(), "message": message, "type": llama_type(error),
            }}),
            Dialect::Ollama => json!({"error": message}),
        }
    }

    pub(crate) fn stream_type(self) -> &'static str {
        match self {
            Dialect::Ollama => "application/x-ndjson",
            _ => "text/event-stream",
        }
    }

    /// The keep-alive of a stream while its model loads: a comment in server-sent events, a blank
    /// before the next JSON line.
    pub(crate) fn loading(self) -> &'static str {
        match self {
            Dialect::Ollama => " ",
            _ => ": loading\n\n",
        }
    }

    /// An error as an event of a stream.
    pub(crate) fn error_event(self, error: &ApiError, id: &str) -> String {
        let value = self.error_value(error, id);
        match self {
            Dialect::OpenAi => format!("data: {value}\n\ndata: [DONE]\n\n"),
            Dialect::Responses => {
                let ApiError { param, code, kind, .. } = error;
                let (code, message) = (code.unwrap_or_else(|| openai_type(*kind)), self.message(error));
                let value = json!({
                    "type": "error", "code": code, "message": message, "param": param, "sequence_number": 0,
                });
                format!("event: error\ndata: {value}\n\n")
            }
            Dialect::Anthropic => format!("event: error\ndata: {value}\n\n"),
            // llama.cpp's native API sends errors in a field `error:` instead of `data:`.
            Dialect::LlamaCpp => format!("error: {value}\n\n"),
            Dialect::Ollama => format!("{value}\n"),
        }
    }

    pub(crate) fn error(self, error: &ApiError, id: &str) -> Response {
        let mut response = json_response(&self.error_value(error, id));
        *response.status_mut() = error.kind.status();
        let headers = response.headers_mut();
        if let Some(after) = error.retry_after {
            // The header has whole seconds, and 0 would mean an immediate retry.
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        match error.kind {
            // Required with a 401 by RFC 9110, section 15.5.2.
            ErrorKind::Key => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // Allowed in responses by RFC 9110, section 12.5.3: clients learn the supported
            // codings.
            ErrorKind::Unsupported => {
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(SUPPORTED_CODINGS));
            }
            _ => {}
        }
        response
    }
}

pub(crate) fn json_response(value: &Value) -> Response {
    json_text(value.to_string().into())
}

pub(crate) fn json_text(text: Bytes) -> Response {
    let mut response = text.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// llama.cpp's error type of a context overflow.
const OVERFLOW: &str = "exceed_context_size_error";

fn openai_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Key => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::Busy => "rate_limit_error",
        ErrorKind::Unavailable => "unavailable_error",
        ErrorKind::Slow | ErrorKind::Deadline => "timeout_error",
        ErrorKind::Internal => "server_error",
        _ => "invalid_request_error",
    }
}

fn anthropic_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Key => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::TooLarge => "request_too_large",
        ErrorKind::Busy => "rate_limit_error",
        ErrorKind::Unavailable => "overloaded_error",
        ErrorKind::Slow | ErrorKind::Deadline => "timeout_error",
        ErrorKind::Internal => "api_error",
        _ => "invalid_request_error",
    }
}

fn llama_type(error: &ApiError) -> &'static str {
    match error.kind {
        _ if error.overflow.is_some() => OVERFLOW,
        ErrorKind::Internal => "server_error",
        ErrorKind::NotImplemented => "not_supported_error",
        kind => openai_type(kind),
    }
}
