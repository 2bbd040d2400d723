//! Typed server-sent events of OpenAI's Responses API.

use super::item_values::{function_call, object_with, output_text};
use super::whole::{ResponseWriter, status};
use crate::answer::{AnswerCall, AnswerDelta, AnswerEvent, AnswerTimings, AnswerUpdate, TokenUpdate};
use crate::app::App;
use crate::error::ApiError;
use crate::ids;
use crate::stream::Encoder;
use latent_text::CallEnding;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;

enum OpenItem {
    Reasoning { id: String, text: String },
    Text { id: String, text: String, tokens: Vec<TokenUpdate> },
    Call { id: String, call: AnswerCall },
}

pub(super) struct ResponseStream {
    app: Arc<App>,
    written: ResponseWriter,
    open: Option<OpenItem>,
    sequence: u64,
    /// Tokens whose text has not been sent.
    tokens: Vec<TokenUpdate>,
    running: AnswerTimings,
}

impl ResponseStream {
    pub(super) fn new(app: Arc<App>, written: ResponseWriter) -> ResponseStream {
        ResponseStream {
            app,
            written,
            open: None,
            sequence: 0,
            tokens: Vec::new(),
            running: AnswerTimings::default(),
        }
    }

    fn send(&mut self, out: &mut String, kind: &str, value: &Value) {
        self.send_text(out, kind, &value.to_string());
    }

    /// Sends an event with the text of a JSON object, which must not be empty.
    fn send_text(&mut self, out: &mut String, kind: &str, object: &str) {
        // The fields of every event follow the opening brace of the object.
        let (sequence, fields) = (self.sequence, &object[1..]);
        self.sequence += 1;
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{sequence},{fields}\n\n"
        );
    }

    fn send_response(&mut self, out: &mut String, kind: &str, response: &str) {
        self.send_text(out, kind, &format!("{{\"response\":{response}}}"));
    }

    /// Reports the progress of the prompt if the request asks for it.
    fn progress(&mut self, done: usize, total: usize, out: &mut String) {
        if self.written.about.progress {
            let value: Value = self.running.progress(done, total).into_iter().collect();
            let response = self.written.text(None, None);
            self.send_text(out, "response.in_progress", &object_with(&value, "response", &response));
        }
    }

    /// The index of the open item in the output.
    fn index(&self) -> usize {
        self.written.output.len()
    }

    fn added(&mut self, out: &mut String, item: &str) {
        let index = self.index();
        let text = object_with(&json!({"output_index": index}), "item", item);
        self.send_text(out, "response.output_item.added", &text);
    }

    fn part(&mut self, out: &mut String, kind: &str, id: &str, part: &str) {
        let index = self.index();
        let value = json!({"item_id": id, "output_index": index, "content_index": 0});
        self.send_text(out, kind, &object_with(&value, "part", part));
    }

    fn reasoning(&mut self, more: &str, out: &mut String) {
        if !matches!(self.open, Some(OpenItem::Reasoning { .. })) {
            self.close(out);
            let id = ids::unique("rs_");
            let item = json!({
                "id": id, "type": "reasoning", "summary": [], "content": [], "encrypted_content": null,
                "status": "in_progress",
            });
            self.added(out, &item.to_string());
            let part = json!({"type": "reasoning_text", "text": ""});
            self.part(out, "response.content_part.added", &id, &part.to_string());
            self.open = Some(OpenItem::Reasoning { id, text: String::new() });
        }
        // Log-probabilities are reported only for text.
        self.tokens.clear();
        let index = self.index();
        if let Some(OpenItem::Reasoning { id, text }) = &mut self.open {
            text.push_str(more);
            let value = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": more});
            self.send(out, "response.reasoning_text.delta", &value);
        }
    }

    fn text(&mut self, more: &str, out: &mut String) {
        if !matches!(self.open, Some(OpenItem::Text { .. })) {
            self.begin_text(out);
        }
        let fresh = std::mem::take(&mut self.tokens);
        let (index, logprobs) = (self.index(), self.written.logprobs(&fresh));
        if let Some(OpenItem::Text { id, text, tokens }) = &mut self.open {
            text.push_str(more);
            tokens.extend(fresh);
            let mut value = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": more});
            if self.written.about.stream_timings {
                value["timings"] = self.running.timings();
            }
            self.send_text(out, "response.output_text.delta", &object_with(&value, "logprobs", &logprobs));
        }
    }

    fn begin_text(&mut self, out: &mut String) {
        self.close(out);
        let id = ids::unique("msg_");
        let item = json!({
            "id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": [],
        });
        self.added(out, &item.to_string());
        self.part(out, "response.content_part.added", &id, &output_text("", "[]"));
        self.open = Some(OpenItem::Text { id, text: String::new(), tokens: Vec::new() });
    }

    fn arguments(&mut self, more: &str, out: &mut String) {
        let index = self.index();
        if let Some(OpenItem::Call { id, call }) = &mut self.open {
            call.arguments.push_str(more);
            let value = json!({"item_id": id, "output_index": index, "delta": more});
            self.send(out, "response.function_call_arguments.delta", &value);
        }
    }

    /// Closes the open item.
    fn close(&mut self, out: &mut String) {
        self.close_as("completed", out);
    }

    fn close_as(&mut self, status: &str, out: &mut String) {
        let Some(open) = self.open.take() else { return };
        let index = self.index();
        let item = match open {
            OpenItem::Reasoning { id, text } => {
                let value = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text});
                self.send(out, "response.reasoning_text.done", &value);
                let part = json!({"type": "reasoning_text", "text": text});
                self.part(out, "response.content_part.done", &id, &part.to_string());
                self.written.add_reasoning(&id, &text, status)
            }
            OpenItem::Text { id, text, tokens } => {
                let logprobs = self.written.logprobs(&tokens);
                let value = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text});
                self.send_text(out, "response.output_text.done", &object_with(&value, "logprobs", &logprobs));
                self.part(out, "response.content_part.done", &id, &output_text(&text, &logprobs));
                self.written.add_text(&id, &text, &logprobs, status)
            }
            OpenItem::Call { id, call } => {
                let value = json!({
                    "item_id": id, "output_index": index, "name": self.written.call_name(&call.name).name,
                    "arguments": call.arguments,
                });
                self.send(out, "response.function_call_arguments.done", &value);
                self.written.add_call(&id, &call)
            }
        };
        let text = object_with(&json!({"output_index": index}), "item", item);
        self.send_text(out, "response.output_item.done", &text);
    }
}

impl Encoder for ResponseStream {
    fn begin(&mut self, out: &mut String) {
        let response = self.written.text(None, None);
        self.send_response(out, "response.created", &response);
        self.send_response(out, "response.in_progress", &response);
    }

    fn update(&mut self, update: AnswerUpdate, out: &mut String) {
        self.running.follow(&update.what);
        match update.what {
            AnswerEvent::Token(token) => self.tokens.push(token),
            AnswerEvent::Delta(AnswerDelta::Reasoning(text)) => self.reasoning(&text, out),
            AnswerEvent::Delta(AnswerDelta::Content(text)) => self.text(&text, out),
            // A text or reasoning before the call ends here: items do not overlap.
            AnswerEvent::Delta(AnswerDelta::CallStart { id: call_id, name, .. }) => {
                self.close(out);
                self.tokens.clear();
                let id = ids::unique("fc_");
                let item = function_call(&id, &call_id, self.written.call_name(&name), "", "in_progress");
                self.added(out, &item);
                self.open = Some(OpenItem::Call {
                    id,
                    call: AnswerCall { id: call_id, name, ..AnswerCall::default() },
                });
            }
            AnswerEvent::Delta(AnswerDelta::CallArguments { delta, .. }) => self.arguments(&delta, out),
            AnswerEvent::Delta(AnswerDelta::CallEnd { ending, .. }) => {
                if let Some(OpenItem::Call { call, .. }) = &mut self.open {
                    call.complete = ending == CallEnding::Complete;
                }
                self.close(out);
            }
            AnswerEvent::Finished(finish) => {
                // An empty answer still has one item.
                if self.open.is_none() && self.written.output.is_empty() {
                    self.begin_text(out);
                }
                self.close_as(status(&finish), out);
                let response = self.written.text(Some(&finish), None);
                // `response.completed` or `response.incomplete`.
                let kind = format!("response.{}", status(&finish));
                let timings = json!({"timings": finish.timings()});
                self.send_text(out, &kind, &object_with(&timings, "response", &response));
                self.written.keep(&self.app, &response.into());
            }
            AnswerEvent::Started { prompt, cached, .. } => self.progress(cached, prompt, out),
            AnswerEvent::Prompt { done, total, cached } => {
                // The report for `done == cached` was sent with `Started`.
                if done > cached {
                    self.progress(done, total, out);
                }
            }
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut String) {
        let response = self.written.text(None, Some(error));
        self.send_response(out, "response.failed", &response);
    }

    // No `[DONE]` as in chat completions: the last event has the whole response.
    fn end(&mut self, _out: &mut String) {}

    fn ping(&mut self, out: &mut String) {
        out.push_str(": still there\n\n");
    }
}
