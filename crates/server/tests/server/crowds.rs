//! Slow clients and many clients: others are served meanwhile.

use crate::client::{PATIENCE, connect, receive};
use crate::support::{CHAT, TestServer, ask, config, start, start_with, until};
use latent_server::{Extras, Limits, ServerConfig};
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

const HEAD: &str = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n";

fn limited(limits: Limits) -> TestServer {
    start(ServerConfig { limits, ..config() })
}

/// Opens a connection and sends a text.
fn begun(server: &TestServer, text: &str) -> TcpStream {
    let mut stream = connect(server.address);
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

/// A connection with a small receive buffer, so that the server's writes block early.
fn narrow(server: &TestServer) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(2048).unwrap();
        socket.connect(server.address).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream
}

/// Waits until only the connection of this request is open.
fn until_alone(server: &TestServer) {
    until("alone", || server.metric("latent_http_connections ") == 1);
}

/// Whether the server has closed this connection. Data that it has sent before is discarded.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut some = [0; 1024];
    loop {
        match stream.read(&mut some) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn a_reader_of_a_byte_per_second_is_cut_off() {
    let limits =
        Limits { outbound_bytes: 20_000, socket_send_bytes: 4096, write_seconds: 2, ..Limits::default() };
    let server = limited(limits);
    let body = ask(
        json!({"max_tokens": 450, "ignore_eos": true, "stream": true, "n": 8, "logprobs": true, "top_logprobs": 20}),
    );
    let body = body.to_string();
    let mut stream = narrow(&server);
    stream.write_all(format!("{HEAD}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    server.until_taken();
    let over = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&over);
    let reader = std::thread::spawn(move || {
        while !ended.load(Ordering::SeqCst) {
            let _ = stream.read(&mut [0]);
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    server.assert_serves();
    // The engine cancels the answer first, and then the connection is closed.
    server.assert_idle();
    assert!(server.metric("latent_jobs_total{state=\"cancelled\"}") >= 1);
    until_alone(&server);
    server.assert_serves();
    over.store(true, Ordering::SeqCst);
    reader.join().unwrap();
}

/// Sends a byte per second until the server closes the connection. Returns its answer.
fn drip(mut stream: TcpStream, text: &str) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut said = Vec::new();
    let mut bytes = text.bytes();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "it is still listened to");
        match stream.read_to_end(&mut said) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // The connection was closed, perhaps by a reset.
            _ => return String::from_utf8(said).unwrap(),
        }
        let byte = bytes.next().expect("a text that is long enough");
        let _ = stream.write_all(&[byte]);
    }
}

#[test]
fn heads_and_bodies_of_a_byte_per_second_end() {
    let limits = Limits { header_seconds: 3, body_seconds: 3, ..Limits::default() };
    let server = limited(limits);
    let text = " ".repeat(100);
    // The client is never silent for long, but its whole request takes too long.
    let body = begun(&server, &format!("{HEAD}Content-Length: 100000\r\n\r\n{{\"messages\":"));
    let heads: Vec<TcpStream> = (0..50).map(|_| begun(&server, HEAD)).collect();
    let slow = heads.into_iter().map(|head| {
        let rest = "X-Slow: yes\r\n".repeat(10);
        std::thread::spawn(move || drip(head, &rest))
    });
    let slow: Vec<_> = slow.collect();
    let idle = begun(&server, "");
    let body = std::thread::spawn(move || drip(body, &text));
    server.assert_serves();
    let said = body.join().unwrap();
    assert!(said.starts_with("HTTP/1.1 408") && said.contains("slowest_bytes"), "{said}");
    for head in slow {
        let said = head.join().unwrap();
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 408"), "{said}");
    }
    assert_eq!(drip(idle, &"\r\n".repeat(50)), "");
    server.assert_serves();
    until_alone(&server);
}

#[test]
fn a_gigabyte_that_is_announced_takes_no_memory() {
    let announced = format!("{HEAD}Content-Length: 1000000000\r\n\r\n");
    let server = limited(Limits::default());
    let (message, _) = receive(begun(&server, &announced)).error(413);
    assert!(message.contains("body_bytes"), "{message}");
    // A body that may be this large is waited for. Its announced size must not be allocated.
    let server = limited(Limits { body_bytes: 1 << 30, ..Limits::default() });
    let before = address_space();
    let announced: Vec<TcpStream> = (0..50).map(|_| begun(&server, &format!("{announced}{{"))).collect();
    until("connected", || server.metric("latent_http_connections ") == 51);
    server.assert_serves();
    let grown = address_space().saturating_sub(before);
    assert!(grown < 25 << 30, "{grown} bytes for {} announcements", announced.len());
    drop(announced);
    until_alone(&server);
}

/// Bytes of the process's address space; 0 if unknown.
fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kilobytes = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

#[test]
fn ten_thousand_idle_connections_lock_no_client_out() {
    // An answer that is streamed meanwhile must not be cut off.
    let crowded = Arc::new(AtomicBool::new(true));
    let slow = Arc::clone(&crowded);
    let hook = Arc::new(move || {
        if slow.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    // The server raises this process's limit of open files, and clients and other tests share it.
    let mut limits = Limits::default();
    let files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    limits.connections = limits.connections.min(files / 8);
    let crowd = 10_000.min(files.saturating_sub(limits.connections + 1500).max(files / 4));
    if crowd < 10_000 {
        eprintln!("{files} file descriptors allow a crowd of {crowd} connections only");
    }
    let most = limits.connections;
    let config = ServerConfig { limits, ..config() };
    let server = start_with(config, Extras { before_step: Some(hook), ..Extras::default() });
    let body = ask(json!({"max_tokens": 400, "ignore_eos": true, "stream": true}));
    let answer = server.begin(CHAT, &body);
    server.until_taken();
    let mut idle = Vec::with_capacity(crowd);
    for i in 0..crowd {
        // Some clients send a request before they fall silent.
        let said = if i % 100 == 0 { "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" } else { "" };
        idle.push(begun(&server, said));
        if i % (crowd / 10) == 0 {
            server.assert_serves();
        }
    }
    server.assert_serves();
    assert!(server.metric("latent_http_connections ") <= most as u64 + 10);
    // The longest idle connections were closed, and no more than necessary.
    until("the first are closed", || idle[..(crowd - most) / 2].iter_mut().all(is_closed));
    assert!(!idle[crowd - most / 2..].iter_mut().any(is_closed));
    crowded.store(false, Ordering::SeqCst);
    let chunks = receive(answer).chunks();
    let last = &chunks[chunks.len() - 1];
    assert_eq!(
        (&last["choices"][0]["finish_reason"], &last["timings"]["predicted_n"]),
        (&json!("length"), &json!(400))
    );
}

#[test]
fn unfinished_requests_make_room_when_nothing_is_idle() {
    let server = limited(Limits { connections: 20, ..Limits::default() });
    let unfinished: Vec<TcpStream> =
        (0..100).map(|_| begun(&server, &format!("{HEAD}Content-Length: 100\r\n\r\n{{"))).collect();
    for _ in 0..5 {
        server.assert_serves();
    }
    drop(unfinished);
}

#[test]
fn large_bodies_share_a_budget_and_small_ones_are_always_accepted() {
    let server = limited(Limits { bodies_bytes: 1_000_000, ..Limits::default() });
    let large = format!("{{\"messages\": \"{}\"}}", "x".repeat(600_000));
    // The body is shorter than announced, so the server keeps waiting for the rest.
    let held = begun(&server, &format!("{HEAD}Content-Length: 700000\r\n\r\n{large}"));
    // The first 64 KiB of each body are not counted. Of the rest, the second body exceeds the
    // limit.
    until("the body arrived", || server.metric("latent_http_body_bytes") > 530_000);
    let refused = server.post_text(CHAT, &large);
    assert!(refused.error(429).0.contains("bodies_bytes"));
    assert!(refused.header("retry-after").is_some());
    server.assert_serves();
    drop(held);
    until("there is room again", || server.metric("latent_http_body_bytes") == 0);
    assert_eq!(server.post_text(CHAT, &large).status, 400);
}
