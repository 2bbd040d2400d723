//! Clients that disconnect or send too much: others are served meanwhile, and all resources are
//! released.

use crate::client::{connect, receive};
use crate::support::{CHAT, ask, config, demo, start};
use latent_server::{Limits, ServerConfig};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A request for several long answers.
fn endless() -> Value {
    ask(json!({"max_tokens": 400, "ignore_eos": true, "stream": true, "n": 4}))
}

#[test]
fn disconnected_clients_release_all_resources() {
    let server = demo();
    for (i, pause) in [0, 20, 80, 200].into_iter().enumerate() {
        let mut stream = server.begin(CHAT, &endless());
        std::thread::sleep(Duration::from_millis(pause));
        if i % 2 == 0 {
            // Closing a socket with unread data resets the connection.
            let _ = stream.set_nonblocking(true);
            let _ = stream.read(&mut [0; 16]);
        }
        drop(stream);
        server.assert_idle();
    }
    // The same for an answer that is not streamed, and while the prompt runs.
    let whole = ask(
        json!({"max_tokens": 400, "ignore_eos": true, "messages": [{"role": "user", "content": "fox ".repeat(90)}]}),
    );
    drop(server.begin(CHAT, &whole));
    server.assert_idle();
    assert!(server.metric("latent_jobs_total{state=\"cancelled\"}") >= 3);
    server.post(CHAT, &ask(json!({}))).ok();
}

#[test]
fn large_heads_and_bodies_of_unknown_length_are_refused() {
    let limits = Limits { body_bytes: 100_000, header_bytes: 8192, ..Limits::default() };
    let server = start(ServerConfig { limits, ..config() });
    let mut stream = connect(server.address);
    stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    for _ in 0..30 {
        let chunk = format!("1000\r\n{}\r\n", "x".repeat(4096));
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    assert_eq!(receive(stream).status, 413);
    let long = "x".repeat(20_000);
    let reply = server.ask("GET", "/health", &[("X-Long", &long)], "");
    assert_eq!(reply.status, 431);
    server.assert_serves();
}

#[test]
fn a_full_queue_answers_429_with_retry_after() {
    let mut config = config();
    config.scheduler.max_running = 1;
    config.scheduler.max_waiting = 1;
    let server = start(config);
    let long = ask(json!({"max_tokens": 400, "ignore_eos": true}));
    // Seconds of work arrive concurrently, and the queue takes two requests.
    let all: Vec<TcpStream> = (0..20).map(|_| server.begin(CHAT, &long)).collect();
    let mut refused = 0;
    for reply in all.into_iter().map(receive) {
        if reply.status == 429 {
            refused += 1;
            assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
            assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
        } else {
            assert_eq!(reply.status, 200);
        }
    }
    assert!(refused > 0);
    server.assert_idle();
}
