//! Conversations: messages and other variables of a chat template.

use crate::error::Error;
use serde_json::{Map, Value, json};

/// Variables of a chat template besides the messages.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChatOptions {
    /// Tools that the model may call, in OpenAI's format.
    pub tools: Option<Value>,
    /// Whether the prompt ends with the beginning of an assistant message.
    pub add_generation_prompt: bool,
    /// Further variables (`enable_thinking`, …).
    pub variables: Map<String, Value>,
}

impl Default for ChatOptions {
    fn default() -> ChatOptions {
        ChatOptions { tools: None, add_generation_prompt: true, variables: Map::new() }
    }
}

impl ChatOptions {
    /// Options from an object of template variables, including `tools` and `add_generation_prompt`.
    ///
    /// # Errors
    /// If the value is not an object, `tools` is not a list, or `add_generation_prompt` is not a
    /// boolean.
    pub fn from_json(value: Value) -> Result<ChatOptions, Error> {
        let Value::Object(mut variables) = value else {
            return Err(Error::argument_named("variables", "the template's variables are not a JSON object"));
        };
        // `tools` and `add_generation_prompt` are removed, since the template gets them separately
        // from the other variables.
        let tools = match variables.remove("tools") {
            None | Some(Value::Null) => None,
            Some(tools @ Value::Array(_)) => Some(tools),
            Some(_) => {
                return Err(Error::argument_named(
                    "tools",
                    "tools: expected a list of objects with a function's name and parameters",
                ));
            }
        };
        let add_generation_prompt = match variables.remove("add_generation_prompt") {
            None => true,
            Some(Value::Bool(add)) => add,
            Some(other) => {
                return Err(Error::argument_named(
                    "add_generation_prompt",
                    format!("add_generation_prompt is {other}, expected true or false"),
                ));
            }
        };
        Ok(ChatOptions { tools, add_generation_prompt, variables })
    }
}

/// A conversation, for [`Model::chat`](crate::Model::chat).
///
/// ```
/// use latent::Chat;
/// let chat = Chat::new().system("Be brief.").user("Hi").assistant("Hello!").user("Who are you?");
/// assert_eq!(chat.messages().len(), 4);
/// assert_eq!(chat.messages()[3]["content"], "Who are you?");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chat {
    messages: Vec<Value>,
    options: ChatOptions,
}

impl Chat {
    /// A conversation without messages.
    pub fn new() -> Chat {
        Chat::default()
    }

    /// A conversation from messages in OpenAI's format.
    ///
    /// # Errors
    /// If the value is not a list of objects with a `role`.
    pub fn from_json(messages: Value) -> Result<Chat, Error> {
        check(&messages)?;
        match messages {
            Value::Array(messages) => Ok(Chat { messages, options: ChatOptions::default() }),
            // `check` has refused everything else.
            _ => Err(Error::argument_named("messages", format!("messages: {EXPECTED}"))),
        }
    }

    fn text_message(self, role: &str, text: impl Into<String>) -> Chat {
        self.message(json!({"role": role, "content": text.into()}))
    }

    /// Adds a system message.
    pub fn system(self, text: impl Into<String>) -> Chat {
        self.text_message("system", text)
    }

    /// Adds a user message.
    pub fn user(self, text: impl Into<String>) -> Chat {
        self.text_message("user", text)
    }

    /// Adds an assistant message: an answer of the model.
    pub fn assistant(self, text: impl Into<String>) -> Chat {
        self.text_message("assistant", text)
    }

    /// Adds the result of a tool call.
    pub fn tool(self, call_id: impl Into<String>, result: impl Into<String>) -> Chat {
        self.message(json!({"role": "tool", "tool_call_id": call_id.into(), "content": result.into()}))
    }

    /// Adds a message in any format that the template supports: an object with a `role`.
    #[must_use]
    pub fn message(mut self, message: Value) -> Chat {
        self.messages.push(message);
        self
    }

    /// Sets the tools that the model may call: a list in OpenAI's format.
    #[must_use]
    pub fn tools(mut self, tools: Value) -> Chat {
        self.options.tools = Some(tools);
        self
    }

    /// Sets a variable of the template, such as `enable_thinking`.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Chat {
        self.options.variables.insert(name.into(), value.into());
        self
    }

    /// Sets all options.
    #[must_use]
    pub fn options(mut self, options: ChatOptions) -> Chat {
        self.options = options;
        self
    }

    /// The messages.
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// The messages as JSON, and the other variables of the template.
    pub(crate) fn into_parts(self) -> (Value, ChatOptions) {
        (Value::Array(self.messages), self.options)
    }
}

const EXPECTED: &str = r#"expected a list such as [{"role": "user", "content": "Hello"}]"#;

/// Checks that messages are a list of objects with a role.
pub(crate) fn check(messages: &Value) -> Result<(), Error> {
    // Templates commonly read `messages[0]`. An empty list would fail there, with an error about
    // the template instead of the argument.
    let list = messages.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| Error::argument_named("messages", format!("messages: {EXPECTED}")))?;
    match list.iter().position(|message| message.get("role").and_then(Value::as_str).is_none()) {
        None => Ok(()),
        Some(at) => Err(Error::argument_named("messages", format!("messages[{at}] has no role: {EXPECTED}"))),
    }
}
