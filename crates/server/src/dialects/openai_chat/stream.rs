//! Server-sent events of OpenAI's chat completions API.

use super::request::ChatSettings;
use super::whole::{FINGERPRINT, logprobs, usage_of, verbose};
use crate::answer::{AnswerDelta, AnswerEvent, AnswerFinish, AnswerTimings, AnswerUpdate, TokenUpdate};
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::ids;
use crate::models::Lease;
use crate::stream::Encoder;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// Encodes `chat.completion.chunk` events.
pub(super) struct ChatStream {
    served: Arc<Lease>,
    about: ChatSettings,
    id: String,
    created: u64,
    /// Per answer, tokens whose log-probabilities have not been sent.
    tokens: Vec<Vec<TokenUpdate>>,
    finishes: Vec<AnswerFinish>,
    /// Per answer, whether its role has been sent.
    begun: Vec<bool>,
    /// Timings of each answer.
    running: Vec<AnswerTimings>,
}

impl ChatStream {
    pub(super) fn new(served: Arc<Lease>, about: ChatSettings) -> ChatStream {
        let (tokens, begun) = (vec![Vec::new(); about.n], vec![false; about.n]);
        let running = vec![AnswerTimings::default(); about.n];
        let (id, created) = (ids::unique("chatcmpl-"), ids::now());
        ChatStream { served, about, id, created, tokens, finishes: Vec::new(), begun, running }
    }

    /// A chunk with these `choices`.
    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.about.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        });
        if self.about.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&mut self, choice: usize, delta: Value, finish: Option<&'static str>) -> Value {
        // The text of a token can come later than the token: a stop string or a marker may begin in
        // it. A chunk has the log-probabilities of all tokens since the last chunk.
        let mut one = json!({"index": choice, "delta": delta, "finish_reason": finish});
        if self.about.logprobs {
            let tokens = self.tokens.get_mut(choice).map(std::mem::take).unwrap_or_default();
            one["logprobs"] =
                if tokens.is_empty() { Value::Null } else { logprobs(&self.served.tokenizer, &tokens) };
        }
        self.chunk(json!([one]))
    }

    /// Sends the role of an answer, if it has not been sent.
    fn role(&mut self, choice: usize, out: &mut String) {
        // With the first text, not at the start of the stream: load generators such as llama-benchy
        // take the first chunk for the first token, and would measure no prompt time.
        if self.begun.get_mut(choice).is_some_and(|begun| !std::mem::replace(begun, true)) {
            let mut one = json!({"index": choice, "delta": {"role": "assistant", "content": ""}, "finish_reason": null});
            if self.about.logprobs {
                one["logprobs"] = Value::Null;
            }
            send(out, &self.chunk(json!([one])));
        }
    }

    /// Reports the progress of the prompt if the request asks for it (llama.cpp's
    /// `return_progress`). The first report is the number of cached tokens.
    fn progress(&self, choice: usize, done: usize, total: usize, out: &mut String) {
        // All answers share one prompt, so only the first reports it.
        let Some(running) = self.running.get(choice).filter(|_| self.about.progress && choice == 0) else {
            return;
        };
        let mut chunk = self.chunk(json!([]));
        for (name, value) in running.progress(done, total) {
            chunk[name] = value;
        }
        send(out, &chunk);
    }

    fn delta_chunk(&mut self, choice: usize, piece: AnswerDelta) -> Option<Value> {
        let delta = match piece {
            // DeepSeek's and llama.cpp's field, and vLLM's.
            AnswerDelta::Reasoning(text) => json!({"reasoning_content": text, "reasoning": text}),
            AnswerDelta::Content(text) => json!({"content": text}),
            AnswerDelta::CallStart { index, id, name } => json!({"tool_calls": [{
                "index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""},
            }]}),
            AnswerDelta::CallArguments { index, delta } => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": delta}}]})
            }
            AnswerDelta::CallEnd { .. } => return None,
        };
        Some(self.delta(choice, delta, None))
    }
}

fn send(out: &mut String, value: &Value) {
    // Writing to a string cannot fail.
    let _ = write!(out, "data: {value}\n\n");
}

impl Encoder for ChatStream {
    fn update(&mut self, update: AnswerUpdate, out: &mut String) {
        let AnswerUpdate { choice, what } = update;
        if let Some(running) = self.running.get_mut(choice) {
            running.follow(&what);
        }
        match what {
            AnswerEvent::Started { prompt, cached, .. } => self.progress(choice, cached, prompt, out),
            AnswerEvent::Prompt { done, total, cached } => {
                // The report for `done == cached` was sent with `Started`.
                if done > cached {
                    self.progress(choice, done, total, out);
                }
            }
            AnswerEvent::Token(token) => {
                if let Some(tokens) = self.tokens.get_mut(choice).filter(|_| self.about.logprobs) {
                    tokens.push(token);
                }
            }
            AnswerEvent::Delta(piece) => {
                self.role(choice, out);
                if let Some(mut chunk) = self.delta_chunk(choice, piece) {
                    if let Some(running) = self.running.get(choice).filter(|_| self.about.stream_timings) {
                        chunk["timings"] = running.timings();
                    }
                    send(out, &chunk);
                }
            }
            AnswerEvent::Finished(finish) => {
                self.role(choice, out);
                let mut chunk = self.delta(choice, json!({}), Some(finish.reason.word()));
                // llama.cpp's clients read timings from the last chunk with a choice.
                chunk["timings"] = finish.timings();
                if self.about.verbose {
                    chunk["__verbose"] = verbose(&self.about, "", &finish);
                }
                send(out, &chunk);
                self.finishes.push(*finish);
            }
        }
    }

    fn error(&mut self, error: &ApiError, out: &mut String) {
        out.push_str(&Dialect::OpenAi.error_event(error, &self.id));
    }

    fn end(&mut self, out: &mut String) {
        if self.about.include_usage {
            let mut chunk = self.chunk(json!([]));
            let finishes: Vec<&AnswerFinish> = self.finishes.iter().collect();
            chunk["usage"] = usage_of(&finishes, finishes.len());
            // With `include_usage` llama.cpp sends the timings in this chunk too.
            if let Some(first) = self.finishes.first() {
                chunk["timings"] = first.timings();
            }
            send(out, &chunk);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn ping(&mut self, out: &mut String) {
        out.push_str(": still there\n\n");
    }
}
