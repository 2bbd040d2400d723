//! Stubs for builds without OpenTelemetry.

use super::{AnswerRecord, Otlp, OtlpError, RequestRecord};
use crate::error::ApiError;
use axum::http::Request;

/// Creates no spans.
pub(crate) struct Spans;

/// The absent span of a request.
#[derive(Clone)]
pub(crate) struct RequestSpan;

impl Spans {
    pub(crate) fn none() -> Spans {
        Spans
    }

    pub(crate) fn start(otlp: Option<&Otlp>) -> Result<Spans, OtlpError> {
        match otlp {
            Some(Otlp::Endpoint(_)) => Err(OtlpError::NotBuilt),
            Some(Otlp::Environment) => {
                tracing::warn!("OTEL_EXPORTER_OTLP_ENDPOINT is ignored: {}", OtlpError::NotBuilt);
                Ok(Spans)
            }
            None => Ok(Spans),
        }
    }

    pub(crate) fn request<B>(&self, _request: &Request<B>, _route: &'static str, _id: &str) -> RequestSpan {
        RequestSpan
    }
}

impl RequestSpan {
    pub(crate) fn trace_id(&self) -> Option<&str> {
        None
    }

    pub(crate) fn model(&self, _name: &str) {}

    pub(crate) fn asked(&self, _asked: &RequestRecord<'_>) {}

    pub(crate) fn ended(&self, _ended: &AnswerRecord) {}

    pub(crate) fn failed(&self, _error: &ApiError) {}

    pub(crate) fn responded(&self, _status: u16) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_error_and_the_environment_is_a_warning() {
        let endpoint = Otlp::Endpoint("http://127.0.0.1:4318".into());
        let problem = Spans::start(Some(&endpoint)).err().unwrap().to_string();
        assert!(problem.contains("--features otel"), "{problem}");
        assert!(Spans::start(Some(&Otlp::Environment)).is_ok());
    }
}
