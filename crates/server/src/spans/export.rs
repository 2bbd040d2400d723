//! From settings to a tracer whose spans are sent by a thread of its own.

use super::collector::Collector;
use super::{Otlp, OtlpError, RequestSpan};
use axum::http::{Request, Uri};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use std::time::Duration;

/// How long the last spans may take to be sent when the server ends.
const FLUSH: Duration = Duration::from_secs(3);

/// The spans of a server's requests; none without an endpoint.
pub(crate) struct Spans(Option<(SdkTracerProvider, SdkTracer)>);

impl Spans {
    pub(crate) fn none() -> Spans {
        Spans(None)
    }

    /// Starts the thread that sends spans. It keeps 2048 of them at most (`OTEL_BSP_MAX_QUEUE_SIZE`); what is more is dropped.
    pub(crate) fn start(otlp: Option<&Otlp>) -> Result<Spans, OtlpError> {
        let Some(otlp) = otlp.filter(|_| !switched_off()) else { return Ok(Spans::none()) };
        let mut exporter = SpanExporter::builder().with_http().with_http_client(Collector::new()?);
        if let Otlp::Endpoint(endpoint) = otlp {
            exporter = exporter.with_endpoint(traces(endpoint)?);
        }
        let exporter = exporter.build().map_err(|error| OtlpError::Setting(error.to_string()))?;
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build();
        let tracer = provider.tracer("latent");
        Ok(Spans(Some((provider, tracer))))
    }

    /// The span of a request, which ends when its last handle is dropped.
    pub(crate) fn request<B>(&self, request: &Request<B>, route: &'static str, id: &str) -> RequestSpan {
        match &self.0 {
            Some((_, tracer)) => RequestSpan::start(tracer, request, route, id),
            None => RequestSpan::default(),
        }
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        if let Some((provider, _)) = &self.0
            && let Err(error) = provider.shutdown_with_timeout(FLUSH)
        {
            tracing::warn!("the last spans could not be sent: {error}");
        }
    }
}

/// Two switches that turn off what other settings turn on.
fn switched_off() -> bool {
    let says =
        |name: &str, word: &str| std::env::var(name).is_ok_and(|value| value.eq_ignore_ascii_case(word));
    says("OTEL_SDK_DISABLED", "true") || says("OTEL_TRACES_EXPORTER", "none")
}

/// The address of a collector that takes spans.
fn traces(endpoint: &str) -> Result<String, OtlpError> {
    let wrong = || OtlpError::Endpoint(endpoint.to_owned());
    let uri: Uri = endpoint.parse().map_err(|_| wrong())?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.query().is_some() {
        return Err(wrong());
    }
    Ok(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
}

/// Who sends the spans: what the environment says, else `latent`.
fn resource() -> Resource {
    let given = |name: &str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    let attributes = std::env::var("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let named = given("OTEL_SERVICE_NAME")
        || attributes
            .split(',')
            .any(|pair| pair.split('=').next().is_some_and(|key| key.trim() == "service.name"));
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let builder = Resource::builder().with_attribute(version);
    if named { builder.build() } else { builder.with_service_name("latent").build() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_of_collectors() {
        assert_eq!(traces("http://127.0.0.1:4318").unwrap(), "http://127.0.0.1:4318/v1/traces");
        assert_eq!(traces("https://otel.example/x/").unwrap(), "https://otel.example/x/v1/traces");
        for wrong in ["", "127.0.0.1:4318", "ftp://a", "http://", "http://a?b", "collector"] {
            let problem = traces(wrong).unwrap_err().to_string();
            assert!(problem.contains("http://127.0.0.1:4318"), "{wrong}: {problem}");
        }
    }
}
