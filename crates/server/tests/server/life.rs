//! Loading, faults and stopping.

use crate::client::receive;
use crate::support::{CHAT, ask, config, demo, loader, source, start_with, until, wrap};
use latent_server::{Extras, Limits, LoadAttempt, Server, ServerConfig};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

#[test]
fn while_the_model_loads_requests_are_refused() {
    let (go, wait) = channel::<()>();
    let mut load = loader();
    let slow = Box::new(move |attempt: &mut LoadAttempt<'_>| {
        (attempt.progress)(50, 100);
        wait.recv().unwrap();
        load(attempt)
    });
    let server = wrap(Server::start(config(), vec![source("demo", slow)], Extras::default()).unwrap());
    until("half loaded", || server.get("/health").json()["progress"] == 0.5);
    let health = server.get("/health");
    assert_eq!(health.status, 503);
    assert!(health.json()["error"]["message"].as_str().unwrap().contains("Loading"));
    let refused = server.post(CHAT, &ask(json!({})));
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some());
    // The page is served while the model loads.
    assert!(server.get("/").header("content-type").unwrap().starts_with("text/html"));
    go.send(()).unwrap();
    server.server().wait_loaded(Duration::from_secs(60)).unwrap().unwrap();
    server.post(CHAT, &ask(json!({}))).ok();
}

#[test]
fn a_failed_load_reports_its_error() {
    let broken = Box::new(|_: &mut LoadAttempt<'_>| Err("the file is gone".into()));
    let server = wrap(Server::start(config(), vec![source("demo", broken)], Extras::default()).unwrap());
    let error = server.server().wait_loaded(Duration::from_secs(10)).unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the file is gone");
    assert_eq!(server.post(CHAT, &ask(json!({}))).status, 500);
}

#[test]
fn after_a_fault_the_model_is_loaded_again() {
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&steps);
    let hook = Arc::new(move || {
        assert!(counted.fetch_add(1, Ordering::SeqCst) != 5, "a fault of the test");
    });
    let server = start_with(config(), Extras { before_step: Some(hook), ..Extras::default() });
    let reply = server.post(CHAT, &ask(json!({"max_tokens": 40, "ignore_eos": true})));
    assert_eq!(reply.error(500).0, "the engine failed: a fault of the test");
    until("healthy", || server.get("/health").status == 200);
    server.post(CHAT, &ask(json!({"max_tokens": 40}))).ok();
    assert!(server.get("/metrics").text().contains("latent_reloads_total 1"));
    server.assert_idle();
}

#[test]
fn running_answers_finish_before_the_server_ends() {
    let mut server = demo();
    let body = ask(json!({"max_tokens": 200, "ignore_eos": true, "stream": true}));
    let stream = server.begin(CHAT, &body);
    server.until_taken();
    server.server().stop();
    let address = server.address;
    let reader = std::thread::spawn(move || receive(stream).chunks());
    // A new client is refused, or cannot connect any more.
    std::thread::sleep(Duration::from_millis(30));
    if let Ok(probe) = std::net::TcpStream::connect(address) {
        drop(probe);
    }
    let chunks = reader.join().unwrap();
    let last = &chunks[chunks.len() - 1];
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(last["timings"]["predicted_n"], 200);
    server.end();
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn answers_that_exceed_the_drain_time_are_cut_off() {
    let limits = Limits { drain_seconds: 0, ..Limits::default() };
    let mut server = crate::support::start(ServerConfig { limits, ..config() });
    let body = ask(json!({"max_tokens": 450, "ignore_eos": true, "stream": true, "n": 8}));
    let _stream = server.begin(CHAT, &body);
    server.until_taken();
    let start = Instant::now();
    server.end();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn health_is_quick_while_a_prompt_runs() {
    let server = demo();
    let body = ask(
        json!({"max_tokens": 300, "ignore_eos": true, "n": 8, "messages": [{"role": "user", "content": "fox ".repeat(100)}]}),
    );
    let stream = server.begin(CHAT, &body);
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let start = Instant::now();
        server.get("/health").ok();
        longest = longest.max(start.elapsed());
    }
    // A generous limit for a loaded machine, which is still shorter than the answer.
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    drop(stream);
    server.assert_idle();
}
