//! Parsing of requests of OpenAI's chat completions API.

use crate::dialects::content::{content_text, result_text};
use crate::dialects::prepare::ChatRequest;
use crate::error::{ApiError, shortened};
use crate::items::{
    AllowedTools, Conversation, ConversationItem, ReasoningLimitChoice, Role, ToolChoice, read_function_tool,
    refuse_custom_tool,
};
use crate::json::{ObjectFields, kind, text_len};
use crate::limits::Limits;
use crate::model::ServedModel;
use crate::params::{self, AnswerParams};
use crate::reasoning::ReasoningLimit;
use serde_json::{Value, json};

/// Settings of the response.
#[derive(Clone, Debug, Default)]
pub(super) struct ChatSettings {
    pub(super) model: String,
    pub(super) n: usize,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) progress: bool,
    pub(super) stream_timings: bool,
    pub(super) logprobs: bool,
    pub(super) verbose: bool,
    /// The rendered prompt, for `__verbose`.
    pub(super) prompt: String,
}

pub(super) fn read(
    fields: &ObjectFields<'_>,
    served: &ServedModel,
    limits: &Limits,
) -> Result<ChatRequest<ChatSettings>, ApiError> {
    let conversation = read_conversation(fields, limits)?;
    let mut params = AnswerParams::read(fields, served, limits)?;
    // OpenAI deprecated `max_tokens` for `max_completion_tokens`, so the newer name comes first.
    params.max_tokens = params::max_tokens(fields, &["max_completion_tokens", "max_tokens", "n_predict"])?;
    if params.max_tokens == Some(0) {
        return Err(fields.error("max_tokens", "expected at least 1"));
    }
    params.shape = params::shape(fields, limits)?;
    let default = served.about.defaults.logprobs;
    // llama.cpp's `n_probs` means both `logprobs` and `top_logprobs`. 0 disables it.
    let n_probs = fields.usize("n_probs")?.filter(|count| *count > 0);
    if let Some(count) = n_probs {
        limits.check("n_probs", "top_logprobs", count, limits.top_logprobs)?;
    }
    let logprobs = fields.bool("logprobs")?.unwrap_or(n_probs.or(default).is_some());
    let top = fields.usize("top_logprobs")?;
    if let Some(top) = top {
        limits.check("top_logprobs", "top_logprobs", top, limits.top_logprobs)?;
        if !logprobs {
            return Err(fields.error("top_logprobs", "this needs `logprobs`: true"));
        }
    }
    params.logprobs = logprobs.then(|| top.or(n_probs).or(default).unwrap_or(0));
    let options = fields.object("stream_options")?;
    let include_usage = options.as_ref().map(|options| options.bool("include_usage")).transpose()?.flatten();
    let about = ChatSettings {
        model: fields.str("model")?.unwrap_or(&served.about.id).to_owned(),
        n: params.n,
        stream: fields.bool("stream")?.unwrap_or(false),
        include_usage: include_usage.unwrap_or(false),
        progress: fields.bool("return_progress")?.unwrap_or(false),
        stream_timings: fields.bool("timings_per_token")?.unwrap_or(false),
        logprobs,
        verbose: fields.bool("verbose")?.unwrap_or(served.about.defaults.verbose),
        prompt: String::new(),
    };
    Ok(ChatRequest { conversation, params, about })
}

/// Parses messages, tools and the variables of the chat template.
pub(crate) fn read_conversation(
    fields: &ObjectFields<'_>,
    limits: &Limits,
) -> Result<Conversation, ApiError> {
    let list = fields.array("messages")?.ok_or_else(|| fields.missing("messages"))?;
    if list.is_empty() {
        return Err(fields.error("messages", "at least one message is needed"));
    }
    limits.check("messages", "messages", list.len(), limits.messages)?;
    let mut items = Vec::with_capacity(list.len());
    for message in fields.objects("messages")? {
        read_message(&message, &mut items)?;
    }
    let mut conversation = Conversation::new(items);
    conversation.prefill = read_prefill(fields, conversation.prefill)?;
    conversation.prefill_asked = fields.bool("continue_final_message")? == Some(true);
    conversation.generation_prompt = fields.bool("add_generation_prompt")?.unwrap_or(true);
    read_tools(fields, limits, &mut conversation)?;
    read_switches(fields, limits, &mut conversation)?;
    Ok(conversation)
}

/// Logs that an element of an unknown type is ignored.
pub(crate) fn left_out(what: &str, kind: &str) {
    tracing::info!("{what} of type {} is ignored", shortened(format!("{kind:?}")));
}

/// Parses the fields about parallel calls and reasoning that both of OpenAI's APIs have.
pub(crate) fn read_switches(
    fields: &ObjectFields<'_>,
    limits: &Limits,
    conversation: &mut Conversation,
) -> Result<(), ApiError> {
    conversation.parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    read_kwargs(fields, limits, conversation)?;
    read_reasoning(fields, limits, conversation)?;
    let reasoning = fields.object("reasoning")?;
    // `reasoning.effort` is the field of responses; OpenRouter's clients send it in chats too.
    let nested = reasoning.map(|reasoning| reasoning.str("effort")).transpose()?.flatten();
    if let Some(effort) = fields.str("reasoning_effort")?.or(nested) {
        conversation.set_effort(effort);
    }
    Ok(())
}

/// Parses llama.cpp's fields about reasoning: its place in the response, and its limit.
fn read_reasoning(
    fields: &ObjectFields<'_>,
    limits: &Limits,
    conversation: &mut Conversation,
) -> Result<(), ApiError> {
    match fields.str("reasoning_format")? {
        None => {}
        Some("none") => conversation.raw_reasoning = Some(true),
        // `deepseek` is DeepSeek's field `reasoning_content`, which is always sent.
        Some("auto" | "deepseek") => conversation.raw_reasoning = Some(false),
        Some(other) => {
            return Err(fields.error(
                "reasoning_format",
                format!("unknown value {other:?}, expected none, auto or deepseek"),
            ));
        }
    }
    for name in ["reasoning_budget_tokens", "thinking_budget_tokens"] {
        match fields.i64(name)? {
            None => {}
            Some(-1) => conversation.reasoning_limit = ReasoningLimitChoice::Unlimited,
            Some(count) => {
                let tokens = usize::try_from(count).map_err(|_| {
                    fields.error(name, format!("{count} is less than 0; use -1 for no limit"))
                })?;
                conversation.reasoning_limit =
                    ReasoningLimitChoice::Limited(ReasoningLimit { tokens, message: String::new() });
            }
        }
    }
    if let (Some(message), ReasoningLimitChoice::Limited(limit)) =
        (fields.str("reasoning_budget_message")?, &mut conversation.reasoning_limit)
    {
        const NAME: &str = "reasoning_budget_message";
        limits.check(NAME, "stop_bytes × 16", message.len(), limits.stop_bytes * 16)?;
        limit.message = message.to_owned();
    }
    Ok(())
}

/// Parses `chat_template_kwargs`, vLLM's and llama.cpp's variables of the chat template.
pub(crate) fn read_kwargs(
    fields: &ObjectFields<'_>,
    limits: &Limits,
    conversation: &mut Conversation,
) -> Result<(), ApiError> {
    const NAME: &str = "chat_template_kwargs";
    if let Some(kwargs) = fields.object(NAME)? {
        limits.check(NAME, "grammar_bytes", fields.get(NAME).map_or(0, text_len), limits.grammar_bytes)?;
        conversation.kwargs = kwargs.map().clone();
    }
    Ok(())
}

/// Parses `tool_choice`, a word or an object. `name` parses the name of a function. `nested`:
/// `allowed_tools` is in an object of its own, as in chat completions; in responses its fields are
/// flat.
pub(crate) fn read_tool_choice(
    fields: &ObjectFields<'_>,
    nested: bool,
    name: fn(&ObjectFields<'_>) -> Result<String, ApiError>,
    conversation: &mut Conversation,
) -> Result<(), ApiError> {
    let wrong = |problem: String| Err(fields.error("tool_choice", problem));
    conversation.tool_choice = match fields.get("tool_choice") {
        None => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            // `any` is Mistral's and Anthropic's word.
            "required" | "any" => ToolChoice::Required,
            other => return wrong(format!("unknown value {other:?}, expected auto, none or required")),
        },
        Some(choice @ Value::Object(_)) => {
            let choice = ObjectFields::of(choice, fields.path("tool_choice"))?;
            match choice.require_str("type")? {
                "function" => ToolChoice::Named(name(&choice)?),
                word @ "allowed_tools" if nested => {
                    let tools = choice.object(word)?.ok_or_else(|| choice.missing(word))?;
                    AllowedTools::read(&tools, name)?.apply(&mut conversation.allowed)
                }
                "allowed_tools" => AllowedTools::read(&choice, name)?.apply(&mut conversation.allowed),
                other => {
                    let problem =
                        format!("unknown value {other:?}, expected \"function\" or \"allowed_tools\"");
                    return Err(choice.error("type", problem));
                }
            }
        }
        Some(other) => return wrong(format!("expected a string or an object, found {}", kind(other))),
    };
    let given = fields.array("tools")?.map_or(0, Vec::len);
    let (tools, allowed) = (&conversation.tools, conversation.allowed.as_deref());
    conversation.tool_choice.check("tool_choice", tools, allowed, given)
}

/// Whether the assistant's last message is continued: by default as in llama.cpp, unless vLLM's
/// fields are set.
fn read_prefill(fields: &ObjectFields<'_>, last_is_own: bool) -> Result<bool, ApiError> {
    let go_on = fields.bool("continue_final_message")?;
    let fresh = fields.bool("add_generation_prompt")?;
    match (go_on, fresh) {
        (Some(true), Some(true)) => {
            Err(fields
                .error("continue_final_message", "cannot be combined with `add_generation_prompt`: true"))
        }
        (Some(true), _) if !last_is_own => {
            Err(fields.error("continue_final_message", "the last message must be an assistant message"))
        }
        (Some(false), _) | (None, Some(true)) => Ok(false),
        _ => Ok(last_is_own),
    }
}

fn read_message(message: &ObjectFields<'_>, items: &mut Vec<ConversationItem>) -> Result<(), ApiError> {
    let name = message.str("name")?.map(str::to_owned);
    match message.require_str("role")? {
        // OpenAI renamed `system` to `developer` for reasoning models. Templates know only
        // `system`.
        "system" | "developer" => {
            items.push(ConversationItem::Message {
                role: Role::System,
                name,
                text: content_text(message, "content")?,
            });
        }
        "user" => items.push(ConversationItem::Message {
            role: Role::User,
            name,
            text: content_text(message, "content")?,
        }),
        "assistant" => read_assistant(message, items)?,
        // `function` is the role in OpenAI's API before `tools`.
        "tool" | "function" => {
            let id = message.str("tool_call_id")?.unwrap_or_default().to_owned();
            items.push(ConversationItem::ToolResult { id, name, text: result_text(message, "content")? });
        }
        other => {
            let problem =
                format!("unknown value {other:?}, expected system, developer, user, assistant or tool");
            return Err(message.error("role", problem));
        }
    }
    Ok(())
}

fn read_assistant(message: &ObjectFields<'_>, items: &mut Vec<ConversationItem>) -> Result<(), ApiError> {
    // DeepSeek's and llama.cpp's field, then vLLM's and OpenRouter's.
    let reasoning = message.str("reasoning_content")?.or(message.str("reasoning")?);
    if let Some(reasoning) = reasoning.filter(|text| !text.is_empty()) {
        items.push(ConversationItem::Reasoning(reasoning.to_owned()));
    }
    let calls = message.objects("tool_calls")?;
    let text = content_text(message, "content")?;
    if !text.is_empty() || calls.is_empty() {
        items.push(ConversationItem::Message { role: Role::Assistant, name: None, text });
    }
    for (i, call) in calls.iter().enumerate() {
        if let Some(custom) = call.object("custom")? {
            // A call of a `custom` tool in a conversation that began with another model.
            let arguments = json!({"input": custom.str("input")?.unwrap_or_default()}).to_string();
            let id = call.str("id")?.map_or_else(|| format!("call_{i}"), str::to_owned);
            items.push(ConversationItem::ToolCall {
                id,
                name: custom.require_str("name")?.to_owned(),
                arguments,
            });
            continue;
        }
        let function = call.object("function")?.ok_or_else(|| call.missing("function"))?;
        let arguments = match function.get("arguments") {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            // OpenAI's arguments are text, but some clients send the parsed object, as Ollama's API
            // does.
            Some(object @ Value::Object(_)) => object.to_string(),
            Some(other) => {
                return Err(function.error("arguments", format!("expected a string, found {}", kind(other))));
            }
        };
        let id = call.str("id")?.map_or_else(|| format!("call_{i}"), str::to_owned);
        items.push(ConversationItem::ToolCall {
            id,
            name: function.require_str("name")?.to_owned(),
            arguments,
        });
    }
    Ok(())
}

/// The name in `{"type": "function", "function": {"name": …}}`.
fn function_name(fields: &ObjectFields<'_>) -> Result<String, ApiError> {
    let function = fields.object("function")?.ok_or_else(|| fields.missing("function"))?;
    Ok(function.require_str("name")?.to_owned())
}

fn read_tools(
    fields: &ObjectFields<'_>,
    limits: &Limits,
    conversation: &mut Conversation,
) -> Result<(), ApiError> {
    let tools = fields.objects("tools")?;
    limits.check("tools", "tools", tools.len(), limits.tools)?;
    for tool in &tools {
        match tool.str("type")? {
            None | Some("function") => {
                let function = tool.object("function")?.ok_or_else(|| tool.missing("function"))?;
                read_function_tool(&function, "parameters", limits, &mut conversation.tools)?;
            }
            Some("custom") => return Err(refuse_custom_tool(tool)),
            Some(other) => left_out("a tool", other),
        }
    }
    read_tool_choice(fields, true, function_name, conversation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::MessageText;

    fn message(role: &str, content: &str) -> Value {
        json!({"role": role, "content": content})
    }

    fn read(value: Value) -> Result<Conversation, ApiError> {
        read_conversation(&ObjectFields::of(&value, "").unwrap(), &Limits::default())
    }

    #[test]
    fn messages_become_items() {
        let conversation = read(json!({
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
                message("user", "Weather?"),
                {"role": "assistant", "content": null, "reasoning": "hm", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "w", "arguments": "{\"a\":1}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "sun"},
            ],
            "tools": [{"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}, {"type": "web_search"}],
            "tool_choice": {"type": "function", "function": {"name": "w"}},
            "reasoning_effort": "none",
            "chat_template_kwargs": {"thinking": true},
        }))
        .unwrap();
        // The assistant's message is two items: its reasoning and its call.
        assert_eq!(conversation.items.len(), 5);
        assert_eq!(
            conversation.items[0],
            ConversationItem::Message {
                role: Role::System,
                name: None,
                text: MessageText::of_parts(vec!["Be ".into(), "brief.".into()])
            }
        );
        // Tools of other types than functions are ignored.
        assert_eq!(conversation.tools.len(), 1);
        assert_eq!(conversation.tool_choice, ToolChoice::Named("w".into()));
        // `chat_template_kwargs` has priority over `reasoning_effort`.
        assert_eq!(conversation.kwargs["thinking"], true);
        assert_eq!(conversation.kwargs["enable_thinking"], false);
        assert!(!conversation.prefill);
    }

    #[test]
    fn wrong_messages_name_the_field() {
        // The server never fetches URLs. This one is the metadata service of cloud machines.
        let image = json!([{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]);
        for (value, field) in [
            (json!({}), "messages"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": "x"}), "messages"),
            (json!({"messages": ["x"]}), "messages[0]"),
            (json!({"messages": [{"role": "user", "content": 7}]}), "messages[0].content"),
            (json!({"messages": [{"role": "alien", "content": "x"}]}), "messages[0].role"),
            (json!({"messages": [{"role": "user", "content": image}]}), "messages[0].content[0].type"),
            (
                json!({"messages": [message("user", "x")], "tools": [{"type": "function"}]}),
                "tools[0].function",
            ),
            (json!({"messages": [message("user", "x")], "tool_choice": "required"}), "tool_choice"),
            (
                json!({"messages": [message("user", "x")], "continue_final_message": true}),
                "continue_final_message",
            ),
            (json!({"messages": vec![message("user", "x"); 5000]}), "messages"),
        ] {
            let error = read(value.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(field), "{}", error.message);
        }
    }

    #[test]
    fn an_assistants_last_message_is_continued() {
        let messages = json!([message("user", "x"), message("assistant", "y")]);
        assert!(read(json!({"messages": messages})).unwrap().prefill);
        assert!(!read(json!({"messages": messages, "add_generation_prompt": true})).unwrap().prefill);
        let both =
            json!({"messages": messages, "continue_final_message": true, "add_generation_prompt": false});
        assert!(read(both).unwrap().prefill);
    }
}
