//! Server-sent events of Anthropic's Messages API. Blocks begin, grow and end one after the other.

use super::request::MessageSettings;
use super::whole::{stop_reason, usage};
use crate::answer::{AnswerDelta, AnswerEvent, AnswerUpdate, PartialArguments};
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::ids;
use crate::stream::Encoder;
use latent_engine::scheduler::JobUsage;
use serde_json::{Value, json};
use std::fmt::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenBlock {
    Thinking,
    Text,
    Tool,
}

pub(super) struct MessageStream {
    about: MessageSettings,
    request: String,
    open: Option<OpenBlock>,
    /// Number of blocks so far.
    blocks: usize,
    begun: bool,
    /// The arguments of the open call. As in Anthropic's API, deltas contain complete members.
    arguments: PartialArguments,
}

fn send(out: &mut String, value: &Value) {
    // Writing to a string cannot fail.
    let _ = write!(out, "event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or_default());
}

impl MessageStream {
    pub(super) fn new(about: MessageSettings, request: String) -> MessageStream {
        MessageStream {
            about,
            request,
            open: None,
            blocks: 0,
            begun: false,
            arguments: PartialArguments::default(),
        }
    }

    fn start(&mut self, prompt: usize, cached: usize, out: &mut String) {
        self.begun = true;
        let usage = usage(&JobUsage { prompt, cached, ..JobUsage::default() });
        send(
            out,
            &json!({"type": "message_start", "message": {
                "id": ids::unique("msg_"), "type": "message", "role": "assistant", "model": self.about.model,
                "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage,
            }}),
        );
        // Anthropic's API also sends a ping at the beginning.
        send(out, &json!({"type": "ping"}));
    }

    fn close(&mut self, out: &mut String) {
        let Some(open) = self.open.take() else { return };
        let index = self.blocks - 1;
        if open == OpenBlock::Tool {
            let rest = std::mem::take(&mut self.arguments).finish();
            if !rest.is_empty() {
                send(out, &delta(index, &json!({"type": "input_json_delta", "partial_json": rest})));
            }
        }
        // Clients collect the signature and send it back. It is empty, since nothing verifies it.
        if open == OpenBlock::Thinking {
            send(out, &delta(index, &json!({"type": "signature_delta", "signature": ""})));
        }
        send(out, &json!({"type": "content_block_stop", "index": index}));
    }

    /// The index of the open block of this kind. Begins a new block if another kind is open; each
    /// tool call has its own.
    fn block(&mut self, kind: OpenBlock, block: &Value, out: &mut String) -> usize {
        if self.open != Some(kind) || kind == OpenBlock::Tool {
            self.close(out);
            send(out, &json!({"type": "content_block_start", "index": self.blocks, "content_block": block}));
            self.open = Some(kind);
            self.blocks += 1;
        }
        self.blocks - 1
    }

    fn delta(&mut self, piece: AnswerDelta, out: &mut String) {
        match piece {
            AnswerDelta::Reasoning(text) => {
                let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                let index = self.block(OpenBlock::Thinking, &block, out);
                send(out, &delta(index, &json!({"type": "thinking_delta", "thinking": text})));
            }
            AnswerDelta::Content(text) => {
                let index = self.block(OpenBlock::Text, &json!({"type": "text", "text": ""}), out);
                send(out, &delta(index, &json!({"type": "text_delta", "text": text})));
            }
            AnswerDelta::CallStart { id, name, .. } => {
                self.block(
                    OpenBlock::Tool,
                    &json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                    out,
                );
            }
            AnswerDelta::CallArguments { delta: text, .. } => {
                let members = self.arguments.push(&text);
                if let Some(index) = self.blocks.checked_sub(1).filter(|_| !members.is_empty()) {
                    send(out, &delta(index, &json!({"type": "input_json_delta", "partial_json": members})));
                }
            }
            AnswerDelta::CallEnd { .. } => self.close(out),
        }
    }
}

fn delta(index: usize, delta: &Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

impl Encoder for MessageStream {
    fn update(&mut self, update: AnswerUpdate, out: &mut String) {
        match update.what {
            // `message_start` has the numbers of prompt and cached tokens, which are known only
            // now.
            AnswerEvent::Started { prompt, cached, .. } => {
                if !self.begun {
                    self.start(prompt, cached, out);
                }
            }
            AnswerEvent::Delta(piece) => self.delta(piece, out),
            AnswerEvent::Finished(finish) => {
                // An empty answer still has one block.
                if self.blocks == 0 {
                    self.block(OpenBlock::Text, &json!({"type": "text", "text": ""}), out);
                }
                self.close(out);
                send(
                    out,
                    &json!({
                        "type": "message_delta",
                        "delta": {"stop_reason": stop_reason(&finish), "stop_sequence": finish.stop},
                        "usage": usage(&finish.usage),
                    }),
                );
            }
            AnswerEvent::Prompt { .. } | AnswerEvent::Token(_) => {}
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut String) {
        out.push_str(&Dialect::Anthropic.error_event(error, &self.request));
    }

    fn end(&mut self, out: &mut String) {
        send(out, &json!({"type": "message_stop"}));
    }

    fn ping(&mut self, out: &mut String) {
        if self.begun {
            send(out, &json!({"type": "ping"}));
        } else {
            // Nothing may precede `message_start`. Clients skip comments.
            out.push_str(": still there\n\n");
        }
    }
}
