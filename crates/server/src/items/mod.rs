//! The one model of a conversation, which every dialect is read into: a list of items.

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

/// Who speaks.
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

/// One thing that was said or done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConversationItem {
    /// Text of somebody.
    Message { role: Role, name: Option<String>, text: MessageText },
    /// What the model thought before it went on.
    Reasoning(String),
    /// The model called a tool, with its arguments as JSON text.
    ToolCall { id: String, name: String, arguments: String },
    /// What the tool said.
    ToolResult { id: String, name: Option<String>, text: MessageText },
}

/// The limit on reasoning that a request sets.
#[derive(Clone, Debug, Default)]
pub(crate) enum ReasoningLimitChoice {
    /// The request has no such field.
    #[default]
    Server,
    /// The request asks for no limit.
    Unlimited,
    /// The request sets a limit.
    Limited(ReasoningLimit),
}

/// A conversation that the model is to go on with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) items: Vec<ConversationItem>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) tool_choice: ToolChoice,
    /// The tools that may be called, where these are not all of which the model is told.
    pub(crate) allowed: Option<Vec<String>>,
    /// Whether several tools may be called at once.
    pub(crate) parallel: bool,
    /// Variables of the chat template in addition to the messages.
    pub(crate) kwargs: Map<String, Value>,
    /// How long the model may reason: the server's default, or what the request says.
    pub(crate) reasoning_limit: ReasoningLimitChoice,
    /// Whether reasoning and its markers stay in the content. None: the server's default.
    pub(crate) raw_reasoning: Option<bool>,
    /// Whether the prompt ends where an answer begins.
    pub(crate) generation_prompt: bool,
    /// Whether the last message, one of the assistant, is to be continued rather than answered.
    pub(crate) prefill: bool,
    /// Whether the request says that it is to be continued.
    pub(crate) prefill_asked: bool,
}

impl Conversation {
    pub(crate) fn new(items: Vec<ConversationItem>) -> Conversation {
        let prefill = matches!(
            items.last(),
            Some(ConversationItem::Message { role: Role::Assistant, .. } | ConversationItem::Reasoning(_))
        );
        Conversation { items, prefill, parallel: true, generation_prompt: true, ..Conversation::default() }
    }

    /// The tools that the model is told of.
    pub(crate) fn offered(&self) -> &[Tool] {
        if self.tool_choice == ToolChoice::None { &[] } else { &self.tools }
    }

    /// The tools that may be called.
    pub(crate) fn callable(&self) -> impl Iterator<Item = &Tool> {
        let allowed = self.allowed.as_deref();
        self.offered().iter().filter(move |tool| allowed.is_none_or(|allowed| allowed.contains(&tool.name)))
    }

    /// How much the model should think: `none`, `minimal`, `low`, `medium`, `high`, … Templates have three names for the switch; a variable that
    /// a template does not read does nothing.
    pub(crate) fn set_effort(&mut self, effort: &str) {
        self.think(effort != "none");
        self.kwargs.entry("reasoning_effort").or_insert_with(|| effort.into());
    }

    /// Switches thinking on or off, where the request has not said so by a variable.
    pub(crate) fn think(&mut self, on: bool) {
        for name in ["enable_thinking", "thinking"] {
            self.kwargs.entry(name).or_insert(Value::Bool(on));
        }
    }
}
