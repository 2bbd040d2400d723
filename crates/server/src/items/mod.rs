//! The internal form of conversations, into which all dialects are parsed: a list of items.

mod messages;
mod text;
mod tools;

pub(crate) use messages::{ArgumentForm, TemplateForms, template_messages};
pub(crate) use text::{ContentForm, MessageText};
pub(crate) use tools::{
    AllowedTools, MAX_TOOL_NAME, NamespacedTool, Tool, ToolChoice, qualified_name, read_function_tool,
    refuse_custom_tool,
};

use crate::reasoning::ReasoningLimit;
use serde_json::{Map, Value};

/// The role of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// An item of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConversationItem {
    Message {
        role: Role,
        name: Option<String>,
        text: MessageText,
    },
    /// Reasoning of the assistant.
    Reasoning(String),
    /// A tool call of the assistant, with arguments as JSON text.
    ToolCall {
        id: String,
        name: String,
        arguments: String,
    },
    ToolResult {
        id: String,
        name: Option<String>,
        text: MessageText,
    },
}

/// The limit on reasoning that a request sets.
#[derive(Clone, Debug, Default)]
pub(crate) enum ReasoningLimitChoice {
    /// The request does not set it: the server's default.
    #[default]
    Server,
    /// The request asks for no limit.
    Unlimited,
    /// The request sets a limit.
    Limited(ReasoningLimit),
}

/// A conversation for which the model generates the next message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) items: Vec<ConversationItem>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) tool_choice: ToolChoice,
    /// The tools that may be called, if they are a subset of those in the prompt (`allowed_tools`).
    pub(crate) allowed: Option<Vec<String>>,
    /// Whether one answer may call several tools.
    pub(crate) parallel: bool,
    /// Variables of the chat template in addition to the messages.
    pub(crate) kwargs: Map<String, Value>,
    pub(crate) reasoning_limit: ReasoningLimitChoice,
    /// Whether reasoning and its markers stay in the content. `None`: the server's default.
    pub(crate) raw_reasoning: Option<bool>,
    /// Whether the prompt ends with the header of the assistant's message.
    pub(crate) generation_prompt: bool,
    /// Whether the last message is from the assistant and is continued instead of answered.
    pub(crate) prefill: bool,
    /// Whether the request explicitly asks to continue it.
    pub(crate) prefill_asked: bool,
}

impl Conversation {
    pub(crate) fn new(items: Vec<ConversationItem>) -> Conversation {
        // By default a last message of the assistant is continued, as in Anthropic's API and in
        // llama-server.
        let prefill = matches!(
            items.last(),
            Some(ConversationItem::Message { role: Role::Assistant, .. } | ConversationItem::Reasoning(_))
        );
        Conversation { items, prefill, parallel: true, generation_prompt: true, ..Conversation::default() }
    }

    /// The tools in the prompt.
    pub(crate) fn offered(&self) -> &[Tool] {
        if self.tool_choice == ToolChoice::None { &[] } else { &self.tools }
    }

    /// The tools that may be called.
    pub(crate) fn callable(&self) -> impl Iterator<Item = &Tool> {
        let allowed = self.allowed.as_deref();
        self.offered().iter().filter(move |tool| allowed.is_none_or(|allowed| allowed.contains(&tool.name)))
    }

    /// Sets OpenAI's reasoning effort: `none`, `minimal`, `low`, `medium`, `high` …
    pub(crate) fn set_effort(&mut self, effort: &str) {
        self.think(effort != "none");
        self.kwargs.entry("reasoning_effort").or_insert_with(|| effort.into());
    }

    /// Enables or disables reasoning, unless `chat_template_kwargs` already does.
    pub(crate) fn think(&mut self, on: bool) {
        // Templates differ in the name of the switch: GLM's read `enable_thinking`, DeepSeek's
        // `thinking`. A variable that a template does not read has no effect.
        for name in ["enable_thinking", "thinking"] {
            self.kwargs.entry(name).or_insert(Value::Bool(on));
        }
    }
}
