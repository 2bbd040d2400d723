//! The one model of a conversation, which every dialect is read into: a list of items.

mod messages;
mod text;
mod tools;

pub(crate) use messages::{ArgumentForm, TemplateForms, template_messages};
pub(crate) use text::{ContentForm, MessageText};
pub(crate) use tools::{Tool, ToolChoice, read_function_tool};

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
pub(crate) enum Item {
    /// Text of somebody.
    Message { role: Role, name: Option<String>, text: MessageText },
    /// What the model thought before it went on.
    Reasoning(String),
    /// The model called a tool, with its arguments as JSON text.
    ToolCall { id: String, name: String, arguments: String },
    /// What the tool said.
    ToolResult { id: String, name: Option<String>, text: MessageText },
}

/// A conversation that the model is to go on with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) items: Vec<Item>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) tool_choice: ToolChoice,
    /// Whether several tools may be called at once.
    pub(crate) parallel: bool,
    /// Variables of the chat template beside the messages.
    pub(crate) kwargs: Map<String, Value>,
    /// Whether the last message, one of the assistant, is to be continued rather than answered.
    pub(crate) prefill: bool,
    /// Whether the request says that it is to be continued.
    pub(crate) prefill_asked: bool,
}

impl Conversation {
    pub(crate) fn new(items: Vec<Item>) -> Conversation {
        let prefill =
            matches!(items.last(), Some(Item::Message { role: Role::Assistant, .. } | Item::Reasoning(_)));
        Conversation { items, prefill, parallel: true, ..Conversation::default() }
    }

    /// The tools that the model is told of.
    pub(crate) fn offered(&self) -> &[Tool] {
        if self.tool_choice == ToolChoice::None { &[] } else { &self.tools }
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
