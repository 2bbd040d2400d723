//! HTTP client for the OpenTelemetry collector, over ureq.

use super::OtlpError;
use async_trait::async_trait;
use axum::http::{Request, Response};
use bytes::Bytes;
use opentelemetry_http::{HttpClient, HttpError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use ureq::Agent;

/// Default timeout of the OTLP exporter specification.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum bytes of a collector's response.
const MAX_ANSWER: u64 = 64 << 10;

/// A client of a collector. Its requests block, which is allowed on the exporter's thread.
#[derive(Debug)]
pub(super) struct Collector {
    agent: Agent,
    /// Whether the last request failed. Only the first of consecutive failures is logged.
    failing: AtomicBool,
}

impl Collector {
    pub(super) fn new() -> Result<Collector, OtlpError> {
        let tls = latent_hub::tls().map_err(|error| OtlpError::Setting(error.to_string()))?;
        let config = Agent::config_builder()
            .tls_config(tls)
            // The exporter expects a response for every status. `send_bytes` logs the status.
            .http_status_as_error(false)
            // A redirect would send the spans to an address that the operator has not configured.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(patience()))
            .build();
        Ok(Collector { agent: config.new_agent(), failing: AtomicBool::new(false) })
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (parts, body) = request.into_parts();
        let response = self.agent.run(Request::from_parts(parts, &body[..]))?;
        let (parts, mut body) = response.into_parts();
        let bytes = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(parts, bytes.into()))
    }

    /// Logs when sending begins to fail, and when it works again.
    fn log_change(&self, address: &str, problem: Option<&str>) {
        // Relaxed: only the exporter's thread uses the flag.
        let failed_before = self.failing.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(problem) if !failed_before => {
                tracing::warn!("spans are dropped: the collector at {address} rejects them: {problem}");
            }
            None if failed_before => tracing::warn!("the collector at {address} accepts spans again"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let address = request.uri().to_string();
        let sent = self.send(request);
        let problem = match &sent {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(response.status().to_string()),
            Err(error) => Some(error.to_string()),
        };
        self.log_change(&address, problem.as_deref());
        Ok(sent?)
    }
}

/// The timeout in `OTEL_EXPORTER_OTLP_TRACES_TIMEOUT` or `OTEL_EXPORTER_OTLP_TIMEOUT`, in
/// milliseconds.
fn patience() -> Duration {
    let given = |name: &str| std::env::var(name).ok()?.parse().ok().map(Duration::from_millis);
    let named = given("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT").or_else(|| given("OTEL_EXPORTER_OTLP_TIMEOUT"));
    named.unwrap_or(PATIENCE)
}
