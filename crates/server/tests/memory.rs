//! Memory of requests: at most 40 bytes for each byte of a parsed body (56 in objects of one
//! field), and 3 bytes while it waits.
#![allow(missing_docs, reason = "tests")]
#![allow(unsafe_code, reason = "an allocator that counts")]
#![allow(dead_code, reason = "the support of the other tests")]

#[path = "server/client.rs"]
mod client;
#[path = "server/support.rs"]
mod support;

use client::{connect, request};
use latent_server::{Limits, ServerConfig};
use serde_json::{Value, json};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{TestServer, config, start, until};

/// Bytes in use and their peak.
struct PeakAllocator;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator with the arguments given.
unsafe impl GlobalAlloc for PeakAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks exist while one is copied into the other.
        grow(size);
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

fn grow(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

/// Bytes of a request that do not depend on its body: template rendering, grammars, buffers of
/// connections.
const CONSTANT: usize = 16 << 20;

/// Limit on the bytes of values in a chat template.
const TEMPLATE: usize = 96 << 20;

/// Bytes of a large body.
const LARGE: usize = 500_000;

/// Sends a request, reads and discards its answer, and returns the status.
fn send(address: SocketAddr, path: &str, body: &[u8]) -> String {
    let mut stream = connect(address);
    // Head and body are written separately: the allocator would count a copy of the body.
    let head = String::from_utf8(request(address, "POST", path, &[], &[])).unwrap();
    let length = format!("Content-Length: {}", body.len());
    stream.write_all(head.replace("Content-Length: 0", &length).as_bytes()).unwrap();
    // A server that refuses may close the connection before all is written.
    let _ = stream.write_all(body);
    drain(&mut stream)
}

/// Reads an answer to its end and returns the status.
fn drain(stream: &mut TcpStream) -> String {
    let (mut buffer, mut status) = ([0; 65_536], String::new());
    loop {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return status,
            Ok(count) if status.is_empty() => {
                status = String::from_utf8_lossy(&buffer[..count.min(12)])
                    .trim_start_matches("HTTP/1.1 ")
                    .to_owned();
            }
            Ok(_) => {}
        }
    }
}

/// A body with a list or text of about [`LARGE`] bytes in place of `@`.
fn body(around: &str, unit: &str, separator: &str) -> Vec<u8> {
    let (before, after) = around.split_once('@').unwrap();
    let count = LARGE / (unit.len() + separator.len());
    let mut body = String::with_capacity(LARGE + around.len());
    body.push_str(before);
    for i in 0..count {
        if i > 0 {
            body.push_str(separator);
        }
        body.push_str(unit);
    }
    body.push_str(after);
    body.into_bytes()
}

/// Parts of requests that can be large: name, path, surrounding JSON with `@` in place of the part,
/// the unit that is repeated, and its separator.
const CASES: &[(&str, &str, &str, &str, &str)] = &[
    ("tokens", "/tokenize", r#"{"content": "@"}"#, "a é1 ", ""),
    ("one token per byte", "/tokenize", r#"{"content": "@"}"#, "\u{7f}", ""),
    ("pieces", "/tokenize", r#"{"with_pieces": true, "content": "@"}"#, "a é1 ", ""),
    ("pieces that are not text", "/tokenize", r#"{"with_pieces": true, "content": "@"}"#, "日🙂", ""),
    ("text of tokens", "/detokenize", r#"{"tokens": [@]}"#, "9", ","),
    ("wrong tokens", "/detokenize", r#"{"tokens": [@]}"#, "{}", ","),
    ("prompt", "/apply-template", r#"{"messages": [{"role": "user", "content": "@"}]}"#, "a\\u0001", ""),
    ("count", "/v1/messages/count_tokens", r#"{"messages": [{"role": "user", "content": "@"}]}"#, "fox ", ""),
    ("unknown values", "/v1/chat/completions", r#"{"messages": [], "x": [@]}"#, r#"{"":0}"#, ","),
    ("numbers", "/v1/chat/completions", r#"{"messages": [@]}"#, "0", ","),
    ("lists", "/v1/chat/completions", r#"{"messages": [{"role": "user", "content": [@]}]}"#, "[]", ","),
    (
        "objects",
        "/v1/chat/completions",
        r#"{"messages": [{"role": "user", "content": [@]}]}"#,
        r#"{"":0}"#,
        ",",
    ),
    ("fields", "/v1/chat/completions", r#"{"messages": [{@}]}"#, r#""a":0"#, ","),
    ("strings", "/v1/chat/completions", r#"{"messages": [], "stop": [@]}"#, r#""a""#, ","),
    ("model", "/v1/chat/completions", r#"{"messages": [], "model": "@"}"#, "a", ""),
    ("error", "/v1/chat/completions", r#"{"messages": [{"role": "@"}]}"#, "\u{7f}", ""),
    (
        "schema",
        "/v1/chat/completions",
        r#"{"messages": [{"role": "user", "content": "x"}], "json_schema": {"enum": [@]}}"#,
        "{}",
        ",",
    ),
    (
        "variables",
        "/apply-template",
        r#"{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": [@]}}"#,
        "{}",
        ",",
    ),
    (
        "arguments",
        "/apply-template",
        r#"{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\":[@]}"}}]}]}"#,
        "0",
        ",",
    ),
    (
        "tools",
        "/v1/messages",
        r#"{"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f", "input_schema": {"enum": [@]}}]}"#,
        "{}",
        ",",
    ),
    (
        "metadata",
        "/v1/responses",
        r#"{"input": "x", "max_output_tokens": 1, "metadata": {"a": [@]}}"#,
        "{}",
        ",",
    ),
    (
        "metadata in a stream",
        "/v1/responses",
        r#"{"stream": true, "input": "x", "max_output_tokens": 1, "metadata": {"a": [@]}}"#,
        "{}",
        ",",
    ),
    ("items", "/v1/responses", r#"{"input": [@]}"#, "{}", ","),
    ("prompts", "/v1/completions", r#"{"max_tokens": 1, "echo": true, "prompt": [@]}"#, r#""a""#, ","),
    ("bias", "/completion", r#"{"prompt": "a", "logit_bias": [@]}"#, "[1,1]", ","),
    ("inputs", "/v1/embeddings", r#"{"input": [@]}"#, "1", ","),
    ("images", "/api/generate", r#"{"prompt": "a", "images": [@]}"#, "0", ","),
];

/// A single test, since the allocator counts for the whole process.
#[test]
fn requests_take_at_most_forty_bytes_per_byte_of_body() {
    let limits = Limits { socket_send_bytes: 65_536, ..Limits::default() };
    let mut server = start(ServerConfig { limits, ..config() });
    // Allocations that are made once are not part of any request.
    for (_, path, around, unit, _) in CASES {
        send(server.address, path, around.replace('@', unit).as_bytes());
    }
    let mut wrong = Vec::new();
    for (name, path, around, unit, separator) in CASES {
        let body = body(around, unit, separator);
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let status = send(server.address, path, &body);
        let peak = PEAK.load(Ordering::Relaxed) - before;
        println!("{name}: {status}, {:.1} bytes for each", peak as f64 / body.len() as f64);
        assert!(["200", "400"].contains(&status.as_str()), "{name}: {status:?}");
        let allowed = match *name {
            // A map with one field has capacity for more.
            "objects" => 56 * body.len() + CONSTANT / 4,
            // Values in chat templates have their own limit.
            "arguments" | "tools" => 40 * body.len() + TEMPLATE,
            _ => 40 * body.len() + CONSTANT / 4,
        };
        if peak > allowed {
            wrong.push(format!("{name}: {peak} bytes for {}", body.len()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    answers_that_nobody_reads_are_not_in_memory(&server);
    many_small_bodies_wait_as_bytes(&server);
    server.end();
}

fn answers_that_nobody_reads_are_not_in_memory(server: &TestServer) {
    let body = body(r#"{"with_pieces": true, "content": "@"}"#, "a é1 ", "");
    let before = NOW.load(Ordering::Relaxed);
    let mut stream = client::send(server.address, "POST", "/tokenize", &[], &body);
    let mut first = [0; 1000];
    stream.read_exact(&mut first).unwrap();
    let held = NOW.load(Ordering::Relaxed).saturating_sub(before);
    // The tokens of the request, and frames that have been sent but not read.
    assert!(held < 6 * body.len() + CONSTANT / 4, "{held} bytes for {}", body.len());
    assert!(server.metric("latent_http_body_bytes") > 300_000, "they are charged");
    drop(stream);
    until("they are released", || server.metric("latent_http_body_bytes") == 0);
}

fn many_small_bodies_wait_as_bytes(server: &TestServer) {
    const COUNT: usize = 100;
    let junk = vec![json!({"": 0}); 63_000 / 8];
    let body = json!({"messages": [{"role": "user", "content": junk}]}).to_string();
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let mut streams: Vec<TcpStream> = (0..COUNT)
        .map(|_| client::send(server.address, "POST", "/v1/chat/completions", &[], body.as_bytes()))
        .collect();
    for stream in &mut streams {
        assert_eq!(drain(stream), "400");
    }
    let peak = PEAK.load(Ordering::Relaxed) - before;
    // All bodies as bytes, in buffers of connections and of bodies, and three at a time as values.
    let bound = COUNT * 3 * body.len() + 3 * 40 * body.len() + CONSTANT;
    assert!(peak < bound, "{peak} bytes for {COUNT} bodies of {}", body.len());
    let parsed = 20 * COUNT * body.len();
    assert!(bound < parsed, "the bound says nothing");
    assert_ne!(Value::Null, server.stats(), "the server goes on");
}
