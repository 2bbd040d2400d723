//! Streams of named conversations, which outlive their connection.

use crate::client::{Reply, receive, request, send};
use crate::support::{CHAT, TestServer, ask, config, demo, loader, source, until, wrap};
use latent_server::{ApiKeys, Extras, Loader, Server, ServerConfig};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

/// The name of a conversation and a model, in the form of llama.cpp's web page.
const NAME: &str = "conv-1::owner/model:Q8_0";
const QUERY: &str = "conv_id=conv-1%3A%3Aowner%2Fmodel%3AQ8_0";

fn body(tokens: usize) -> Value {
    ask(json!({"max_tokens": tokens, "ignore_eos": true, "stream": true}))
}

fn begin(server: &TestServer, name: &str, body: &Value) -> TcpStream {
    let headers = [("X-Conversation-Id", name), ("Content-Type", "application/json")];
    send(server.address, "POST", CHAT, &headers, body.to_string().as_bytes())
}

fn resumed(server: &TestServer, from: usize) -> Reply {
    server.get(&format!("/v1/stream?{QUERY}&from={from}"))
}

fn lookup(server: &TestServer, names: &[&str]) -> Vec<Value> {
    let found = server.post("/v1/streams/lookup", &json!({"conversation_ids": names})).ok();
    found.as_array().unwrap().clone()
}

#[test]
fn a_stream_is_read_again_from_any_byte_until_it_is_stopped() {
    let server = demo();
    let first = receive(begin(&server, NAME, &body(12)));
    assert!(first.chunks().len() > 3);
    let again = resumed(&server, 0);
    assert_eq!((again.status, &again.body), (200, &first.body));
    assert_eq!(again.header("content-type"), Some("text/event-stream"));
    let from = first.body.len() / 2;
    assert_eq!(resumed(&server, from).body, first.body[from..]);
    assert_eq!(resumed(&server, first.body.len()).body, b"");
    resumed(&server, first.body.len() + 1).error(400);
    let [status] = <[Value; 1]>::try_from(lookup(&server, &["conv-1", "other"])).unwrap();
    assert_eq!((&status["conversation_id"], &status["is_done"]), (&json!(NAME), &json!(true)));
    assert_eq!(status["total_bytes"], first.body.len());
    assert!(lookup(&server, &["conv", "owner/model:Q8_0", ""]).is_empty());
    let path = format!("/v1/stream?{QUERY}");
    for _ in 0..2 {
        assert_eq!(server.ask("DELETE", &path, &[], "").status, 204);
    }
    resumed(&server, 0).error(404);
    server.get("/v1/stream").error(400);
    server.get(&format!("{path}&from=x")).error(400);
    server.post("/v1/streams/lookup", &json!({"conversation_ids": [1]})).error(400);
    // An answer without a stream and an error leave no session behind.
    let whole = ask(json!({"max_tokens": 2}));
    receive(begin(&server, NAME, &whole)).ok();
    receive(begin(&server, NAME, &json!({"messages": 1, "stream": true}))).error(400);
    assert!(lookup(&server, &["conv-1"]).is_empty());
    server.assert_idle();
}

#[test]
fn an_answer_continues_without_its_client_until_it_is_stopped() {
    let server = demo();
    let mut stream = begin(&server, NAME, &body(60));
    let mut some = [0; 64];
    stream.read_exact(&mut some).unwrap();
    stream.shutdown(Shutdown::Both).unwrap();
    drop(stream);
    let whole = resumed(&server, 0);
    let deltas = whole.chunks().iter().filter(|chunk| !chunk["choices"][0]["delta"].is_null()).count();
    assert!(deltas > 2, "{deltas}");
    // A long answer whose client disconnects.
    let mut stream = begin(&server, NAME, &body(400));
    stream.read_exact(&mut some).unwrap();
    drop(stream);
    assert_eq!(lookup(&server, &[NAME])[0]["is_done"], false);
    assert_eq!(server.ask("DELETE", &format!("/v1/stream?{QUERY}"), &[], "").status, 204);
    server.assert_idle();
}

#[test]
fn streams_are_each_keys_own() {
    let keys = ApiKeys::parse("first-secret-key\nsecond-secret-key").unwrap();
    let server = crate::support::start(ServerConfig { keys, ..config() });
    let headers = [("X-Conversation-Id", NAME), ("x-api-key", "first-secret-key")];
    receive(send(server.address, "POST", CHAT, &headers, body(2).to_string().as_bytes()));
    let read =
        |key: &str| server.ask("GET", &format!("/v1/stream?{QUERY}"), &[("x-api-key", key)], "").status;
    assert_eq!((read("first-secret-key"), read("second-secret-key")), (200, 404));
}

/// A loader that waits for a message.
fn waiting(go: Receiver<()>) -> Loader {
    let (mut plain, go) = (loader(), Mutex::new(go));
    Box::new(move |attempt| {
        // If the test fails, its sender is dropped, and the loader must not block forever.
        let _ = go.lock().unwrap().recv();
        plain(attempt)
    })
}

#[test]
fn a_request_whose_model_is_being_loaded_can_be_stopped_and_outlives_its_client() {
    let (go, gone) = channel();
    let both = vec![source("slow", waiting(gone)), source("demo", loader())];
    let server = wrap(Server::start(config(), both, Extras::default()).unwrap());
    let mut slow = body(4);
    slow["model"] = "slow".into();
    let stopped = begin(&server, NAME, &slow);
    until("waiting", || resumed(&server, 0).status == 503);
    assert_eq!(server.ask("DELETE", &format!("/v1/stream?{QUERY}"), &[], "").status, 204);
    assert!(receive(stopped).error(400).0.contains("cancelled"));
    resumed(&server, 0).error(404);
    let mut lost = crate::client::connect(server.address);
    let headers = [("X-Conversation-Id", NAME)];
    lost.write_all(&request(server.address, "POST", CHAT, &headers, slow.to_string().as_bytes())).unwrap();
    until("waiting", || resumed(&server, 0).status == 503);
    drop(lost);
    go.send(()).unwrap();
    until("streaming", || resumed(&server, 0).status == 200);
    assert!(resumed(&server, 0).chunks().len() > 2);
}
