//! Setup of the tracer and of the exporter's thread.

use super::collector::Collector;
use super::{Otlp, OtlpError, RequestSpan};
use axum::http::{Request, Uri};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use std::time::Duration;

/// Timeout for sending the last spans when the server ends.
const FLUSH: Duration = Duration::from_secs(3);

/// Creates the spans of requests. Without an endpoint it does nothing.
pub(crate) struct Spans(Option<(SdkTracerProvider, SdkTracer)>);

impl Spans {
    pub(crate) fn none() -> Spans {
        Spans(None)
    }

    /// Starts the exporter's thread. Its queue has 2048 spans (`OTEL_BSP_MAX_QUEUE_SIZE`). Further
    /// ones are dropped, so that a slow collector does not delay requests.
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
            // Bounded, so that an unreachable collector does not delay the end of the server.
            && let Err(error) = provider.shutdown_with_timeout(FLUSH)
        {
            tracing::warn!("the last spans could not be sent: {error}");
        }
    }
}

/// Whether one of OpenTelemetry's variables disables traces.
fn switched_off() -> bool {
    let says =
        |name: &str, word: &str| std::env::var(name).is_ok_and(|value| value.eq_ignore_ascii_case(word));
    says("OTEL_SDK_DISABLED", "true") || says("OTEL_TRACES_EXPORTER", "none")
}

/// The URL of the traces endpoint of a collector.
fn traces(endpoint: &str) -> Result<String, OtlpError> {
    let wrong = || OtlpError::Endpoint(endpoint.to_owned());
    let uri: Uri = endpoint.parse().map_err(|_| wrong())?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.query().is_some() {
        return Err(wrong());
    }
    Ok(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
}

/// The resource of all spans. The service name is `latent`, unless the environment sets one.
fn resource() -> Resource {
    let given = |name: &str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    let attributes = std::env::var("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let named = given("OTEL_SERVICE_NAME")
        || attributes
            .split(',')
            .any(|pair| pair.split('=').next().is_some_and(|key| key.trim() == "service.name"));
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let builder = Resource::builder().with_attribute(version);
    // The SDK's default would be `unknown_service`.
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
