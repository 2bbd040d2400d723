//! A response in the making, and as a whole.

use super::item_values::{function_call, message, reasoning};
use super::request::About;
use crate::answer::{Call, Finish, Outcome, Reason, Token};
use crate::app::App;
use crate::dialects::openai_chat::logprobs;
use crate::error::ApiError;
use crate::ids;
use crate::items::{Item, Role};
use crate::models::Lease;
use latent_engine::scheduler::FairnessKey;
use serde_json::{Value, json};
use std::sync::{Arc, PoisonError};

/// What has been written of a response.
pub(super) struct Written {
    pub(super) served: Arc<Lease>,
    pub(super) about: About,
    pub(super) id: String,
    created: u64,
    owner: FairnessKey,
    /// Items of the output, as they are sent.
    pub(super) output: Vec<Value>,
    /// The same for the store.
    items: Vec<Item>,
}

impl Written {
    pub(super) fn new(served: Arc<Lease>, about: About, owner: FairnessKey) -> Written {
        let (id, created) = (ids::unique("resp_"), ids::now());
        Written { served, about, id, created, owner, output: Vec::new(), items: Vec::new() }
    }

    pub(super) fn logprobs(&self, tokens: &[Token]) -> Value {
        if self.about.logprobs { logprobs(&self.served, tokens)["content"].clone() } else { json!([]) }
    }

    pub(super) fn add_reasoning(&mut self, id: &str, text: &str) -> Value {
        self.items.push(Item::Reasoning(text.to_owned()));
        self.output.push(reasoning(id, text, "completed"));
        self.output[self.output.len() - 1].clone()
    }

    pub(super) fn add_text(&mut self, id: &str, text: &str, logprobs: &Value) -> Value {
        self.items.push(Item::Message { role: Role::Assistant, name: None, text: text.to_owned() });
        self.output.push(message(id, text, logprobs, "completed"));
        self.output[self.output.len() - 1].clone()
    }

    pub(super) fn add_call(&mut self, id: &str, call: &Call) -> Value {
        let Call { id: call_id, name, arguments } = call.clone();
        self.output.push(function_call(id, &call_id, &name, &arguments, "completed"));
        self.items.push(Item::ToolCall { id: call_id, name, arguments });
        self.output[self.output.len() - 1].clone()
    }

    pub(super) fn add_outcome(&mut self, outcome: &Outcome) {
        let Outcome { reasoning, content, calls, tokens, .. } = outcome;
        if !reasoning.is_empty() {
            self.add_reasoning(&ids::unique("rs_"), reasoning);
        }
        if !content.is_empty() || calls.is_empty() {
            let logprobs = self.logprobs(tokens);
            self.add_text(&ids::unique("msg_"), content, &logprobs);
        }
        for call in calls {
            self.add_call(&ids::unique("fc_"), call);
        }
    }

    /// The response: in progress without a finish, failed with an error.
    pub(super) fn value(&self, finish: Option<&Finish>, error: Option<&ApiError>) -> Value {
        let (status, incomplete) = match finish.map(|finish| finish.reason) {
            _ if error.is_some() => ("failed", Value::Null),
            None => ("in_progress", Value::Null),
            Some(Reason::Length | Reason::Context) => ("incomplete", json!({"reason": "max_output_tokens"})),
            Some(_) => ("completed", Value::Null),
        };
        let mut value = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": (status == "completed").then(ids::now),
            "status": status,
            "error": error.map(|error| json!({"code": "server_error", "message": error.message})),
            "incomplete_details": incomplete,
            "output": self.output,
            "usage": finish.map(usage),
        });
        if let Some(map) = value.as_object_mut() {
            map.extend(self.about.repeated.clone());
        }
        value
    }

    /// Stores the response for those that come after it.
    pub(super) fn keep(&mut self, app: &App, value: &Value) {
        if !self.about.store {
            return;
        }
        let mut items = std::mem::take(&mut self.about.items);
        let input = items.len();
        items.append(&mut self.items);
        let mut store = app.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.insert(self.owner, self.id.clone(), items, input, value.clone());
    }
}

fn usage(finish: &Finish) -> Value {
    let usage = &finish.usage;
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": finish.reasoning_tokens},
        "total_tokens": usage.prompt + usage.completion,
    })
}
