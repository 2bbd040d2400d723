//! What clients receive while a model loads, and loading and unloading on request.

use crate::client::{Reply, receive};
use crate::models::{both, long, serve, state, tiny, whole};
use crate::support::{CHAT, TestServer, ask, config, loader_of, merge, open_demo, question, source, until};
use latent_server::{Limits, LoadAttempt, Loader, ModelSource, ServerConfig};
use serde_json::{Value, json};
use std::io::Read;
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};

/// A loader that waits for a message: `None` loads the demo model, and a text is the error.
fn slow() -> (Loader, Sender<Option<&'static str>>) {
    let (go, wait) = channel::<Option<&'static str>>();
    let mut load = loader_of("slow", Box::new(open_demo));
    let slow = move |attempt: &mut LoadAttempt<'_>| match wait.recv().unwrap() {
        None => load(attempt),
        Some(problem) => Err(problem.into()),
    };
    (Box::new(slow), go)
}

fn with_slow(folder: &tempfile::TempDir, loader: Loader) -> Vec<ModelSource> {
    vec![source("slow", loader), source("tiny", tiny(folder.path()))]
}

/// Streams begin one second after their request if the model is not loaded.
fn impatient() -> ServerConfig {
    ServerConfig { limits: Limits { loading_ping_seconds: 1, ..Limits::default() }, ..config() }
}

/// A short stream from each interface that has server-sent events.
fn streams(server: &TestServer) -> Vec<(&'static str, TcpStream)> {
    let chat = json!({"messages": question()});
    let plain = json!({"prompt": "a fox"});
    let responses = json!({"input": question(), "max_output_tokens": 3});
    [
        (CHAT, &chat),
        ("/v1/messages", &chat),
        ("/v1/completions", &plain),
        ("/completion", &plain),
        ("/v1/responses", &responses),
    ]
    .map(|(path, more)| {
        let mut body = json!({"model": "slow", "stream": true, "max_tokens": 3, "temperature": 0});
        merge(&mut body, more.clone());
        (path, server.begin(path, &body))
    })
    .into()
}

/// Reads until `count` comments have arrived.
fn comments(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    signs(stream, count, ": loading\n\n")
}

/// Reads until a text has arrived `count` times.
fn signs(stream: &mut TcpStream, count: usize, sign: &str) -> Vec<u8> {
    let mut read = Vec::new();
    let mut piece = [0; 256];
    while String::from_utf8_lossy(&read).matches(sign).count() < count {
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&piece[..length]);
    }
    read
}

/// The streams of all interfaces. `go` runs after two comments have arrived on each.
fn after_comments(server: &TestServer, go: impl FnOnce()) -> Vec<(&'static str, Reply)> {
    let streams = streams(server);
    let begun: Vec<_> =
        streams.into_iter().map(|(path, mut stream)| (path, comments(&mut stream, 2), stream)).collect();
    go();
    begun.into_iter().map(|(path, read, stream)| (path, receive(read.as_slice().chain(stream)))).collect()
}

#[test]
fn streams_send_comments_while_their_model_loads() {
    let folder = tempfile::tempdir().unwrap();
    let (loader, go) = slow();
    let server = serve(impatient(), with_slow(&folder, loader));
    let whole_later = server.begin(CHAT, &ask(json!({"model": "slow"})));
    let replies = after_comments(&server, || go.send(None).unwrap());
    let names: Vec<_> = replies.iter().map(|(path, reply)| (*path, reply.events())).collect();
    for (path, events) in names {
        assert!(events.len() > 1, "{path}");
        let (name, data) = &events[events.len() - 1];
        match path {
            "/v1/messages" => {
                assert_eq!((name.as_str(), events[0].0.as_str()), ("message_stop", "message_start"))
            }
            "/v1/responses" => assert_eq!(events[0].0, "response.created"),
            "/completion" => assert_eq!(serde_json::from_str::<Value>(data).unwrap()["stop"], true),
            _ => assert_eq!(data, "[DONE]"),
        }
    }
    // A request without a stream gets its status with the answer, so it only waits.
    receive(whole_later).ok();
}

#[test]
fn a_load_that_fails_is_an_event_of_streams_that_have_begun() {
    let folder = tempfile::tempdir().unwrap();
    let (loader, go) = slow();
    let server = serve(impatient(), with_slow(&folder, loader));
    let problem = "the model cannot be loaded: the file is gone";
    for (path, reply) in after_comments(&server, || go.send(Some("the file is gone")).unwrap()) {
        assert_eq!(reply.status, 200, "{path}");
        let text = reply.text();
        let last = text.trim_end().trim_end_matches("data: [DONE]").trim_end();
        let (event, data) = last.rsplit_once(": {").unwrap();
        let event = event.rsplit_once("\n\n").unwrap().1;
        let error: Value = serde_json::from_str(&format!("{{{data}")).unwrap();
        let (form, message) = match path {
            "/v1/messages" => ("event: error\ndata", &error["error"]["message"]),
            "/v1/responses" => ("event: error\ndata", &error["message"]),
            "/completion" => ("error", &error["error"]["message"]),
            _ => ("data", &error["error"]["message"]),
        };
        assert_eq!((event, message), (form, &json!(problem)), "{path}: {text}");
        assert_eq!(text.ends_with("data: [DONE]\n\n"), path.ends_with("completions"), "{path}");
    }
    server.get("/health").ok();
}

/// The lines of both interfaces of Ollama. `go` runs after two blanks have arrived on each.
fn lines_after_blanks(server: &TestServer, go: impl FnOnce()) -> Vec<Vec<Value>> {
    let chat = json!({"model": "slow", "messages": question(), "options": {"num_predict": 3}});
    let generate = json!({"model": "slow", "prompt": "a fox", "stream": true, "options": {"num_predict": 3}});
    let begun = [("/api/chat", chat), ("/api/generate", generate)].map(|(path, body)| {
        let mut stream = server.begin(path, &body);
        // Each blank is an HTTP chunk of one byte.
        (signs(&mut stream, 2, "1\r\n \r\n"), stream)
    });
    go();
    let lines = |(read, stream): (Vec<u8>, TcpStream)| {
        let reply = receive(read.as_slice().chain(stream));
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/x-ndjson")));
        let text = reply.text();
        assert!(text.starts_with("  ") && text.trim_start().starts_with('{'), "{text}");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    begun.map(lines).into()
}

#[test]
fn json_lines_begin_with_blanks_while_their_model_loads() {
    let folder = tempfile::tempdir().unwrap();
    let (loader, go) = slow();
    let server = serve(impatient(), with_slow(&folder, loader));
    for lines in lines_after_blanks(&server, || go.send(Some("the file is gone")).unwrap()) {
        assert_eq!(lines, [json!({"error": "the model cannot be loaded: the file is gone"})]);
    }
    server.post("/models/load", &json!({"model": "slow"})).ok();
    server.post("/models/unload", &json!({"model": "slow"})).ok();
    go.send(None).unwrap();
    until("unloaded", || state(&server, "slow") == "unloaded");
    for lines in lines_after_blanks(&server, || go.send(None).unwrap()) {
        assert!(lines.len() > 1 && lines[0]["done"] == false, "{lines:?}");
        assert_eq!(lines[lines.len() - 1]["eval_count"], 3);
    }
}

#[test]
fn a_client_that_disconnects_while_its_model_loads_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let (loader, go) = slow();
    let server = serve(impatient(), with_slow(&folder, loader));
    let mut stream = server.begin(CHAT, &long("slow", 400));
    comments(&mut stream, 1);
    drop(stream);
    server.post("/models/unload", &json!({"model": "slow"})).ok();
    go.send(None).unwrap();
    until("unloaded", || server.metric("latent_model_unloads_total{model=\"slow\"}") == 1);
    assert_eq!(server.metric("latent_generated_tokens_total{model=\"slow\"}"), 0);
}

fn order(server: &TestServer, what: &str, model: &str) {
    let reply = server.post(&format!("/models/{what}"), &json!({"model": model}));
    assert_eq!(reply.ok(), json!({"success": true}), "{what}");
}

#[test]
fn models_are_loaded_and_unloaded_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(config(), both(folder.path()));
    for _ in 0..2 {
        order(&server, "load", "tiny");
        assert_ne!(state(&server, "tiny"), "unloaded");
        until("loaded", || state(&server, "tiny") == "loaded");
        order(&server, "load", "tiny");
        assert_eq!((state(&server, "tiny"), state(&server, "demo")), ("loaded".into(), "unloaded".into()));
        order(&server, "unload", "tiny");
        until("unloaded", || state(&server, "tiny") == "unloaded");
        order(&server, "unload", "tiny");
    }
    assert_eq!(server.metric("latent_model_loads_total{model=\"tiny\"}"), 2);
    let reply = server.post("/models/load", &json!({"model": "other"}));
    assert_eq!(reply.error(404).0, "unknown model \"other\"; this server has demo, tiny");
    assert_eq!(server.post("/models/unload", &json!({})).error(400).0, "`model`: this field is required");
}

#[test]
fn an_unloaded_model_finishes_its_answers_first() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(config(), both(folder.path()));
    let stream = server.begin(CHAT, &long("tiny", 300));
    server.until_begun("tiny");
    order(&server, "unload", "tiny");
    assert_eq!(whole(&receive(stream).chunks()), 300);
    until("unloaded", || state(&server, "tiny") == "unloaded");
    server.post(CHAT, &ask(json!({"model": "tiny"}))).ok();
}

#[test]
fn a_model_unloaded_while_loading_answers_waiting_requests() {
    let folder = tempfile::tempdir().unwrap();
    let (loader, go) = slow();
    let server = serve(config(), with_slow(&folder, loader));
    let stream = server.begin(CHAT, &long("slow", 30));
    until("loading", || state(&server, "slow") == "loading");
    order(&server, "unload", "slow");
    go.send(None).unwrap();
    assert_eq!(whole(&receive(stream).chunks()), 30);
    until("unloaded", || state(&server, "slow") == "unloaded");
    // An unloading that is followed by a load request in time is cancelled.
    order(&server, "load", "slow");
    order(&server, "unload", "slow");
    order(&server, "load", "slow");
    go.send(None).unwrap();
    until("loaded", || state(&server, "slow") == "loaded");
    server.post(CHAT, &ask(json!({"model": "slow"}))).ok();
    assert_eq!(server.metric("latent_model_unloads_total{model=\"slow\"}"), 1);
}

#[test]
fn an_explicit_load_retries_a_failed_one_immediately() {
    let folder = tempfile::tempdir().unwrap();
    let (loader, go) = slow();
    let server = serve(config(), with_slow(&folder, loader));
    order(&server, "load", "slow");
    go.send(Some("the file is gone")).unwrap();
    let failed = || server.get("/v1/models/slow").ok()["status"]["failed"] == true;
    until("failed", failed);
    order(&server, "load", "slow");
    go.send(None).unwrap();
    until("loaded", || state(&server, "slow") == "loaded");
}

#[test]
fn ollamas_empty_request_unloads_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(config(), both(folder.path()));
    for (path, more) in [("/api/generate", json!({})), ("/api/chat", json!({"messages": []}))] {
        let ask = |keep: i64| {
            let mut body = json!({"model": "tiny", "keep_alive": keep});
            merge(&mut body, more.clone());
            let answer = server.post(path, &body).ok();
            assert_eq!(answer["done"], true);
            answer["done_reason"].clone()
        };
        assert_eq!((ask(-1), state(&server, "tiny")), (json!("load"), "loaded".into()));
        assert_eq!(ask(0), "unload");
        until("unloaded", || state(&server, "tiny") == "unloaded");
        // `keep_alive` 0 does not load a model only to unload it.
        assert_eq!((ask(0), state(&server, "tiny")), (json!("unload"), "unloaded".into()));
    }
    assert_eq!(server.metric("latent_model_loads_total{model=\"tiny\"}"), 2);
}
