//! Responses as typed server-sent events.

use super::item_values::{function_call, message, output_text, reasoning};
use super::whole::Written;
use crate::answer::{Call, Piece, Token, Update, What};
use crate::app::App;
use crate::error::ApiError;
use crate::ids;
use crate::stream::Encoder;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// The item that is open.
enum Open {
    Reasoning { id: String, text: String },
    Text { id: String, text: String, tokens: Vec<Token> },
    Call { id: String, call: Call },
}

pub(super) struct ResponseStream {
    app: Arc<App>,
    written: Written,
    open: Option<Open>,
    sequence: u64,
    /// Tokens whose text has not been written.
    tokens: Vec<Token>,
}

impl ResponseStream {
    pub(super) fn new(app: Arc<App>, written: Written) -> ResponseStream {
        ResponseStream { app, written, open: None, sequence: 0, tokens: Vec::new() }
    }

    fn send(&mut self, out: &mut String, kind: &str, mut value: Value) {
        value["type"] = kind.into();
        value["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        // writing to a string cannot fail
        let _ = write!(out, "event: {kind}\ndata: {value}\n\n");
    }

    /// The place of the open item in the output.
    fn index(&self) -> usize {
        self.written.output.len()
    }

    fn added(&mut self, out: &mut String, item: &Value) {
        let index = self.index();
        self.send(out, "response.output_item.added", json!({"output_index": index, "item": item}));
    }

    fn part(&mut self, out: &mut String, kind: &str, id: &str, part: &Value) {
        let index = self.index();
        let value = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
        self.send(out, kind, value);
    }

    fn reasoning(&mut self, more: &str, out: &mut String) {
        if !matches!(self.open, Some(Open::Reasoning { .. })) {
            self.close(out);
            let id = ids::unique("rs_");
            let mut item = reasoning(&id, "", "in_progress");
            item["content"] = json!([]);
            self.added(out, &item);
            self.part(
                out,
                "response.content_part.added",
                &id,
                &json!({"type": "reasoning_text", "text": ""}),
            );
            self.open = Some(Open::Reasoning { id, text: String::new() });
        }
        self.tokens.clear();
        let index = self.index();
        if let Some(Open::Reasoning { id, text }) = &mut self.open {
            text.push_str(more);
            let value = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": more});
            self.send(out, "response.reasoning_text.delta", value);
        }
    }

    fn text(&mut self, more: &str, out: &mut String) {
        if !matches!(self.open, Some(Open::Text { .. })) {
            self.begin_text(out);
        }
        let fresh = std::mem::take(&mut self.tokens);
        let (index, logprobs) = (self.index(), self.written.logprobs(&fresh));
        if let Some(Open::Text { id, text, tokens }) = &mut self.open {
            text.push_str(more);
            tokens.extend(fresh);
            let value = json!({
                "item_id": id, "output_index": index, "content_index": 0, "delta": more, "logprobs": logprobs,
            });
            self.send(out, "response.output_text.delta", value);
        }
    }

    fn begin_text(&mut self, out: &mut String) {
        self.close(out);
        let id = ids::unique("msg_");
        let mut item = message(&id, "", &json!([]), "in_progress");
        item["content"] = json!([]);
        self.added(out, &item);
        self.part(out, "response.content_part.added", &id, &output_text("", &json!([])));
        self.open = Some(Open::Text { id, text: String::new(), tokens: Vec::new() });
    }

    fn arguments(&mut self, more: &str, out: &mut String) {
        let index = self.index();
        if let Some(Open::Call { id, call }) = &mut self.open {
            call.arguments.push_str(more);
            let value = json!({"item_id": id, "output_index": index, "delta": more});
            self.send(out, "response.function_call_arguments.delta", value);
        }
    }

    /// Ends the open item.
    fn close(&mut self, out: &mut String) {
        let Some(open) = self.open.take() else { return };
        let index = self.index();
        let item = match open {
            Open::Reasoning { id, text } => {
                let value = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text});
                self.send(out, "response.reasoning_text.done", value);
                let part = json!({"type": "reasoning_text", "text": text});
                self.part(out, "response.content_part.done", &id, &part);
                self.written.add_reasoning(&id, &text)
            }
            Open::Text { id, text, tokens } => {
                let logprobs = self.written.logprobs(&tokens);
                let value = json!({
                    "item_id": id, "output_index": index, "content_index": 0, "text": text, "logprobs": logprobs,
                });
                self.send(out, "response.output_text.done", value);
                self.part(out, "response.content_part.done", &id, &output_text(&text, &logprobs));
                self.written.add_text(&id, &text, &logprobs)
            }
            Open::Call { id, call } => {
                let value = json!({
                    "item_id": id, "output_index": index, "name": call.name, "arguments": call.arguments,
                });
                self.send(out, "response.function_call_arguments.done", value);
                self.written.add_call(&id, &call)
            }
        };
        self.send(out, "response.output_item.done", json!({"output_index": index, "item": item}));
    }
}

impl Encoder for ResponseStream {
    fn begin(&mut self, out: &mut String) {
        let response = self.written.value(None, None);
        self.send(out, "response.created", json!({"response": response}));
        self.send(out, "response.in_progress", json!({"response": response}));
    }

    fn update(&mut self, update: Update, out: &mut String) {
        match update.what {
            What::Token(token) => self.tokens.push(token),
            What::Piece(Piece::Reasoning(text)) => self.reasoning(&text, out),
            What::Piece(Piece::Content(text)) => self.text(&text, out),
            What::Piece(Piece::CallStart { id: call_id, name, .. }) => {
                self.close(out);
                self.tokens.clear();
                let id = ids::unique("fc_");
                self.added(out, &function_call(&id, &call_id, &name, "", "in_progress"));
                self.open =
                    Some(Open::Call { id, call: Call { id: call_id, name, arguments: String::new() } });
            }
            What::Piece(Piece::CallArguments { delta, .. }) => self.arguments(&delta, out),
            What::Piece(Piece::CallEnd { .. }) => self.close(out),
            What::Finished(finish) => {
                if self.open.is_none() && self.written.output.is_empty() {
                    self.begin_text(out);
                }
                self.close(out);
                let response = self.written.value(Some(&finish), None);
                let kind = if response["status"] == "completed" {
                    "response.completed"
                } else {
                    "response.incomplete"
                };
                let app = Arc::clone(&self.app);
                self.written.keep(&app, &response);
                self.send(out, kind, json!({"response": response}));
            }
            What::Started { .. } | What::Prompt { .. } => {}
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut String) {
        let response = self.written.value(None, Some(error));
        self.send(out, "response.failed", json!({"response": response}));
    }

    fn end(&mut self, _out: &mut String) {}

    fn ping(&mut self, out: &mut String) {
        out.push_str(": still there\n\n");
    }
}
