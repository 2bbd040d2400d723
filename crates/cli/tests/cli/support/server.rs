//! A small test server. It answers each request with the next of its answers and records the
//! requests.
#![allow(dead_code, reason = "each test file uses a part of it")]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A recorded request: the first line, the headers in lower case, the body.
#[derive(Clone, Debug)]
pub struct MockRequest {
    pub line: String,
    pub headers: Vec<String>,
    pub body: Value,
}

/// An answer.
#[derive(Clone)]
pub enum MockAnswer {
    /// Status with its reason and further headers, and a body.
    Plain(&'static str, String),
    /// A stream of events that ends with the connection, as given.
    Stream(String),
    /// The same, but the connection stays open until the client closes it.
    Hanging(String),
    /// These bytes, headers included, and then the others again and again, after a pause each,
    /// until the client closes the connection.
    Endless(String, String, Duration),
}

pub struct MockServer {
    pub url: String,
    asked: Arc<Mutex<Vec<MockRequest>>>,
    closed: Arc<Mutex<usize>>,
}

impl MockServer {
    /// `answer` is called with the path and the number of earlier requests for it.
    pub fn new(answer: impl Fn(&str, usize) -> MockAnswer + Send + Sync + 'static) -> MockServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, closed) = (Arc::default(), Arc::default());
        let (log, ends, answer) = (Arc::clone(&asked), Arc::clone(&closed), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (log, ends, answer) = (Arc::clone(&log), Arc::clone(&ends), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream, &log, &ends, &*answer));
            }
        });
        MockServer { url, asked, closed }
    }

    /// Requests for questions.
    pub fn questions(&self) -> Vec<MockRequest> {
        let all = self.asked.lock().unwrap();
        all.iter().filter(|asked| asked.line.starts_with("POST")).cloned().collect()
    }

    pub fn all(&self) -> Vec<MockRequest> {
        self.asked.lock().unwrap().clone()
    }

    /// Hanging streams that the client has closed.
    pub fn closed(&self) -> usize {
        *self.closed.lock().unwrap()
    }
}

/// The headers of a stream.
pub const EVENTS: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

fn serve(
    mut stream: TcpStream,
    log: &Mutex<Vec<MockRequest>>,
    closed: &Mutex<usize>,
    answer: &dyn Fn(&str, usize) -> MockAnswer,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut headers = Vec::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let header = header.trim().to_lowercase();
        if header.is_empty() {
            break;
        }
        headers.push(header);
    }
    let length = headers.iter().find_map(|header| header.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let before = {
        let mut log = log.lock().unwrap();
        let before = log.iter().filter(|asked| asked.line.contains(&format!(" {path} "))).count();
        log.push(MockRequest { line, headers, body: serde_json::from_slice(&body).unwrap_or_default() });
        before
    };
    let events = EVENTS;
    match answer(&path, before) {
        MockAnswer::Plain(head, body) => {
            write!(
                stream,
                "HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            )
            .ok()?;
        }
        MockAnswer::Stream(text) => {
            // In small pieces, as from a model.
            write!(stream, "{events}").ok()?;
            for piece in text.as_bytes().chunks(37) {
                stream.write_all(piece).ok()?;
                stream.flush().ok()?;
            }
        }
        MockAnswer::Endless(start, more, pause) => {
            stream.write_all(start.as_bytes()).ok()?;
            loop {
                std::thread::sleep(pause);
                stream.write_all(more.as_bytes()).ok()?;
            }
        }
        MockAnswer::Hanging(text) => {
            write!(stream, "{events}{text}").ok()?;
            stream.flush().ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
            let end = reader.read(&mut [0]);
            *closed.lock().unwrap() +=
                usize::from(!matches!(&end, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock));
        }
    }
    Some(())
}

/// Events of an answer with this reasoning and these pieces of text, to its end.
pub fn events(reasoning: &str, pieces: &[&str]) -> String {
    let mut text = deltas(reasoning, pieces);
    let usage = r#"{"prompt_tokens":20,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":12}}"#;
    text.push_str("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"timings\":{\"prompt_ms\":100,\"predicted_ms\":500}}\n\n");
    text.push_str(&format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n"));
    text
}

/// Events without the end.
pub fn deltas(reasoning: &str, pieces: &[&str]) -> String {
    let event = |delta: Value| {
        format!("data: {}\n\n", serde_json::json!({"choices": [{"index": 0, "delta": delta}]}))
    };
    let mut text = event(serde_json::json!({"role": "assistant", "content": ""}));
    if !reasoning.is_empty() {
        text.push_str(&event(serde_json::json!({"reasoning_content": reasoning, "reasoning": reasoning})));
    }
    for piece in pieces {
        text.push_str(&event(serde_json::json!({"content": piece})));
    }
    text
}
