//! Items of the Responses API as JSON text. As JSON values, log-probabilities would take many times
//! the memory.

use crate::ids;
use crate::items::{ConversationItem, Role};
use serde_json::{Value, json};

/// The text of a JSON object with one more field, whose value is JSON text. `fields` must not be
/// empty.
pub(super) fn object_with(fields: &Value, name: &str, json: &str) -> String {
    let mut text = fields.to_string();
    // Removes the closing brace.
    text.pop();
    // One allocation, since `json` may have megabytes. 5 is the punctuation below.
    text.reserve_exact(name.len() + json.len() + 5);
    text.extend([",\"", name, "\":", json, "}"]);
    text
}

/// A message of the assistant.
pub(super) fn message(id: &str, text: &str, logprobs: &str, status: &str) -> String {
    let value = json!({"id": id, "type": "message", "status": status, "role": "assistant"});
    object_with(&value, "content", &format!("[{}]", output_text(text, logprobs)))
}

pub(super) fn output_text(text: &str, logprobs: &str) -> String {
    object_with(&json!({"type": "output_text", "text": text, "annotations": []}), "logprobs", logprobs)
}

pub(super) fn reasoning(id: &str, text: &str, status: &str) -> String {
    let content = json!([{"type": "reasoning_text", "text": text}]);
    json!({"id": id, "type": "reasoning", "summary": [], "content": content, "encrypted_content": null, "status": status})
        .to_string()
}

/// The client's names of a called tool.
#[derive(Clone, Copy)]
pub(super) struct CallName<'a> {
    pub(super) namespace: Option<&'a str>,
    pub(super) name: &'a str,
}

pub(super) fn function_call(
    id: &str,
    call_id: &str,
    name: CallName<'_>,
    arguments: &str,
    status: &str,
) -> String {
    let mut value = json!({
        "id": id, "type": "function_call", "call_id": call_id, "name": name.name, "arguments": arguments, "status": status,
    });
    if let Some(namespace) = name.namespace {
        value["namespace"] = namespace.into();
    }
    value.to_string()
}

/// A new ID for an input item.
pub(super) fn input_id(item: &ConversationItem) -> String {
    ids::unique(match item {
        ConversationItem::Message { .. } => "msg_",
        ConversationItem::Reasoning(_) => "rs_",
        ConversationItem::ToolCall { .. } => "fc_",
        ConversationItem::ToolResult { .. } => "fco_",
    })
}

pub(super) fn input_item(id: &str, item: &ConversationItem) -> String {
    match item {
        ConversationItem::Message { role: Role::Assistant, text, .. } => message(id, &text.joined(), "[]", "completed"),
        ConversationItem::Message { role, text, .. } => json!({
            "id": id, "type": "message", "status": "completed", "role": role.name(),
            "content": [{"type": "input_text", "text": text.joined()}],
        })
        .to_string(),
        ConversationItem::Reasoning(text) => reasoning(id, text, "completed"),
        ConversationItem::ToolCall { id: call_id, name, arguments } => {
            function_call(id, call_id, CallName { namespace: None, name }, arguments, "completed")
        }
        ConversationItem::ToolResult { id: call_id, text, .. } => json!({
            "id": id, "type": "function_call_output", "call_id": call_id, "output": text.joined(), "status": "completed",
        })
        .to_string(),
    }
}
