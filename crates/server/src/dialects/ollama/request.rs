//! Parsing of Ollama's requests.

use crate::dialects::content::no_media;
use crate::duration::parse_duration;
use crate::error::ApiError;
use crate::items::{Conversation, ConversationItem, MessageText, Role, read_function_tool};
use crate::json::{ObjectFields, kind};
use crate::limits::Limits;
use crate::model::ServedModel;
use crate::params::{self, AnswerParams, OutputConstraint};
use serde_json::Value;
use std::time::Duration;

/// Parses samplers and limits in `options`, and the constraint in `format`.
pub(super) fn read_params(
    fields: &ObjectFields<'_>,
    served: &ServedModel,
    limits: &Limits,
) -> Result<AnswerParams, ApiError> {
    let mut params = match fields.object("options")? {
        None => AnswerParams::new(&served.about),
        Some(options) => {
            let mut params = AnswerParams::read(&options, served, limits)?;
            // `AnswerParams` reads `n`, which this API does not have.
            params.n = 1;
            // Ollama's −1 means no limit, and −2 until the context is full. Both are the same here.
            if let Some(count) = options.i64("num_predict")? {
                let asked = if count == -2 { None } else { params::max_tokens(&options, &["num_predict"])? };
                params.max_tokens = asked;
            }
            params
        }
    };
    params.shape = match fields.get("format") {
        None => OutputConstraint::Free,
        // An empty `format` is none.
        Some(Value::String(word)) if word.is_empty() => OutputConstraint::Free,
        Some(Value::String(word)) if word == "json" => OutputConstraint::Json,
        Some(schema @ Value::Object(_)) => OutputConstraint::schema(schema, "format", limits)?,
        Some(other) => {
            return Err(
                fields.error("format", format!("expected \"json\" or a schema, found {}", kind(other)))
            );
        }
    };
    Ok(params)
}

/// Parses `think`: a boolean or an effort.
fn read_think(fields: &ObjectFields<'_>, conversation: &mut Conversation) -> Result<(), ApiError> {
    match fields.get("think") {
        None => {}
        Some(Value::Bool(on)) => conversation.think(*on),
        Some(Value::String(effort)) => conversation.set_effort(effort),
        Some(other) => {
            return Err(
                fields.error("think", format!("expected true, false or a word, found {}", kind(other)))
            );
        }
    }
    Ok(())
}

fn no_images(fields: &ObjectFields<'_>) -> Result<(), ApiError> {
    match fields.array("images")? {
        Some(images) if !images.is_empty() => Err(fields.error("images", no_media("image"))),
        _ => Ok(()),
    }
}

/// Parses the conversation of `/api/chat`.
pub(super) fn read_chat(fields: &ObjectFields<'_>, limits: &Limits) -> Result<Conversation, ApiError> {
    let messages = fields.objects("messages")?;
    limits.check("messages", "messages", messages.len(), limits.messages)?;
    let mut items = Vec::with_capacity(messages.len());
    for message in &messages {
        no_images(message)?;
        read_message(message, &mut items)?;
    }
    let mut conversation = Conversation::new(items);
    let tools = fields.objects("tools")?;
    limits.check("tools", "tools", tools.len(), limits.tools)?;
    for tool in &tools {
        let function = tool.object("function")?.ok_or_else(|| tool.missing("function"))?;
        read_function_tool(&function, "parameters", limits, &mut conversation.tools)?;
    }
    read_think(fields, &mut conversation)?;
    Ok(conversation)
}

fn read_message(message: &ObjectFields<'_>, items: &mut Vec<ConversationItem>) -> Result<(), ApiError> {
    let text = MessageText::from(message.str("content")?.unwrap_or_default());
    match message.require_str("role")? {
        "system" => items.push(ConversationItem::Message { role: Role::System, name: None, text }),
        "user" => items.push(ConversationItem::Message { role: Role::User, name: None, text }),
        "tool" => {
            // Ollama's tool results have the tool's name; only newer clients also send the call's
            // ID.
            let name = message.str("tool_name")?.or(message.str("name")?).map(str::to_owned);
            let id =
                message.str("tool_call_id")?.map_or_else(|| last_call(items, name.as_deref()), str::to_owned);
            items.push(ConversationItem::ToolResult { id, name, text });
        }
        "assistant" => {
            if let Some(thinking) = message.str("thinking")?.filter(|text| !text.is_empty()) {
                items.push(ConversationItem::Reasoning(thinking.to_owned()));
            }
            let calls = message.objects("tool_calls")?;
            if !text.is_empty() || calls.is_empty() {
                items.push(ConversationItem::Message { role: Role::Assistant, name: None, text });
            }
            for call in calls {
                let function = call.object("function")?.ok_or_else(|| call.missing("function"))?;
                let arguments = match function.get("arguments") {
                    None => "{}".to_owned(),
                    Some(Value::String(text)) => text.clone(),
                    Some(value) => value.to_string(),
                };
                // Older clients send calls without IDs. The index makes them unique in the
                // conversation.
                let id = call.str("id")?.map_or_else(|| format!("call_{}", items.len()), str::to_owned);
                items.push(ConversationItem::ToolCall {
                    id,
                    name: function.require_str("name")?.to_owned(),
                    arguments,
                });
            }
        }
        other => {
            let problem = format!("unknown value {other:?}, expected system, user, assistant or tool");
            return Err(message.error("role", problem));
        }
    }
    Ok(())
}

/// The call of a result without an ID: the last call of the same name.
fn last_call(items: &[ConversationItem], name: Option<&str>) -> String {
    let id = items.iter().rev().find_map(|item| match item {
        ConversationItem::ToolCall { id, name: called, .. } if name.is_none_or(|name| name == called) => {
            Some(id.clone())
        }
        _ => None,
    });
    id.unwrap_or_default()
}

/// Parses the conversation of `/api/generate` without `raw`.
pub(super) fn read_generate(fields: &ObjectFields<'_>) -> Result<Conversation, ApiError> {
    no_images(fields)?;
    let prompt = fields.str("prompt")?.unwrap_or_default().to_owned();
    let system = fields.str("system")?.filter(|text| !text.is_empty());
    let mut items = Vec::new();
    if let Some(system) = system {
        items.push(ConversationItem::Message { role: Role::System, name: None, text: system.into() });
    }
    items.push(ConversationItem::Message { role: Role::User, name: None, text: prompt.into() });
    let mut conversation = Conversation::new(items);
    read_think(fields, &mut conversation)?;
    Ok(conversation)
}

/// Refuses features that this server does not have and that would change the prompt.
pub(super) fn check_generate(fields: &ObjectFields<'_>) -> Result<(), ApiError> {
    if fields.str("template")?.is_some_and(|text| !text.is_empty()) {
        return Err(fields.error(
            "template",
            "this is not supported: remove it, or use `raw` and a prompt that you render",
        ));
    }
    Ok(())
}

/// Parses `keep_alive`, the time that the model stays loaded. `None`: not set; `Some(None)`:
/// forever.
pub(super) fn read_keep_alive(fields: &ObjectFields<'_>) -> Result<Option<Option<Duration>>, ApiError> {
    let Some(value) = fields.get("keep_alive") else { return Ok(None) };
    let time = match value {
        // Negative numbers do not convert to a duration, so they mean forever.
        Value::Number(number) => number.as_f64().map(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        Value::String(text) if text.trim_start().starts_with('-') => Some(None),
        Value::String(text) => parse_duration(text).map(Some),
        _ => None,
    };
    let problem =
        || fields.error("keep_alive", "expected seconds, or a time such as \"5m\"; -1 means forever");
    time.map(Some).ok_or_else(problem)
}
