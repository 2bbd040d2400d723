//! Complete messages of Anthropic's Messages API.

use super::request::MessageSettings;
use crate::answer::{AnswerFinish, AnswerOutcome, EndReason, complete_members};
use crate::ids;
use latent_engine::scheduler::JobUsage;
use serde_json::{Value, json};

pub(super) fn message(about: &MessageSettings, outcome: &AnswerOutcome) -> Value {
    let AnswerOutcome { reasoning, content, calls, finish, .. } = outcome;
    let mut blocks = Vec::new();
    if !reasoning.is_empty() {
        // Clients send the signature back. It is empty, since nothing verifies it.
        blocks.push(json!({"type": "thinking", "thinking": reasoning, "signature": ""}));
    }
    if !content.is_empty() || (calls.is_empty() && reasoning.is_empty()) {
        blocks.push(json!({"type": "text", "text": content, "citations": null}));
    }
    for call in calls {
        // `input` is an object, so a call that was cut off keeps only its complete members.
        let input = complete_members(&call.arguments);
        blocks.push(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}));
    }
    json!({
        "id": ids::unique("msg_"),
        "type": "message",
        "role": "assistant",
        "model": about.model,
        "content": blocks,
        "stop_reason": stop_reason(finish),
        "stop_sequence": finish.stop,
        "usage": usage(&finish.usage),
    })
}

pub(super) fn stop_reason(finish: &AnswerFinish) -> &'static str {
    match finish.reason {
        EndReason::End => "end_turn",
        EndReason::Stop => "stop_sequence",
        EndReason::Length => "max_tokens",
        EndReason::Context => "model_context_window_exceeded",
        EndReason::Tools => "tool_use",
    }
}

/// `usage`. Anthropic's `input_tokens` excludes tokens from the cache.
pub(super) fn usage(usage: &JobUsage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "service_tier": "standard",
    })
}
