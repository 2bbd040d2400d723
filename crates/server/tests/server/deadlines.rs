//! Requests that exceed their time limit, in every interface.

use crate::client::{Reply, connect, receive};
use crate::support::{TestServer, config, question, start, start_with};
use latent_server::{Extras, Limits, ServerConfig};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// A path and a request of every interface.
fn requests() -> Vec<(&'static str, Value)> {
    let prompt = || json!({"prompt": "Once upon a time", "max_tokens": 8});
    vec![
        ("/v1/chat/completions", json!({"messages": question(), "max_tokens": 8})),
        ("/v1/completions", prompt()),
        ("/v1/responses", json!({"input": "Once upon a time", "max_output_tokens": 8})),
        ("/v1/embeddings", json!({"input": "Once upon a time"})),
        ("/v1/messages", json!({"messages": question(), "max_tokens": 8})),
        ("/completion", prompt()),
        ("/api/chat", json!({"messages": question(), "stream": false})),
        ("/api/generate", json!({"prompt": "Once upon a time", "stream": false})),
    ]
}

/// Asserts the form of the timeout error in the interface of this path, and returns the message.
fn message(path: &str, status: u16, value: &Value) -> String {
    let error = &value["error"];
    let message = if path.starts_with("/api/") {
        error
    } else {
        assert_eq!(error["type"], "timeout_error", "{path}: {value}");
        &error["message"]
    };
    if path == "/v1/messages" {
        assert_eq!(value["type"], "error", "{value}");
    }
    if path == "/completion" {
        assert_eq!(error["code"], status, "{value}");
    }
    message.as_str().unwrap_or_else(|| panic!("{path}: {value}")).to_owned()
}

/// A server whose steps take longer than the limit of requests.
fn too_slow() -> TestServer {
    let hook = Arc::new(|| std::thread::sleep(Duration::from_millis(1200)));
    let limits = Limits { request_seconds: 1, ..Limits::default() };
    start_with(ServerConfig { limits, ..config() }, Extras { before_step: Some(hook), ..Extras::default() })
}

/// Sends all requests before it reads the first reply.
fn replies(server: &TestServer, requests: &[(&'static str, Value)]) -> Vec<Reply> {
    let streams: Vec<_> = requests.iter().map(|(path, body)| server.begin(path, body)).collect();
    streams.into_iter().map(receive).collect()
}

#[test]
fn whole_answers_that_come_too_late_are_errors() {
    let server = too_slow();
    let requests = requests();
    for ((path, _), reply) in requests.iter().zip(replies(&server, &requests)) {
        assert_eq!(reply.status, 504, "{path}: {}", reply.text());
        let message = message(path, 504, &reply.json());
        assert!(message.contains("deadline"), "{path}: {message}");
    }
    server.assert_idle();
}

#[test]
fn streams_that_take_too_long_end_with_an_error() {
    let server = too_slow();
    let mut requests = requests();
    requests.retain(|(path, _)| *path != "/v1/embeddings");
    for (_, body) in &mut requests {
        body["stream"] = true.into();
    }
    for ((path, _), reply) in requests.iter().zip(replies(&server, &requests)) {
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        let text = reply.text();
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        // Streams of chat completions and completions end with `[DONE]` also after an error.
        let last = lines.iter().rev().find(|line| **line != "data: [DONE]").unwrap();
        let data = last.trim_start_matches("data: ").trim_start_matches("error: ");
        let value: Value =
            serde_json::from_str(data).unwrap_or_else(|error| panic!("{path}: {error}: {text}"));
        let message = if *path == "/v1/responses" {
            assert_eq!(
                (&value["type"], &value["response"]["status"]),
                (&json!("response.failed"), &json!("failed"))
            );
            value["response"]["error"]["message"].as_str().unwrap().to_owned()
        } else {
            message(path, 504, &value)
        };
        assert!(message.contains("deadline"), "{path}: {message}");
        let ends = lines[lines.len() - 1] == "data: [DONE]";
        assert_eq!(ends, matches!(*path, "/v1/chat/completions" | "/v1/completions"), "{path}: {text}");
    }
    server.assert_idle();
}

#[test]
fn missing_bodies_are_errors_in_the_format_of_the_api() {
    let server = start(ServerConfig { limits: Limits { body_seconds: 1, ..Limits::default() }, ..config() });
    let begin = |path: &str| {
        let mut stream = connect(server.address);
        write!(stream, "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{{").unwrap();
        stream
    };
    let requests = requests();
    let streams: Vec<_> = requests.iter().map(|(path, _)| begin(path)).collect();
    for ((path, _), reply) in requests.iter().zip(streams.into_iter().map(receive)) {
        assert_eq!(reply.status, 408, "{path}: {}", reply.text());
        let message = message(path, 408, &reply.json());
        assert!(message.contains("body_seconds"), "{path}: {message}");
    }
}
