//! Parsing of requests of OpenAI's Responses API.

use crate::dialects::content::{content_text, no_media, result_text};
use crate::dialects::openai_chat::{left_out, read_switches, read_tool_choice};
use crate::dialects::prepare::ChatRequest;
use crate::error::{ApiError, ErrorKind};
use crate::items::{
    Conversation, ConversationItem, MAX_TOOL_NAME, MessageText, NamespacedTool, Role, Tool, qualified_name,
    read_function_tool, refuse_custom_tool,
};
use crate::json::{ObjectFields, kind};
use crate::limits::Limits;
use crate::model::ServedModel;
use crate::params::{self, AnswerParams, OutputConstraint};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write;

/// Settings of the response, and the fields of the request that it repeats.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseSettings {
    pub(super) stream: bool,
    pub(super) store: bool,
    pub(super) logprobs: bool,
    /// Report the progress of the prompt (llama.cpp's `return_progress`).
    pub(super) progress: bool,
    /// Report timings with each delta of text (llama.cpp's `timings_per_token`).
    pub(super) stream_timings: bool,
    /// Fields of the request that the response repeats, as the text of a JSON object.
    pub(super) repeated: String,
    /// The conversation, if the response will be stored.
    pub(super) items: Vec<ConversationItem>,
    /// Tools in namespaces by their qualified names.
    pub(super) namespaced: HashMap<String, NamespacedTool>,
}

/// Looks up the conversation of a stored response.
type ConversationLookup<'a> = &'a dyn Fn(&str) -> Option<Vec<ConversationItem>>;

pub(super) fn read(
    fields: &ObjectFields<'_>,
    served: &ServedModel,
    limits: &Limits,
    earlier: ConversationLookup<'_>,
) -> Result<ChatRequest<ResponseSettings>, ApiError> {
    refuse(fields)?;
    let conversation = read_conversation(fields, limits, earlier)?;
    let mut params = AnswerParams::read(fields, served, limits)?;
    // `AnswerParams` reads `n`, which this API does not have.
    params.n = 1;
    // `AnswerParams` leaves this field to the dialects, because its names differ.
    params.max_tokens = params::max_tokens(fields, &["max_output_tokens"])?;
    if params.max_tokens == Some(0) {
        return Err(fields.error("max_output_tokens", "expected at least 1"));
    }
    params.shape = read_shape(fields, limits)?;
    let wanted = params::texts(fields, "include")?.iter().any(|word| word == "message.output_text.logprobs");
    let top = fields.usize("top_logprobs")?;
    limits.check("top_logprobs", "top_logprobs", top.unwrap_or(0), limits.top_logprobs)?;
    let default = served.about.defaults.logprobs;
    // OpenAI needs `include`; `top_logprobs` alone is accepted too. The server's default applies
    // only to requests without both.
    let unset = fields.get("include").is_none() && top.is_none();
    let logprobs = wanted || top.is_some_and(|top| top > 0) || (unset && default.is_some());
    params.logprobs = logprobs.then(|| top.or(default).unwrap_or(0));
    let about = ResponseSettings {
        stream: fields.bool("stream")?.unwrap_or(false),
        store: fields.bool("store")?.unwrap_or(true),
        logprobs,
        progress: fields.bool("return_progress")?.unwrap_or(false),
        stream_timings: fields.bool("timings_per_token")?.unwrap_or(false),
        repeated: repeated(fields, served, &params)?,
        items: Vec::new(),
        namespaced: conversation
            .tools
            .iter()
            .filter_map(|tool| Some((tool.name.clone(), tool.namespaced.clone()?)))
            .collect(),
    };
    Ok(ChatRequest { conversation, params, about })
}

/// Refuses features that this server does not have and that a client cannot do without.
fn refuse(fields: &ObjectFields<'_>) -> Result<(), ApiError> {
    if fields.bool("background")?.unwrap_or(false) {
        return Err(
            fields.error("background", "background responses are not supported: stream the response instead")
        );
    }
    if fields.get("conversation").is_some() {
        return Err(fields.error(
            "conversation",
            "conversations are not supported: use `previous_response_id`, or send all items",
        ));
    }
    if fields.get("prompt").is_some() {
        return Err(
            fields.error("prompt", "stored prompts are not supported: send `instructions` and `input`")
        );
    }
    Ok(())
}

/// The fields of the request that a response repeats, with defaults for missing ones. OpenAI's
/// packages require them.
fn repeated(
    fields: &ObjectFields<'_>,
    served: &ServedModel,
    params: &AnswerParams,
) -> Result<String, ApiError> {
    // By way of text, so that the f32 0.7 is shown as 0.7 and not as 0.699999988079071.
    let real = |value: f32| value.to_string().parse::<f64>().unwrap_or_default();
    let mut text = json!({
        "model": fields.str("model")?.unwrap_or(&served.about.id),
        "temperature": real(params.sampling.temperature),
        "top_p": real(params.sampling.top_p),
        "presence_penalty": real(params.sampling.presence_penalty),
        "frequency_penalty": real(params.sampling.frequency_penalty),
        "service_tier": "default",
        "background": false,
    })
    .to_string();
    text.pop();
    // Written as text at once: tools can be large, and the response repeats them in several events.
    let mut copy = |name: &str, default: Value| {
        // Writing to a string cannot fail.
        let _ = write!(text, ",\"{name}\":{}", fields.get(name).unwrap_or(&default));
    };
    copy("instructions", Value::Null);
    copy("max_output_tokens", Value::Null);
    copy("max_tool_calls", Value::Null);
    copy("metadata", json!({}));
    copy("parallel_tool_calls", true.into());
    copy("previous_response_id", Value::Null);
    copy("prompt_cache_key", Value::Null);
    copy("reasoning", json!({"effort": null, "summary": null}));
    copy("safety_identifier", Value::Null);
    copy("store", true.into());
    copy("text", json!({"format": {"type": "text"}}));
    copy("tool_choice", "auto".into());
    copy("tools", json!([]));
    copy("top_logprobs", 0.into());
    copy("truncation", "disabled".into());
    copy("user", Value::Null);
    text.push('}');
    text.shrink_to_fit();
    Ok(text)
}

fn read_shape(fields: &ObjectFields<'_>, limits: &Limits) -> Result<OutputConstraint, ApiError> {
    // Without `text`, the fields of chat completions and vLLM are accepted.
    let Some(text) = fields.object("text")? else { return params::shape(fields, limits) };
    let Some(format) = text.object("format")? else { return Ok(OutputConstraint::Free) };
    let shape = match format.require_str("type")? {
        "text" => OutputConstraint::Free,
        "json_object" => OutputConstraint::Json,
        "json_schema" => {
            let schema = format.get("schema").ok_or_else(|| format.missing("schema"))?;
            OutputConstraint::schema(schema, "text.format", limits)?
        }
        "grammar" => OutputConstraint::Grammar(format.require_str("grammar")?.to_owned()),
        other => {
            let problem =
                format!("unknown value {other:?}, expected text, json_object, json_schema or grammar");
            return Err(format.error("type", problem));
        }
    };
    shape.check("text.format", limits)?;
    Ok(shape)
}

pub(super) fn read_conversation(
    fields: &ObjectFields<'_>,
    limits: &Limits,
    earlier: ConversationLookup<'_>,
) -> Result<Conversation, ApiError> {
    let mut items = Vec::new();
    if let Some(instructions) = fields.str("instructions")? {
        items.push(ConversationItem::Message { role: Role::System, name: None, text: instructions.into() });
    }
    if let Some(previous) = fields.str("previous_response_id")? {
        let Some(before) = earlier(previous) else {
            let problem = format!(
                "no stored response {previous:?}: it was not stored, or was dropped; send all items instead"
            );
            return Err(ApiError {
                kind: ErrorKind::NotFound,
                ..fields.error("previous_response_id", problem)
            }
            .with_code("previous_response_not_found"));
        };
        // As specified by OpenAI, the instructions of earlier responses do not carry over.
        let system =
            |item: &ConversationItem| matches!(item, ConversationItem::Message { role: Role::System, .. });
        // Only the leading ones: system messages within the conversation stay.
        items.extend(before.into_iter().skip_while(system));
    }
    read_input(fields, limits, &mut items)?;
    // Some clients probe the server with an empty input. Templates need a message of the user.
    let asked =
        |item: &ConversationItem| !matches!(item, ConversationItem::Message { role: Role::System, .. });
    if !items.iter().any(asked) {
        items.push(ConversationItem::Message { role: Role::User, name: None, text: MessageText::default() });
    }
    limits.check("input", "messages", items.len(), limits.messages)?;
    let mut conversation = Conversation::new(items);
    read_tools(fields, limits, &mut conversation)?;
    read_switches(fields, limits, &mut conversation)?;
    Ok(conversation)
}

fn read_input(
    fields: &ObjectFields<'_>,
    limits: &Limits,
    items: &mut Vec<ConversationItem>,
) -> Result<(), ApiError> {
    match fields.get("input") {
        None => Ok(()),
        Some(Value::String(text)) => {
            items.push(ConversationItem::Message {
                role: Role::User,
                name: None,
                text: text.as_str().into(),
            });
            Ok(())
        }
        Some(Value::Array(list)) => {
            limits.check("input", "messages", list.len(), limits.messages)?;
            fields.objects("input")?.iter().try_for_each(|item| read_item(item, items))
        }
        Some(other) => {
            Err(fields.error("input", format!("expected a string or a list of items, found {}", kind(other))))
        }
    }
}

fn read_item(item: &ObjectFields<'_>, items: &mut Vec<ConversationItem>) -> Result<(), ApiError> {
    match item.str("type")? {
        None | Some("message") => {
            let role = match item.require_str("role")? {
                "system" | "developer" => Role::System,
                "user" => Role::User,
                "assistant" => Role::Assistant,
                other => {
                    let problem =
                        format!("unknown value {other:?}, expected system, developer, user or assistant");
                    return Err(item.error("role", problem));
                }
            };
            items.push(ConversationItem::Message { role, name: None, text: content_text(item, "content")? });
        }
        Some("reasoning") => {
            let text = reasoning_text(item)?;
            if !text.is_empty() {
                items.push(ConversationItem::Reasoning(text));
            }
        }
        Some("function_call") => items.push(ConversationItem::ToolCall {
            id: item.require_str("call_id")?.to_owned(),
            name: tool_name(item)?,
            arguments: item.str("arguments")?.unwrap_or_default().to_owned(),
        }),
        // A call of a `custom` tool in a conversation that began with another model.
        Some("custom_tool_call") => items.push(ConversationItem::ToolCall {
            id: item.require_str("call_id")?.to_owned(),
            name: tool_name(item)?,
            arguments: json!({"input": item.str("input")?.unwrap_or_default()}).to_string(),
        }),
        Some("function_call_output" | "custom_tool_call_output") => {
            items.push(ConversationItem::ToolResult {
                id: item.require_str("call_id")?.to_owned(),
                name: None,
                text: result_text(item, "output")?,
            })
        }
        Some("item_reference") => {
            return Err(item.error(
                "type",
                "item references are not supported: send the item, or use `previous_response_id`",
            ));
        }
        Some(other @ ("input_image" | "input_audio" | "input_file")) => {
            return Err(item.error("type", no_media(other)));
        }
        // Such as calls of tools that OpenAI's servers run.
        Some(other) => left_out("an item", other),
    }
    Ok(())
}

/// The qualified name of a tool.
fn tool_name(fields: &ObjectFields<'_>) -> Result<String, ApiError> {
    Ok(qualified_name(fields.str("namespace")?, fields.require_str("name")?))
}

/// The text of a reasoning item, or its summary if OpenAI has encrypted the text.
fn reasoning_text(item: &ObjectFields<'_>) -> Result<String, ApiError> {
    for name in ["content", "summary"] {
        let mut texts = Vec::new();
        for part in item.objects(name)? {
            texts.push(part.str("text")?.unwrap_or_default().to_owned());
        }
        let text = MessageText::of_parts(texts);
        if !text.is_empty() {
            return Ok(text.joined());
        }
    }
    Ok(String::new())
}

fn read_tools(
    fields: &ObjectFields<'_>,
    limits: &Limits,
    conversation: &mut Conversation,
) -> Result<(), ApiError> {
    let tools = fields.objects("tools")?;
    limits.check("tools", "tools", tools.len(), limits.tools)?;
    for tool in &tools {
        match tool.require_str("type")? {
            "function" => read_function_tool(tool, "parameters", limits, &mut conversation.tools)?,
            "namespace" => read_namespace(tool, limits, &mut conversation.tools)?,
            "custom" => return Err(refuse_custom_tool(tool)),
            other => left_out("a tool", other),
        }
    }
    read_tool_choice(fields, false, tool_name, conversation)
}

/// Parses the functions in a namespace. Codex groups the tools of an MCP server in one.
fn read_namespace(
    namespace: &ObjectFields<'_>,
    limits: &Limits,
    tools: &mut Vec<Tool>,
) -> Result<(), ApiError> {
    for tool in namespace.objects("tools")? {
        let name = namespace.require_str("name")?;
        match tool.require_str("type")? {
            "function" => {
                limits.check("tools", "tools", tools.len() + 1, limits.tools)?;
                read_function_tool(&tool, "parameters", limits, tools)?;
                if let Some(tool) = tools.last_mut() {
                    let own = std::mem::take(&mut tool.name);
                    tool.name = qualified_name(Some(name), &own);
                    tool.namespaced = Some(NamespacedTool { namespace: name.to_owned(), name: own });
                }
            }
            "custom" => return Err(refuse_custom_tool(&tool)),
            other => left_out("a tool", other),
        }
    }
    // `read_function_tool` has checked the name without the namespace.
    if let Some(long) = tools.last().filter(|tool| tool.name.len() > MAX_TOOL_NAME) {
        let problem = format!("its tool {:?} has a name of more than {MAX_TOOL_NAME} characters", long.name);
        return Err(namespace.error("name", problem));
    }
    Ok(())
}
