//! A minimal collector: receives OTLP over HTTP and decodes the fields that the tests check.

use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Clone, Debug, Default)]
pub struct Span {
    pub trace: String,
    pub id: String,
    pub parent: String,
    pub name: String,
    pub kind: u64,
    pub start: u64,
    pub end: u64,
    pub attributes: Map<String, Value>,
    /// 2 is `STATUS_CODE_ERROR`.
    pub status: u64,
    /// Attributes of the resource that sent the span.
    pub resource: Map<String, Value>,
}

/// A collector on a loopback port.
pub struct SpanListener {
    pub url: String,
    spans: Arc<Mutex<Vec<Span>>>,
    /// While it is locked, the collector does not answer.
    hold: Arc<Mutex<()>>,
}

impl SpanListener {
    pub fn start() -> SpanListener {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (spans, hold) = (Arc::<Mutex<Vec<Span>>>::default(), Arc::<Mutex<()>>::default());
        let (taken, held) = (Arc::clone(&spans), Arc::clone(&hold));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (taken, held) = (Arc::clone(&taken), Arc::clone(&held));
                std::thread::spawn(move || answer(stream.unwrap(), &taken, &held));
            }
        });
        SpanListener { url, spans, hold }
    }

    /// Until the guard is dropped, requests are not answered.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.hold.lock().unwrap()
    }

    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap().clone()
    }
}

/// Answers the requests of a connection.
fn answer(stream: TcpStream, spans: &Mutex<Vec<Span>>, hold: &Mutex<()>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        assert_eq!(first, "POST /v1/traces HTTP/1.1\r\n");
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        drop(hold.lock().unwrap());
        spans.lock().unwrap().extend(decode(&body));
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
        // The exporter may have given up on the request.
        let _ = reader.get_mut().write_all(head.as_bytes());
    }
}

/// The value of a field in protobuf's wire format.
enum WireValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> WireValue<'a> {
    fn bytes(&self) -> &'a [u8] {
        match self {
            WireValue::Bytes(bytes) => bytes,
            WireValue::Number(number) => panic!("a message is wanted, found {number}"),
        }
    }

    fn number(&self) -> u64 {
        match self {
            WireValue::Number(number) => *number,
            WireValue::Bytes(bytes) => panic!("a number is wanted, found {bytes:?}"),
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }

    fn hex(&self) -> String {
        self.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        number |= u64::from(byte & 127) << shift;
        shift += 7;
        if byte < 128 {
            return number;
        }
    }
}

/// The fields of a protobuf message, with their numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, WireValue<'_>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                found.push((key >> 3, WireValue::Number(varint(&mut bytes))));
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)).unwrap(),
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (value, rest) = bytes.split_at(length);
        bytes = rest;
        let value = match (key & 7, <[u8; 8]>::try_from(value)) {
            (1, Ok(fixed)) => WireValue::Number(u64::from_le_bytes(fixed)),
            _ => WireValue::Bytes(value),
        };
        found.push((key >> 3, value));
    }
    found
}

/// The spans of an `ExportTraceServiceRequest`.
fn decode(body: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for (_, by_resource) in fields(body) {
        let mut resource = Map::new();
        for (number, part) in fields(by_resource.bytes()) {
            match number {
                1 => resource = attributes(part.bytes(), 1),
                2 => {
                    let own = fields(part.bytes()).into_iter().filter(|(number, _)| *number == 2);
                    spans.extend(
                        own.map(|(_, span)| Span { resource: resource.clone(), ..decode_span(span.bytes()) }),
                    );
                }
                _ => {}
            }
        }
    }
    spans
}

fn decode_span(bytes: &[u8]) -> Span {
    let mut span = Span { attributes: attributes(bytes, 9), ..Span::default() };
    for (number, value) in fields(bytes) {
        match number {
            1 => span.trace = value.hex(),
            2 => span.id = value.hex(),
            4 => span.parent = value.hex(),
            5 => span.name = value.text(),
            6 => span.kind = value.number(),
            7 => span.start = value.number(),
            8 => span.end = value.number(),
            15 => {
                let code = fields(value.bytes()).into_iter().find(|(number, _)| *number == 3);
                span.status = code.map_or(0, |(_, code)| code.number());
            }
            _ => {}
        }
    }
    span
}

/// The attributes in the field of this number of a message.
fn attributes(bytes: &[u8], field: u64) -> Map<String, Value> {
    let pair = |pair: &[u8]| {
        let (mut key, mut value) = (String::new(), Value::Null);
        for (number, part) in fields(pair) {
            match number {
                1 => key = part.text(),
                _ => value = any(part.bytes()),
            }
        }
        (key, value)
    };
    fields(bytes)
        .into_iter()
        .filter(|(number, _)| *number == field)
        .map(|(_, value)| pair(value.bytes()))
        .collect()
}

fn any(bytes: &[u8]) -> Value {
    let Some((number, value)) = fields(bytes).into_iter().next() else { return Value::Null };
    match number {
        1 => value.text().into(),
        2 => (value.number() == 1).into(),
        3 => value.number().cast_signed().into(),
        4 => f64::from_bits(value.number()).into(),
        5 => fields(value.bytes()).into_iter().map(|(_, one)| any(one.bytes())).collect(),
        other => json!(format!("a value of kind {other}")),
    }
}
