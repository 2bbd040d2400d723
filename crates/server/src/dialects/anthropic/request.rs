//! Parsing of requests of Anthropic's Messages API.

use crate::dialects::content::{no_media, result_text};
use crate::dialects::openai_chat::{left_out, read_kwargs};
use crate::dialects::prepare::ChatRequest;
use crate::error::ApiError;
use crate::items::{
    Conversation, ConversationItem, MessageText, ReasoningLimitChoice, Role, ToolChoice, read_function_tool,
};
use crate::json::{ObjectFields, kind};
use crate::limits::Limits;
use crate::model::ServedModel;
use crate::params::{self, AnswerParams, OutputConstraint};
use crate::reasoning::ReasoningLimit;
use serde_json::Value;

/// Settings of the response.
#[derive(Clone, Debug)]
pub(super) struct MessageSettings {
    pub(super) model: String,
    pub(super) stream: bool,
}

pub(super) fn read(
    fields: &ObjectFields<'_>,
    served: &ServedModel,
    limits: &Limits,
) -> Result<ChatRequest<MessageSettings>, ApiError> {
    let conversation = read_conversation(fields, limits)?;
    let mut params = AnswerParams::read(fields, served, limits)?;
    // `AnswerParams` reads `n`, which this API does not have.
    params.n = 1;
    let most = params::max_tokens(fields, &["max_tokens"])?;
    // Required by Anthropic's API.
    params.max_tokens = Some(most.ok_or_else(|| fields.missing("max_tokens"))?);
    if params.max_tokens == Some(0) {
        return Err(fields.error("max_tokens", "expected at least 1"));
    }
    // `AnswerParams::read` reads OpenAI's `stop`, which is not a field of this API.
    params.stop.clone_from(&served.about.defaults.stop);
    params.read_stop(fields, "stop_sequences", limits)?;
    params.shape = read_shape(fields, limits)?;
    let about = MessageSettings {
        model: fields.str("model")?.unwrap_or(&served.about.id).to_owned(),
        stream: fields.bool("stream")?.unwrap_or(false),
    };
    Ok(ChatRequest { conversation, params, about })
}

fn read_shape(fields: &ObjectFields<'_>, limits: &Limits) -> Result<OutputConstraint, ApiError> {
    let config = fields.object("output_config")?;
    let format = match &config {
        Some(config) => config.object("format")?,
        // The name in the beta of structured outputs.
        None => fields.object("output_format")?,
    };
    let Some(format) = format else { return Ok(OutputConstraint::Free) };
    match format.require_str("type")? {
        "json_schema" => {
            let schema = format.get("schema").ok_or_else(|| format.missing("schema"))?;
            OutputConstraint::schema(schema, "output_config.format.schema", limits)
        }
        "text" => Ok(OutputConstraint::Free),
        other => Err(format.error("type", format!("unknown value {other:?}, expected \"json_schema\""))),
    }
}

/// Parses system text, messages, tools and thinking. `cache_control` is ignored: the server caches
/// every prefix.
pub(super) fn read_conversation(
    fields: &ObjectFields<'_>,
    limits: &Limits,
) -> Result<Conversation, ApiError> {
    let list = fields.array("messages")?.ok_or_else(|| fields.missing("messages"))?;
    if list.is_empty() {
        return Err(fields.error("messages", "at least one message is needed"));
    }
    limits.check("messages", "messages", list.len(), limits.messages)?;
    let mut reader = Reader::default();
    reader.system(fields)?;
    for message in fields.objects("messages")? {
        reader.message(&message)?;
    }
    let mut conversation = Conversation::new(reader.items);
    let tools = fields.objects("tools")?;
    limits.check("tools", "tools", tools.len(), limits.tools)?;
    for tool in &tools {
        match tool.str("type")? {
            // Anthropic's `custom` is an ordinary function, unlike OpenAI's.
            None | Some("custom") => {
                read_function_tool(tool, "input_schema", limits, &mut conversation.tools)?;
            }
            // Tools that Anthropic's servers run, such as `web_search_20250305`.
            Some(other) => left_out("a tool", other),
        }
    }
    if let Some(choice) = fields.object("tool_choice")? {
        conversation.tool_choice = match choice.require_str("type")? {
            "auto" => ToolChoice::Auto,
            "any" => ToolChoice::Required,
            "none" => ToolChoice::None,
            "tool" => ToolChoice::Named(choice.require_str("name")?.to_owned()),
            other => {
                return Err(choice
                    .error("type", format!("unknown value {other:?}, expected auto, any, tool or none")));
            }
        };
        conversation.parallel = !choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
    }
    conversation.tool_choice.check("tool_choice", &conversation.tools, None, tools.len())?;
    read_thinking(fields, limits, &mut conversation)?;
    Ok(conversation)
}

fn read_thinking(
    fields: &ObjectFields<'_>,
    limits: &Limits,
    conversation: &mut Conversation,
) -> Result<(), ApiError> {
    read_kwargs(fields, limits, conversation)?;
    if let Some(thinking) = fields.object("thinking")? {
        match thinking.require_str("type")? {
            "enabled" => {
                conversation.think(true);
                if let Some(tokens) = thinking.usize("budget_tokens")? {
                    let limit = ReasoningLimit { tokens, message: String::new() };
                    conversation.reasoning_limit = ReasoningLimitChoice::Limited(limit);
                }
            }
            "disabled" => conversation.think(false),
            // The model decides.
            "adaptive" | "between-tools" => {}
            other => {
                let problem =
                    format!("unknown value {other:?}, expected enabled, disabled, adaptive or between-tools");
                return Err(thinking.error("type", problem));
            }
        }
    }
    // Not `set_effort`, which enables thinking: Claude Code sends an effort in every request.
    if let Some(config) = fields.object("output_config")?
        && let Some(effort) = config.str("effort")?
    {
        conversation.kwargs.entry("reasoning_effort").or_insert_with(|| effort.into());
    }
    Ok(())
}

/// The error for a message without content.
const EMPTY: &str = "the content is empty: a user message needs a text or a block";

/// The start of a block that Claude Code puts before its system text, for Anthropic's billing.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

#[derive(Default)]
struct Reader {
    items: Vec<ConversationItem>,
}

impl Reader {
    fn push(&mut self, role: Role, text: impl Into<MessageText>) {
        self.items.push(ConversationItem::Message { role, name: None, text: text.into() });
    }

    fn system(&mut self, fields: &ObjectFields<'_>) -> Result<(), ApiError> {
        let text = match fields.get("system") {
            None => return Ok(()),
            Some(Value::String(text)) => MessageText::from(text.as_str()),
            Some(Value::Array(_)) => {
                let mut texts = Vec::new();
                for (i, block) in fields.objects("system")?.iter().enumerate() {
                    let text = block.require_str("text")?;
                    // The block differs in every request. At the start of the prompt it would
                    // defeat the prefix cache.
                    if i > 0 || !text.starts_with(BILLING_HEADER) {
                        texts.push(text.to_owned());
                    }
                }
                MessageText::of_parts(texts)
            }
            Some(other) => {
                return Err(fields.error(
                    "system",
                    format!("expected a string or a list of blocks, found {}", kind(other)),
                ));
            }
        };
        if !text.is_empty() {
            self.push(Role::System, text);
        }
        Ok(())
    }

    fn message(&mut self, message: &ObjectFields<'_>) -> Result<(), ApiError> {
        let role = match message.require_str("role")? {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            // Claude Code sends system messages within the conversation.
            "system" => Role::System,
            other => {
                return Err(
                    message.error("role", format!("unknown value {other:?}, expected user or assistant"))
                );
            }
        };
        match message.get("content") {
            None => Err(message.missing("content")),
            Some(Value::String(text)) if text.is_empty() && role != Role::Assistant => {
                Err(message.error("content", EMPTY))
            }
            Some(Value::String(text)) => {
                self.push(role, text.as_str());
                Ok(())
            }
            Some(Value::Array(list)) if list.is_empty() && role != Role::Assistant => {
                Err(message.error("content", EMPTY))
            }
            Some(Value::Array(_)) => self.blocks(role, &message.objects("content")?),
            Some(other) => {
                let problem = format!("expected a string or a list of blocks, found {}", kind(other));
                Err(message.error("content", problem))
            }
        }
    }

    fn blocks(&mut self, role: Role, blocks: &[ObjectFields<'_>]) -> Result<(), ApiError> {
        let mut texts = Vec::new();
        for block in blocks {
            match block.require_str("type")? {
                "text" => texts.push(block.require_str("text")?.to_owned()),
                "thinking" => {
                    self.items.push(ConversationItem::Reasoning(block.require_str("thinking")?.to_owned()))
                }
                // Encrypted reasoning of Anthropic's models, in a conversation that began
                // elsewhere.
                "redacted_thinking" => {}
                "tool_use" => {
                    self.push_texts(role, &mut texts);
                    let input = block.get("input").map_or_else(|| "{}".to_owned(), Value::to_string);
                    let (id, name) =
                        (block.require_str("id")?.to_owned(), block.require_str("name")?.to_owned());
                    self.items.push(ConversationItem::ToolCall { id, name, arguments: input });
                }
                // Texts of the message are pushed after all results: templates expect results
                // directly after their calls.
                "tool_result" => self.result(block)?,
                other => return Err(block.error("type", no_media(other))),
            }
        }
        self.push_texts(role, &mut texts);
        Ok(())
    }

    /// Pushes a message with the collected texts, if any.
    fn push_texts(&mut self, role: Role, texts: &mut Vec<String>) {
        let text = MessageText::of_parts(std::mem::take(texts));
        if !text.is_empty() {
            self.push(role, text);
        }
    }

    fn result(&mut self, block: &ObjectFields<'_>) -> Result<(), ApiError> {
        let id = block.require_str("tool_use_id")?.to_owned();
        let mut text = result_text(block, "content")?;
        // Chat templates have no field for failed calls.
        if block.bool("is_error")?.unwrap_or(false) {
            text = text.prefixed("Error: ");
        }
        self.items.push(ConversationItem::ToolResult { id, name: None, text });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn blocks_become_items() {
        let value = json!({
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "w", "input": {"a": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sun"}], "is_error": true},
                    {"type": "text", "text": "So?"}]},
            ],
            "tools": [{"name": "w", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "web_search"}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        });
        let conversation =
            read_conversation(&ObjectFields::of(&value, "").unwrap(), &Limits::default()).unwrap();
        assert!(!conversation.parallel && !conversation.prefill);
        // System, question, thinking, text, call, result and text.
        assert_eq!(conversation.items.len(), 7);
        assert_eq!(
            conversation.items[5],
            ConversationItem::ToolResult { id: "t1".into(), name: None, text: "Error: sun".into() }
        );
        assert_eq!(conversation.tools.len(), 1);
        assert_eq!(conversation.tool_choice, ToolChoice::Required);
        assert_eq!(conversation.kwargs["enable_thinking"], true);
    }
}
