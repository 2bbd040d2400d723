//! A blocking HTTP client of a few lines.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Asserts success.
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// Asserts an error of OpenAI's form and returns its message and field.
    pub fn error(&self, status: u16) -> (String, Value) {
        assert_eq!(self.status, status, "{}", self.text());
        let error = &self.json()["error"];
        (error["message"].as_str().unwrap_or_else(|| panic!("{error}")).to_owned(), error["param"].clone())
    }

    /// The events of a stream: name and data.
    pub fn events(&self) -> Vec<(String, String)> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let mut events = Vec::new();
        for block in self.text().split("\n\n").filter(|block| !block.is_empty()) {
            let (mut name, mut data) = (String::new(), None);
            for line in block.lines() {
                match line.split_once(": ").unwrap() {
                    ("event", value) => name = value.to_owned(),
                    ("data", value) => data = Some(value.to_owned()),
                    ("", _) => {}
                    other => panic!("{other:?}"),
                }
            }
            if let Some(data) = data {
                events.push((name, data));
            }
        }
        events
    }

    /// The data of a stream that ends with `[DONE]`.
    pub fn chunks(&self) -> Vec<Value> {
        let mut data: Vec<String> = self.events().into_iter().map(|(_, data)| data).collect();
        assert_eq!(data.pop().as_deref(), Some("[DONE]"));
        data.iter().map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

/// How long a client waits before it gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A connection with a read timeout, so that a test cannot hang.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends a request's head and body.
pub fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> TcpStream {
    let mut stream = connect(address);
    // A server that refuses may close the connection before all is written.
    let _ = stream.write_all(&request(address, method, path, headers, body));
    stream
}

/// The bytes of a request.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str(&format!("Host: {address}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}

/// Reads a whole response.
pub fn receive(stream: impl Read) -> Reply {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(": ") {
            None => break,
            Some((name, value)) => headers.push((name.to_owned(), value.to_owned())),
        }
    }
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map(|(_, value)| value.parse().unwrap());
    let mut body = Vec::new();
    match (chunked, length) {
        (true, _) => loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let size =
                usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("no size in {line:?}"));
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).unwrap();
            if size == 0 {
                break;
            }
            body.extend_from_slice(&chunk[..size]);
        },
        (_, Some(length)) => {
            body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
        }
        _ => {
            reader.read_to_end(&mut body).unwrap();
        }
    }
    Reply { status, headers, body }
}
