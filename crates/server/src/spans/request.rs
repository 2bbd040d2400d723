//! The span of a request and its child spans. Attribute names are those of OpenTelemetry's semantic
//! conventions.

use super::{AnswerRecord, RequestRecord};
use crate::error::{ApiError, ErrorKind};
use axum::http::{HeaderMap, Request, Version};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Maximum bytes of a text from the client, whose headers may be long.
const MAX_TEXT: usize = 256;

/// Maximum bytes of `tracestate`: W3C Trace Context asks for at least 512.
const MAX_STATE: usize = 512;

/// The span of a request, or nothing if it is not traced. The span ends when the last clone is
/// dropped.
#[derive(Clone, Default)]
pub(crate) struct RequestSpan(Option<Arc<LiveSpan>>);

struct LiveSpan {
    tracer: SdkTracer,
    context: Context,
    trace_id: String,
    totals: Mutex<Totals>,
}

/// Totals over all answers to the request.
#[derive(Default)]
struct Totals {
    input: usize,
    output: usize,
    cached: usize,
    reasoning: usize,
    reasons: Vec<&'static str>,
    /// Answers that have not ended.
    open: usize,
    /// Whether the attributes of the request have been set.
    asked: bool,
}

impl RequestSpan {
    pub(super) fn start<B>(
        tracer: &SdkTracer,
        request: &Request<B>,
        route: &'static str,
        id: &str,
    ) -> RequestSpan {
        if is_watching(route) {
            return RequestSpan::default();
        }
        // The client's `traceparent` makes this span part of its trace.
        let parent = TraceContextPropagator::new().extract(&Headers(request.headers()));
        let span = tracer
            .span_builder(format!("{} {route}", request.method()))
            .with_kind(SpanKind::Server)
            .with_attributes(of_http(request, route, id))
            .start_with_context(tracer, &parent);
        let context = parent.with_span(span);
        let trace_id = context.span().span_context().trace_id().to_string();
        let (tracer, totals) = (tracer.clone(), Mutex::default());
        RequestSpan(Some(Arc::new(LiveSpan { tracer, context, trace_id, totals })))
    }

    /// The trace ID, for the log.
    pub(crate) fn trace_id(&self) -> Option<&str> {
        self.0.as_deref().map(|live| live.trace_id.as_str())
    }

    /// Sets the model that the request names. A single model answers under any name.
    pub(crate) fn model(&self, name: &str) {
        if let Some(live) = &self.0 {
            live.context.span().set_attribute(KeyValue::new("gen_ai.request.model", short(name)));
        }
    }

    /// Records a prompt that is submitted to the engine.
    pub(crate) fn asked(&self, asked: &RequestRecord<'_>) {
        let Some(live) = &self.0 else { return };
        let mut totals = live.totals();
        totals.input += asked.prompt;
        totals.open += asked.choices;
        // A request can have several prompts with the same parameters.
        if std::mem::replace(&mut totals.asked, true) {
            return;
        }
        let span = live.context.span();
        span.set_attribute(KeyValue::new("gen_ai.provider.name", "latent"));
        span.set_attribute(KeyValue::new("gen_ai.response.model", short(asked.model)));
        if let Some(most) = asked.max_tokens {
            span.set_attribute(KeyValue::new("gen_ai.request.max_tokens", count(most)));
        }
        if let Some(sampling) = asked.sampling {
            span.set_attribute(KeyValue::new("gen_ai.request.temperature", f64::from(sampling.temperature)));
            span.set_attribute(KeyValue::new("gen_ai.request.top_p", f64::from(sampling.top_p)));
            span.set_attribute(KeyValue::new("gen_ai.request.top_k", count(sampling.top_k)));
            span.set_attribute(KeyValue::new("gen_ai.request.choice.count", count(asked.choices)));
        }
    }

    pub(crate) fn ended(&self, ended: &AnswerRecord) {
        let Some(live) = &self.0 else { return };
        let AnswerRecord { submitted, choice, usage, reason, reasoning } = *ended;
        {
            let mut totals = live.totals();
            totals.open = totals.open.saturating_sub(1);
            totals.output += usage.completion;
            totals.reasoning += reasoning;
            // The answers to one prompt share its cached tokens.
            totals.cached += if choice == 0 { usage.cached } else { 0 };
            totals.reasons.extend(reason);
        }
        // The phases follow each other, so each child span begins where the previous one ended.
        let ran = usage.prompt.saturating_sub(usage.cached);
        let mut at = live.child("queue", submitted, usage.queued, choice, &[]);
        let tokens = [("latent.tokens", ran), ("latent.cached_tokens", usage.cached)];
        at = live.child("prefill", at, usage.prompt_time, choice, &tokens);
        // Embeddings have no end reason and no decode phase.
        if reason.is_some() {
            let tokens = [
                ("latent.tokens", usage.completion),
                ("latent.drafted_tokens", usage.drafts.drafted),
                ("latent.accepted_tokens", usage.drafts.accepted),
            ];
            live.child("decode", at, usage.generate_time, choice, &tokens);
        }
    }

    /// Records an error, possibly after the response has begun.
    pub(crate) fn failed(&self, error: &ApiError) {
        let Some(live) = &self.0 else { return };
        let span = live.context.span();
        span.set_attribute(KeyValue::new("error.type", kind(error.kind)));
        // By the conventions for HTTP servers, a 4xx is not an error of the server's span.
        if error.kind.status().is_server_error() {
            span.set_status(Status::error(short(&error.message)));
        }
    }

    /// Records the status of the response.
    pub(crate) fn responded(&self, status: u16) {
        let Some(live) = &self.0 else { return };
        let span = live.context.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if status >= 500 {
            // Does not replace the message that `failed` has set: the SDK keeps the greater of two
            // statuses, and an empty message is the smallest.
            span.set_status(Status::error(""));
        }
    }
}

impl LiveSpan {
    fn totals(&self) -> std::sync::MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a child span. Returns its end.
    fn child(
        &self,
        name: &'static str,
        start: SystemTime,
        time: Duration,
        choice: usize,
        counts: &[(&'static str, usize)],
    ) -> SystemTime {
        let end = start + time;
        let counts = counts.iter().map(|(key, number)| KeyValue::new(*key, count(*number)));
        let choice = std::iter::once(KeyValue::new("latent.choice", count(choice)));
        let builder =
            self.tracer.span_builder(name).with_start_time(start).with_attributes(choice.chain(counts));
        let mut span = self.tracer.build_with_context(builder, &self.context);
        opentelemetry::trace::Span::end_with_timestamp(&mut span, end);
        end
    }
}

impl Drop for LiveSpan {
    fn drop(&mut self) {
        // Totals are known only now: a request can have several prompts, each with several answers.
        let totals = std::mem::take(&mut *self.totals());
        let span = self.context.span();
        if totals.asked {
            span.set_attribute(KeyValue::new("gen_ai.usage.input_tokens", count(totals.input)));
            span.set_attribute(KeyValue::new("gen_ai.usage.output_tokens", count(totals.output)));
            span.set_attribute(KeyValue::new("gen_ai.usage.cache_read.input_tokens", count(totals.cached)));
            span.set_attribute(KeyValue::new("latent.reasoning_tokens", count(totals.reasoning)));
            let reasons = totals.reasons.iter().map(|reason| StringValue::from(*reason)).collect();
            span.set_attribute(KeyValue::new(
                "gen_ai.response.finish_reasons",
                Value::Array(Array::String(reasons)),
            ));
        }
        if totals.open > 0 {
            span.set_attribute(KeyValue::new("latent.unfinished_answers", count(totals.open)));
        }
        span.end();
    }
}

/// Whether a route is polled every few seconds by monitors or the page. Such requests are not
/// traced.
fn is_watching(route: &str) -> bool {
    matches!(route, "/health" | "/v1/health" | "/metrics") || route.starts_with("/latent/")
}

fn of_http<B>(request: &Request<B>, route: &'static str, id: &str) -> Vec<KeyValue> {
    let mut list = vec![
        KeyValue::new("http.request.method", request.method().to_string()),
        KeyValue::new("http.route", route),
        KeyValue::new("url.path", short(request.uri().path())),
        KeyValue::new("latent.request_id", id.to_owned()),
    ];
    // The server speaks no later version.
    let version = if request.version() == Version::HTTP_10 { "1.0" } else { "1.1" };
    list.push(KeyValue::new("network.protocol.version", version));
    if let Some(agent) = request.headers().get("user-agent").and_then(|agent| agent.to_str().ok()) {
        list.push(KeyValue::new("user_agent.original", short(agent)));
    }
    list.extend(operation(route).map(|name| KeyValue::new("gen_ai.operation.name", name)));
    list
}

/// `gen_ai.operation.name` of a route.
fn operation(route: &str) -> Option<&'static str> {
    Some(match route {
        "/v1/chat/completions"
        | "/chat/completions"
        | "/v1/responses"
        | "/responses"
        | "/v1/messages"
        | "/api/chat" => "chat",
        "/v1/completions" | "/completion" | "/completions" | "/api/generate" => "text_completion",
        "/v1/embeddings" | "/embedding" | "/embeddings" => "embeddings",
        _ => return None,
    })
}

fn kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid_request",
        ErrorKind::Key => "authentication",
        ErrorKind::Forbidden => "forbidden",
        ErrorKind::NotFound => "not_found",
        ErrorKind::Method => "method",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::NotImplemented => "not_implemented",
        ErrorKind::TooLarge => "too_large",
        ErrorKind::Slow => "slow",
        ErrorKind::Busy => "busy",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Deadline => "timeout",
        ErrorKind::Internal => "internal",
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A text, truncated at [`MAX_TEXT`].
fn short(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

/// The headers `traceparent` and `tracestate`, unless they are too long.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key)?.to_str().ok()?;
        (value.len() <= MAX_STATE).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(axum::http::HeaderName::as_str).collect()
    }
}
