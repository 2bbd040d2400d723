//! Spans of requests, as they arrive at a collector.

mod collector;

use crate::support::{CHAT, TestServer, ask, config, loader, source, start};
use collector::{Span, SpanListener};
use latent_server::{Otlp, ServeError, Server, ServerConfig};
use serde_json::json;
use std::net::TcpListener;
use std::time::{Duration, Instant};

fn server(url: &str) -> TestServer {
    start(ServerConfig { otlp: Some(Otlp::Endpoint(url.to_owned())), ..config() })
}

/// The only span of a name.
#[track_caller]
fn one<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found: Vec<&Span> = spans.iter().filter(|span| span.name == name).collect();
    assert_eq!(found.len(), 1, "{name}: {spans:?}");
    found[0]
}

#[test]
fn a_request_is_a_span_with_its_phases_below_it() {
    let (trace, caller) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let collector = SpanListener::start();
    let mut server = server(&collector.url);
    let body = ask(json!({"model": "whatever", "max_tokens": 5, "ignore_eos": true}));
    let parent = format!("00-{trace}-{caller}-01");
    let headers = [("traceparent", parent.as_str()), ("x-request-id", "mine"), ("user-agent", "test/1")];
    let answer = server.ask("POST", CHAT, &headers, &body.to_string()).ok();
    server.end();
    let spans = collector.spans();
    assert_eq!(spans.len(), 4, "{spans:?}");
    let root = one(&spans, "POST /v1/chat/completions");
    assert_eq!((root.trace.as_str(), root.parent.as_str(), root.kind, root.status), (trace, caller, 2, 0));
    assert_eq!(root.resource["service.name"], "latent");
    for (name, value) in [
        ("http.request.method", json!("POST")),
        ("http.route", json!("/v1/chat/completions")),
        ("http.response.status_code", json!(200)),
        ("url.path", json!("/v1/chat/completions")),
        ("user_agent.original", json!("test/1")),
        ("latent.request_id", json!("mine")),
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.request.model", json!("whatever")),
        ("gen_ai.response.model", json!("demo")),
        ("gen_ai.request.max_tokens", json!(5)),
        ("gen_ai.request.temperature", json!(0.0)),
        ("gen_ai.usage.input_tokens", answer["usage"]["prompt_tokens"].clone()),
        ("gen_ai.usage.output_tokens", json!(5)),
        ("gen_ai.usage.cache_read.input_tokens", json!(0)),
        ("gen_ai.response.finish_reasons", json!(["length"])),
    ] {
        assert_eq!(root.attributes.get(name), Some(&value), "{name}");
    }
    let [queue, prefill, decode] = ["queue", "prefill", "decode"].map(|name| one(&spans, name));
    for child in [queue, prefill, decode] {
        assert_eq!((&child.trace, &child.parent), (&root.trace, &root.id), "{child:?}");
    }
    assert!(root.start <= queue.start && queue.start <= queue.end, "{spans:?}");
    assert_eq!((queue.end, prefill.end), (prefill.start, decode.start));
    assert!(prefill.start < prefill.end && decode.start < decode.end, "{spans:?}");
    assert_eq!(decode.attributes["latent.tokens"], 5);
}

#[test]
fn streams_and_embeddings_and_failures_have_spans_and_watchers_none() {
    let collector = SpanListener::start();
    let mut server = server(&collector.url);
    server.post(CHAT, &ask(json!({"stream": true, "n": 2}))).chunks();
    server.post("/v1/embeddings", &json!({"input": ["a", "b"]})).ok();
    server.post("/v1/messages", &ask(json!({"max_tokens": 0}))).error(400);
    server.get("/v1/responses/resp_secret_id");
    server.get("/health").ok();
    server.get("/metrics");
    server.end();
    let spans = collector.spans();
    let mut roots: Vec<&Span> = spans.iter().filter(|span| span.parent.is_empty()).collect();
    roots.sort_by_key(|span| span.start);
    let names: Vec<&str> = roots.iter().map(|span| span.name.as_str()).collect();
    let expected =
        ["POST /v1/chat/completions", "POST /v1/embeddings", "POST /v1/messages", "GET /v1/responses/{id}"];
    assert_eq!(names, expected);
    let below = |root: &Span, name: &str| {
        spans.iter().filter(|span| span.parent == root.id && span.name == name).count()
    };
    let [stream, embeddings, refused, unknown] = roots.as_slice() else { panic!("{roots:?}") };
    assert_eq!(
        (below(stream, "decode"), below(embeddings, "decode"), below(embeddings, "prefill")),
        (2, 0, 2)
    );
    assert_eq!(stream.attributes["gen_ai.response.finish_reasons"].as_array().unwrap().len(), 2);
    assert_eq!(embeddings.attributes["gen_ai.operation.name"], "embeddings");
    assert_eq!(embeddings.attributes["gen_ai.response.model"], "demo");
    assert_eq!(refused.attributes["error.type"], "invalid_request");
    // OpenTelemetry: a status of 4xx is not an error of a server span.
    assert_eq!((refused.status, &refused.attributes["http.response.status_code"]), (0, &json!(400)));
    assert_eq!(unknown.attributes["http.response.status_code"], 404);
    let traces: std::collections::BTreeSet<&str> = roots.iter().map(|span| span.trace.as_str()).collect();
    assert_eq!(traces.len(), 4);
}

#[test]
fn a_collector_that_is_gone_or_silent_stops_nothing() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [gone, silent.local_addr().unwrap()] {
        let mut server = server(&format!("http://{address}"));
        for _ in 0..20 {
            server.post(CHAT, &ask(json!({"max_tokens": 1}))).ok();
        }
        let start = Instant::now();
        server.end();
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    }
}

#[test]
fn spans_that_cannot_be_sent_are_dropped_beyond_a_few_thousand() {
    const ASKED: usize = 4000;
    // The queue and a batch, and another batch if sending the first one times out.
    const MOST: usize = 2048 + 2 * 512;
    let collector = SpanListener::start();
    let held = collector.hold();
    let mut server = server(&collector.url);
    for _ in 0..ASKED {
        server.get("/v1/models").ok();
    }
    drop(held);
    server.end();
    let arrived = collector.spans().len();
    assert!((512..=MOST).contains(&arrived), "{arrived}");
}

#[test]
fn an_endpoint_that_is_none_is_refused() {
    let models = vec![source("demo", loader())];
    let config = ServerConfig { otlp: Some(Otlp::Endpoint("localhost:4318".into())), ..config() };
    let Err(ServeError::Otlp(error)) = Server::start(config, models, latent_server::Extras::default()) else {
        panic!("it starts");
    };
    assert!(error.to_string().contains("http://127.0.0.1:4318"), "{error}");
}
