//! Clients that stall, vanish or send too much: others are served throughout, and everything is given back.

use crate::client::receive;
use crate::support::{CHAT, Running, ask, config, demo, start};
use latent_server::{Limits, ServerConfig};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// An answer that takes a while.
fn endless() -> Value {
    ask(json!({"max_tokens": 400, "ignore_eos": true, "stream": true, "n": 4}))
}

fn counter(server: &Running, name: &str) -> u64 {
    let metrics = server.get("/metrics").text();
    let line =
        metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn who_goes_away_gives_everything_back() {
    let server = demo();
    for (i, pause) in [0, 20, 80, 200].into_iter().enumerate() {
        let mut stream = server.begin(CHAT, &endless());
        std::thread::sleep(Duration::from_millis(pause));
        if i % 2 == 0 {
            // with something unread, the connection is reset
            let _ = stream.set_nonblocking(true);
            let _ = stream.read(&mut [0; 16]);
        }
        drop(stream);
        server.assert_idle();
    }
    // without a stream too, and while the prompt runs
    let whole = ask(
        json!({"max_tokens": 400, "ignore_eos": true, "messages": [{"role": "user", "content": "fox ".repeat(90)}]}),
    );
    drop(server.begin(CHAT, &whole));
    server.assert_idle();
    assert!(counter(&server, "latent_jobs_total{state=\"cancelled\"}") >= 3);
    server.post(CHAT, &ask(json!({}))).ok();
}

#[test]
fn a_reader_that_stands_still_is_cut_off() {
    let limits =
        Limits { outbound_bytes: 20_000, socket_send_bytes: 4096, write_seconds: 2, ..Limits::default() };
    let server = start(ServerConfig { limits, ..config() });
    let body = ask(
        json!({"max_tokens": 450, "ignore_eos": true, "stream": true, "n": 8, "logprobs": true, "top_logprobs": 20}),
    );
    let stream = server.begin(CHAT, &body);
    // others are served meanwhile
    server.post(CHAT, &ask(json!({"max_tokens": 2}))).ok();
    server.assert_idle();
    assert!(counter(&server, "latent_jobs_total{state=\"cancelled\"}") >= 1);
    drop(stream);
}

#[test]
fn slow_heads_and_bodies_end() {
    let limits = Limits { header_seconds: 1, body_seconds: 1, ..Limits::default() };
    let server = start(ServerConfig { limits, ..config() });
    let begin = |text: &str| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let start = Instant::now();
    let heads: Vec<TcpStream> =
        (0..50).map(|_| begin("POST /v1/chat/completions HTTP/1.1\r\nHost: 127")).collect();
    let idle = begin("");
    let body =
        begin("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{\"mess");
    server.post(CHAT, &ask(json!({"max_tokens": 2}))).ok();
    assert!(receive(body).error(408).0.contains("body_seconds"));
    for mut stream in heads.into_iter().chain([idle]) {
        // closed, perhaps after a word about it
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[test]
fn large_heads_and_bodies_are_refused() {
    let limits = Limits { body_bytes: 100_000, header_bytes: 8192, ..Limits::default() };
    let server = start(ServerConfig { limits, ..config() });
    // announced
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 1000000000\r\n\r\n").unwrap();
    let (message, _) = receive(stream).error(413);
    assert!(message.contains("body_bytes"), "{message}");
    // not announced
    let mut stream = TcpStream::connect(server.address).unwrap();
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
    server.post(CHAT, &ask(json!({"max_tokens": 2}))).ok();
}

#[test]
fn idle_connections_make_room() {
    let limits = Limits { connections: 20, ..Limits::default() };
    let server = start(ServerConfig { limits, ..config() });
    let idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    for _ in 0..5 {
        server.post(CHAT, &ask(json!({"max_tokens": 2}))).ok();
    }
    drop(idle);
}

#[test]
fn who_comes_when_the_queue_is_full_hears_when_to_try_again() {
    let mut config = config();
    config.scheduler.max_running = 1;
    config.scheduler.max_waiting = 1;
    let server = start(config);
    let long = ask(json!({"max_tokens": 400, "ignore_eos": true}));
    let running: Vec<TcpStream> = (0..2)
        .map(|_| {
            let stream = server.begin(CHAT, &long);
            std::thread::sleep(Duration::from_millis(30));
            stream
        })
        .collect();
    let mut refused = 0;
    for _ in 0..3 {
        let reply = server.post(CHAT, &ask(json!({"max_tokens": 1})));
        if reply.status == 429 {
            refused += 1;
            assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
            assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
        }
    }
    assert!(refused > 0);
    drop(running);
    server.assert_idle();
}

#[test]
fn a_deadline_ends_an_answer() {
    let limits = Limits { request_seconds: 1, ..Limits::default() };
    let mut config = ServerConfig { limits, ..config() };
    config.scheduler.max_running = 1;
    let server = start(config);
    // three in a row, of which the last ones wait longer than they may
    let long = ask(json!({"max_tokens": 480, "ignore_eos": true, "n": 8}));
    let streams: Vec<TcpStream> = (0..3).map(|_| server.begin(CHAT, &long)).collect();
    let statuses: Vec<u16> = streams.into_iter().map(|stream| receive(stream).status).collect();
    assert!(statuses.contains(&504), "{statuses:?}");
    server.assert_idle();
}
