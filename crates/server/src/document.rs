//! JSON documents that are serialized while they are sent.
//!
//! A response is never in memory as a whole. As JSON values, one `/tokenize` of 30 MB exhausted the
//! memory: a token takes 4 bytes in a list of IDs and tens as a value.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use serde::Serialize;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Minimum size of a frame in bytes, except of the last one.
const FRAME: usize = 16_384;

/// Bytes of text that are escaped per step. Escapes take up to six times the bytes.
const TEXT: usize = 4096;

/// A JSON document as a queue of parts.
#[derive(Default)]
pub(crate) struct Document {
    parts: VecDeque<DocumentPart>,
}

/// Appends an element. Returns false if there was no more.
type NextElement = Box<dyn FnMut(&mut Vec<u8>) -> bool + Send>;

enum DocumentPart {
    Raw(Vec<u8>),
    Elements(NextElement),
    /// Documents separated by commas, and whether one has been written.
    Documents(Box<dyn Iterator<Item = Document> + Send>, bool),
}

/// Appends the JSON of a value.
pub(crate) fn write(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let before = out.len();
    // Only a map with keys that are not strings could fail.
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(before);
        out.extend_from_slice(b"null");
    }
}

impl Document {
    /// Begins an object, which must have a field. [`Document::field`] adds further ones.
    pub(crate) fn open(fields: &Value) -> Document {
        let mut text = Vec::new();
        write(&mut text, fields);
        // Removes the closing brace.
        text.pop();
        Document { parts: VecDeque::from([DocumentPart::Raw(text)]) }
    }

    /// Adds the name of a further field. Its value must follow.
    pub(crate) fn field(self, name: &str) -> Document {
        self.raw(",").value(name).raw(":")
    }

    /// Ends an object.
    pub(crate) fn close(self) -> Document {
        self.raw("}")
    }

    fn part(mut self, part: DocumentPart) -> Document {
        self.parts.push_back(part);
        self
    }

    /// Adds JSON text.
    pub(crate) fn raw(mut self, text: &str) -> Document {
        // Adjacent texts share one part: documents consist mostly of short texts.
        if let Some(DocumentPart::Raw(last)) = self.parts.back_mut() {
            last.extend_from_slice(text.as_bytes());
            return self;
        }
        self.part(DocumentPart::Raw(text.as_bytes().to_vec()))
    }

    /// Adds a small value, which is serialized immediately.
    pub(crate) fn value(self, value: &(impl Serialize + ?Sized)) -> Document {
        let mut text = Vec::new();
        write(&mut text, value);
        self.part(DocumentPart::Raw(text))
    }

    /// Adds a list. `write` serializes an item.
    pub(crate) fn list<T>(
        self,
        mut items: impl Iterator<Item = T> + Send + 'static,
        mut write: impl FnMut(T, &mut Vec<u8>) + Send + 'static,
    ) -> Document {
        let mut first = true;
        let next = move |out: &mut Vec<u8>| {
            let Some(item) = items.next() else { return false };
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            write(item, out);
            true
        };
        self.raw("[").part(DocumentPart::Elements(Box::new(next))).raw("]")
    }

    /// Adds a list of documents.
    pub(crate) fn documents(self, items: impl Iterator<Item = Document> + Send + 'static) -> Document {
        self.raw("[").part(DocumentPart::Documents(Box::new(items), false)).raw("]")
    }

    /// Adds a string from pieces.
    pub(crate) fn string(self, mut pieces: impl Iterator<Item = String> + Send + 'static) -> Document {
        let next = move |out: &mut Vec<u8>| {
            let Some(piece) = pieces.next() else { return false };
            escape(out, &piece);
            true
        };
        self.raw("\"").part(DocumentPart::Elements(Box::new(next))).raw("\"")
    }

    /// Adds a long string.
    pub(crate) fn text(self, text: String) -> Document {
        let mut at = 0_usize;
        let next = move |out: &mut Vec<u8>| {
            // `escape` takes a string, so each piece must end at a character boundary.
            let end = text.floor_char_boundary(at.saturating_add(TEXT));
            escape(out, &text[at..end]);
            at = end;
            at < text.len()
        };
        self.raw("\"").part(DocumentPart::Elements(Box::new(next))).raw("\"")
    }

    /// Appends about a frame. Returns false at the end of the document.
    fn fill(&mut self, out: &mut Vec<u8>) -> bool {
        while out.len() < FRAME {
            match self.parts.front_mut() {
                None => return false,
                Some(DocumentPart::Raw(text)) => {
                    out.append(text);
                    self.parts.pop_front();
                }
                Some(DocumentPart::Elements(next)) => {
                    if !next(out) {
                        self.parts.pop_front();
                    }
                }
                Some(DocumentPart::Documents(documents, begun)) => match documents.next() {
                    None => drop(self.parts.pop_front()),
                    // The parts of the document are written before the rest of the list.
                    Some(document) => {
                        if std::mem::replace(begun, true) {
                            out.push(b',');
                        }
                        document.parts.into_iter().rev().for_each(|part| self.parts.push_front(part));
                    }
                },
            }
        }
        !self.parts.is_empty()
    }

    /// The document as a value, for short ones.
    pub(crate) fn into_value(mut self) -> Value {
        let mut out = Vec::new();
        while {
            let mut more = Vec::new();
            // `fill` stops when its buffer has a frame, so each call gets an empty one.
            let has_more = self.fill(&mut more);
            out.append(&mut more);
            has_more
        } {}
        serde_json::from_slice(&out).unwrap_or_default()
    }

    /// A response with this body. A body of one frame has a `Content-Length`.
    pub(crate) fn into_response(mut self) -> Response {
        let mut first = Vec::new();
        let more = self.fill(&mut first);
        let body = if more {
            self.parts.push_front(DocumentPart::Raw(first));
            Body::new(self)
        } else {
            Body::from(first)
        };
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

/// Appends a JSON string without its quotes.
fn escape(out: &mut Vec<u8>, text: &str) {
    let start = out.len();
    // Serialized with quotes, which are then removed.
    write(out, text);
    out.pop();
    out.remove(start);
}

impl http_body::Body for Document {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // A frame is exceeded by at most one part, usually a piece of text.
        let mut out = Vec::with_capacity(FRAME + TEXT);
        self.fill(&mut out);
        Poll::Ready((!out.is_empty()).then(|| Ok(Frame::data(out.into()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn written(mut document: Document) -> (Value, usize) {
        let (mut all, mut longest) = (Vec::new(), 0);
        loop {
            let mut out = Vec::new();
            let more = document.fill(&mut out);
            longest = longest.max(out.len());
            all.extend(out);
            if !more {
                return (serde_json::from_slice(&all).unwrap(), longest);
            }
        }
    }

    #[test]
    fn documents_are_written_in_frames() {
        let text = "é\"\\\n\u{1}🙂".repeat(10_000);
        let one =
            |i: u32| Document::open(&json!({"i": i})).field("ids").list(0..i, |id, out| write(out, &id));
        let document = Document::open(&json!({"a": 1}))
            .field("text")
            .text(text.clone())
            .field("empty")
            .text(String::new())
            .field("pieces")
            .string(["x".to_owned(), String::new(), "\"".to_owned()].into_iter())
            .field("numbers")
            .list(0..10_000_u32, |number, out| write(out, &number))
            .field("documents")
            .documents((0..3).map(move |i| one(i).close()))
            .field("none")
            .documents(std::iter::empty())
            .close();
        let (value, longest) = written(document);
        assert_eq!((value["text"].as_str(), &value["empty"]), (Some(text.as_str()), &json!("")));
        assert_eq!((&value["pieces"], &value["numbers"][9999]), (&json!("x\""), &json!(9999)));
        let documents = json!([{"i": 0, "ids": []}, {"i": 1, "ids": [0]}, {"i": 2, "ids": [0, 1]}]);
        assert_eq!((&value["documents"], &value["none"]), (&documents, &json!([])));
        assert!(longest < FRAME + 6 * TEXT, "{longest}");
    }
}
