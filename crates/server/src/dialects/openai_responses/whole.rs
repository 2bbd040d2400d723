//! The response object of OpenAI's Responses API.

use super::item_values::{CallName, function_call, message, object_with, reasoning};
use super::request::ResponseSettings;
use crate::answer::{AnswerCall, AnswerFinish, AnswerOutcome, EndReason, TokenUpdate};
use crate::app::App;
use crate::dialect::Dialect;
use crate::dialects::openai_chat::logprob;
use crate::error::ApiError;
use crate::ids;
use crate::items::{ConversationItem, Role};
use crate::models::Lease;
use bytes::Bytes;
use latent_engine::scheduler::FairnessKey;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::{Arc, PoisonError};

/// Collects the output of a response.
pub(super) struct ResponseWriter {
    pub(super) served: Arc<Lease>,
    pub(super) about: ResponseSettings,
    pub(super) id: String,
    created: u64,
    owner: FairnessKey,
    /// Output items as JSON text.
    pub(super) output: Vec<String>,
    /// The same items for the store.
    items: Vec<ConversationItem>,
}

impl ResponseWriter {
    pub(super) fn new(served: Arc<Lease>, about: ResponseSettings, owner: FairnessKey) -> ResponseWriter {
        let (id, created) = (ids::unique("resp_"), ids::now());
        ResponseWriter { served, about, id, created, owner, output: Vec::new(), items: Vec::new() }
    }

    /// A JSON list of log-probabilities.
    pub(super) fn logprobs(&self, tokens: &[TokenUpdate]) -> String {
        let shown = if self.about.logprobs { tokens } else { &[] };
        let mut text = String::from("[");
        for value in shown.iter().filter_map(|token| logprob(&self.served.tokenizer, token)) {
            let comma = if text.len() > 1 { "," } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(text, "{comma}{value}");
        }
        text + "]"
    }

    pub(super) fn add_reasoning(&mut self, id: &str, text: &str, status: &str) -> &str {
        self.items.push(ConversationItem::Reasoning(text.to_owned()));
        self.output.push(reasoning(id, text, status));
        &self.output[self.output.len() - 1]
    }

    pub(super) fn add_text(&mut self, id: &str, text: &str, logprobs: &str, status: &str) -> &str {
        self.items.push(ConversationItem::Message { role: Role::Assistant, name: None, text: text.into() });
        self.output.push(message(id, text, logprobs, status));
        &self.output[self.output.len() - 1]
    }

    pub(super) fn add_call(&mut self, id: &str, call: &AnswerCall) -> &str {
        let AnswerCall { id: call_id, name, arguments, complete } = call.clone();
        let status = if complete { "completed" } else { "incomplete" };
        let text = function_call(id, &call_id, self.call_name(&name), &arguments, status);
        self.output.push(text);
        self.items.push(ConversationItem::ToolCall { id: call_id, name, arguments });
        &self.output[self.output.len() - 1]
    }

    /// The client's names of a tool.
    pub(super) fn call_name<'a>(&'a self, name: &'a str) -> CallName<'a> {
        match self.about.namespaced.get(name) {
            Some(tool) => CallName { namespace: Some(&tool.namespace), name: &tool.name },
            None => CallName { namespace: None, name },
        }
    }

    pub(super) fn add_outcome(&mut self, outcome: &AnswerOutcome) {
        let AnswerOutcome { reasoning, content, calls, tokens, finish } = outcome;
        // An empty answer still has one message, as in streams.
        let has_text = !content.is_empty() || calls.is_empty();
        if !reasoning.is_empty() {
            let last = content.is_empty() && calls.is_empty();
            self.add_reasoning(&ids::unique("rs_"), reasoning, item_status(finish, last));
        }
        if has_text {
            let logprobs = self.logprobs(tokens);
            self.add_text(&ids::unique("msg_"), content, &logprobs, item_status(finish, calls.is_empty()));
        }
        for call in calls {
            self.add_call(&ids::unique("fc_"), call);
        }
    }

    /// The response as JSON text. Its status is "in_progress" without `finish`, and "failed" with
    /// `error`.
    pub(super) fn text(&self, finish: Option<&AnswerFinish>, error: Option<&ApiError>) -> String {
        let status = match finish {
            _ if error.is_some() => "failed",
            None => "in_progress",
            Some(finish) => status(finish),
        };
        let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let value = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": (status == "completed").then(ids::now),
            "status": status,
            "error": error.map(|error| {
                let message = Dialect::Responses.message(error);
                json!({"code": error.code.unwrap_or("server_error"), "message": message})
            }),
            "incomplete_details": incomplete,
            "usage": finish.map(usage),
        });
        // Replaces the closing brace by the repeated fields, whose opening brace is skipped.
        let mut text = object_with(&value, "output", &format!("[{}]", self.output.join(",")));
        text.pop();
        text.reserve_exact(self.about.repeated.len());
        text.push(',');
        text.push_str(&self.about.repeated[1..]);
        text
    }

    /// Stores the response for later ones that name it in `previous_response_id`.
    pub(super) fn keep(&mut self, app: &App, text: &Bytes) {
        if !self.about.store {
            return;
        }
        // The store is for continuing the conversation, so it gets input and output.
        let mut items = std::mem::take(&mut self.about.items);
        let input = items.len();
        items.append(&mut self.items);
        let mut store = app.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.insert(self.owner, self.id.clone(), items, input, text.clone());
    }
}

/// The status of a finished response.
pub(super) fn status(finish: &AnswerFinish) -> &'static str {
    match finish.reason {
        EndReason::Length | EndReason::Context => "incomplete",
        _ => "completed",
    }
}

/// The status of an item. The last item of a truncated response is incomplete.
pub(super) fn item_status(finish: &AnswerFinish, last: bool) -> &'static str {
    if last { status(finish) } else { "completed" }
}

fn usage(finish: &AnswerFinish) -> Value {
    let usage = &finish.usage;
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": finish.reasoning_tokens},
        "total_tokens": usage.prompt + usage.completion,
    })
}
