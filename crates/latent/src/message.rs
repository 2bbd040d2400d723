//! The parsed answer of a model in a conversation.

use latent_text::{ParserOptions, RenderedText, ResponseEvent, ResponseFormat, ResponseParser, Tokenizer};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;

/// A call of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCall {
    /// Its id.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// Its arguments: JSON, unless the model wrote something else.
    pub arguments: String,
}

/// A model's answer in a conversation, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// What it thought.
    pub reasoning: String,
    /// What it said.
    pub content: String,
    /// What it calls.
    pub calls: Vec<ToolCall>,
}

impl Message {
    /// The message in the form that conversations have, to go on with.
    pub fn to_json(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.calls.is_empty() {
            let call = |call: &ToolCall| {
                let arguments = serde_json::from_str(&call.arguments);
                let arguments: Value = arguments.unwrap_or_else(|_| call.arguments.as_str().into());
                json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
            };
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        message
    }
}

/// Takes an answer apart while it comes.
pub(crate) struct MessageParser {
    tokenizer: Arc<Tokenizer>,
    parser: ResponseParser,
    /// Control tokens that the format's markers are made of.
    markers: HashSet<u32>,
    events: Vec<ResponseEvent>,
    message: Message,
}

impl MessageParser {
    /// A parser of the answer to a prompt.
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        format: &ResponseFormat,
        tools: &Value,
        prompt: &RenderedText,
    ) -> Self {
        let markers = format.marker_tokens(&tokenizer);
        let names = markers.iter().filter_map(|id| tokenizer.token_text(*id)).map(str::to_owned);
        let options = ParserOptions { control_tokens: names.collect(), ..ParserOptions::default() };
        let mut parser = ResponseParser::new(format, tools, &options);
        parser.continue_prompt(prompt);
        MessageParser { tokenizer, parser, markers, events: Vec::new(), message: Message::default() }
    }

    /// Takes a token; returns what it adds to the message's texts.
    pub(crate) fn push(&mut self, token: u32, text: &str) -> Message {
        if text.is_empty() && self.markers.contains(&token) {
            let name = self.tokenizer.token_text(token).unwrap_or_default();
            self.parser.push(name, true, &mut self.events);
        } else {
            self.parser.push(text, false, &mut self.events);
        }
        self.take()
    }

    /// Takes text of no token of its own.
    pub(crate) fn push_text(&mut self, text: &str) -> Message {
        self.parser.push(text, false, &mut self.events);
        self.take()
    }

    /// The whole message, and what its end adds to its texts.
    pub(crate) fn finish(mut self) -> (Message, Message) {
        self.parser.finish(&mut self.events);
        let added = self.take();
        (self.message, added)
    }

    fn take(&mut self) -> Message {
        let before = (self.message.reasoning.len(), self.message.content.len());
        for event in self.events.drain(..) {
            match event {
                ResponseEvent::Reasoning(text) => self.message.reasoning.push_str(&text),
                ResponseEvent::Content(text) => self.message.content.push_str(&text),
                ResponseEvent::ToolCallStart { id, name, .. } => {
                    self.message.calls.push(ToolCall { id, name, arguments: String::new() });
                }
                ResponseEvent::ToolCallArguments { delta, .. } => {
                    if let Some(call) = self.message.calls.last_mut() {
                        call.arguments.push_str(&delta);
                    }
                }
                _ => {}
            }
        }
        Message {
            reasoning: self.message.reasoning[before.0..].to_owned(),
            content: self.message.content[before.1..].to_owned(),
            calls: Vec::new(),
        }
    }
}
