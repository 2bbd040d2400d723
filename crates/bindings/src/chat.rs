//! Conversations: rendering by the model's template, generation, and parsing of the answer.

use crate::answer::RunningGeneration;
use crate::error::{Error, ErrorKind};
use crate::generate::GenerateOptions;
use crate::message::MessageParser;
use crate::model::ModelHandle;
use latent_text::{ChatInput, RenderedText};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Variables of a chat template besides the messages.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// Tools that the model may call, as OpenAI's clients send them.
    pub tools: Option<Value>,
    /// Whether the prompt ends where the answer begins.
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
    /// Options from an object of template variables, among them `tools` and `add_generation_prompt`.
    ///
    /// # Errors
    /// A value that is not an object; `tools` other than a list; `add_generation_prompt` other than
    /// a boolean.
    pub fn from_json(value: Value) -> Result<ChatOptions, Error> {
        let Value::Object(mut variables) = value else {
            return Err(Error::argument("the template's variables are not a JSON object"));
        };
        let tools = match variables.remove("tools") {
            None | Some(Value::Null) => None,
            Some(tools @ Value::Array(_)) => Some(tools),
            Some(_) => {
                return Err(Error::argument(
                    "tools: expected a list of objects with a function's name and parameters",
                ));
            }
        };
        let add_generation_prompt = match variables.remove("add_generation_prompt") {
            None => true,
            Some(Value::Bool(add)) => add,
            Some(other) => {
                return Err(Error::argument(format!(
                    "add_generation_prompt is {other}, expected true or false"
                )));
            }
        };
        Ok(ChatOptions { tools, add_generation_prompt, variables })
    }
}

/// A conversation as the model reads it.
#[derive(Clone, Debug)]
pub struct ChatPrompt {
    rendered: RenderedText,
    tools: Value,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

impl ChatPrompt {
    /// Its text.
    pub fn text(&self) -> &str {
        &self.rendered.text
    }
}

impl ModelHandle {
    /// Renders a conversation: a list of objects with `role` and `content`. What the messages say makes no control tokens.
    ///
    /// # Errors
    /// Messages that are none; a model without a template, or whose template refuses them.
    pub fn chat_prompt(&self, messages: Value, options: &ChatOptions) -> Result<ChatPrompt, Error> {
        check(&messages)?;
        let Some(template) = &self.inner.template else {
            let problem = "the model has no chat template: generate from a text";
            return Err(Error::new(ErrorKind::Text, problem));
        };
        let tokenizer = &self.inner.tokenizer;
        let name =
            |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default().to_owned();
        let input = ChatInput {
            tools: options.tools.clone(),
            add_generation_prompt: options.add_generation_prompt,
            bos_token: name(tokenizer.bos()),
            eos_token: name(tokenizer.eos()),
            extra: options.variables.clone(),
            ..ChatInput::new(messages)
        };
        let rendered = template.render(&input)?;
        let tokens = tokenizer.encode_rendered(&rendered, false)?;
        Ok(ChatPrompt { rendered, tools: options.tools.clone().unwrap_or(Value::Null), tokens })
    }

    /// Begins the answer to a conversation.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate).
    pub fn chat(&self, prompt: &ChatPrompt, options: &GenerateOptions) -> Result<RunningGeneration, Error> {
        let inner = &self.inner;
        let parser =
            MessageParser::new(Arc::clone(&inner.tokenizer), &inner.format, &prompt.tools, &prompt.rendered);
        Ok(self.generate(prompt.tokens.clone(), options)?.parsed_by(parser))
    }
}

/// Whether messages are a list of objects that name a role.
fn check(messages: &Value) -> Result<(), Error> {
    let expected = r#"expected a list such as [{"role": "user", "content": "Hello"}]"#;
    let list = messages.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| Error::argument(format!("messages: {expected}")))?;
    match list.iter().position(|message| message.get("role").and_then(Value::as_str).is_none()) {
        None => Ok(()),
        Some(at) => Err(Error::argument(format!("messages[{at}] names no role: {expected}"))),
    }
}
