//! The parsed answer of a model in a conversation.

use latent_text::{ParserOptions, RenderedText, ResponseEvent, ResponseFormat, ResponseParser, Tokenizer};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCall {
    /// The id of the call.
    pub id: String,
    /// The name of the function.
    pub name: String,
    /// The arguments: JSON, unless the model wrote other text.
    pub arguments: String,
}

/// A model's answer in a conversation, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The reasoning.
    pub reasoning: String,
    /// The visible text.
    pub content: String,
    /// The tool calls.
    pub calls: Vec<ToolCall>,
}

impl Message {
    /// The message in OpenAI's format, for the next turn of the conversation.
    pub fn to_json(&self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.content});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.calls.is_empty() {
            let call = |call: &ToolCall| {
                // Chat templates expect arguments as an object. If they are not JSON, the text is
                // kept.
                let arguments = serde_json::from_str(&call.arguments);
                let arguments: Value = arguments.unwrap_or_else(|_| call.arguments.as_str().into());
                json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
            };
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        message
    }
}

/// Parses an answer while it is generated.
pub(crate) struct MessageParser {
    tokenizer: Arc<Tokenizer>,
    parser: ResponseParser,
    /// Control tokens that are part of the format's markers.
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
        // The prompt may have opened the reasoning already.
        parser.continue_prompt(prompt);
        MessageParser { tokenizer, parser, markers, events: Vec::new(), message: Message::default() }
    }

    /// Parses a token. Returns the text that it adds to the message.
    pub(crate) fn push(&mut self, token: u32, text: &str) -> Message {
        // Control tokens have no text, but the parser needs the names of those in markers.
        if text.is_empty() && self.markers.contains(&token) {
            let name = self.tokenizer.token_text(token).unwrap_or_default();
            self.parser.push(name, true, &mut self.events);
        } else {
            self.parser.push(text, false, &mut self.events);
        }
        self.take()
    }

    /// Parses text that was held back.
    pub(crate) fn push_text(&mut self, text: &str) -> Message {
        self.parser.push(text, false, &mut self.events);
        self.take()
    }

    /// The whole message, and the text that its end adds.
    pub(crate) fn finish(mut self) -> (Message, Message) {
        self.parser.finish(&mut self.events);
        let added = self.take();
        (self.message, added)
    }

    fn take(&mut self) -> Message {
        // The added text is returned as the difference, so that `message` stays the whole answer.
        let before = (self.message.reasoning.len(), self.message.content.len());
        for event in self.events.drain(..) {
            match event {
                ResponseEvent::Reasoning(text) => self.message.reasoning.push_str(&text),
                ResponseEvent::Content(text) => self.message.content.push_str(&text),
                ResponseEvent::ToolCallStart { id, name, .. } => {
                    self.message.calls.push(ToolCall { id, name, arguments: String::new() });
                }
                ResponseEvent::ToolCallArguments { delta, .. } => {
                    // The parser emits one call after the other, so its arguments belong to the
                    // last call.
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
