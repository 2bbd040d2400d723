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

/// Text that a piece of an answer adds to a tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCallDelta {
    /// The index of the call in [`Message::calls`].
    pub index: usize,
    /// The name of the function, if the call begins here.
    pub name: String,
    /// Text that is added to the arguments.
    pub arguments: String,
}

/// The text that an event adds to a message.
#[derive(Debug, Default)]
pub(crate) struct MessageDelta {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<ToolCallDelta>,
}

impl MessageDelta {
    pub(crate) fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty() && self.calls.is_empty()
    }
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
    pub(crate) fn push(&mut self, token: u32, text: &str) -> MessageDelta {
        // Control tokens have no text, but the parser needs the names of those in markers.
        if text.is_empty() && self.markers.contains(&token) {
            let name = self.tokenizer.token_text(token).unwrap_or_default();
            self.parser.push(name, true, &mut self.events);
        } else {
            self.parser.push(text, false, &mut self.events);
        }
        self.take()
    }

    /// The whole message, and the text that its end adds: first `rest`, which was held back. `cut`:
    /// whether a limit or the caller has cut the answer.
    pub(crate) fn finish(mut self, rest: &str, cut: bool) -> (Message, MessageDelta) {
        self.parser.push(rest, false, &mut self.events);
        if cut {
            self.parser.cut(&mut self.events);
        } else {
            self.parser.finish(&mut self.events);
        }
        let added = self.take();
        (self.message, added)
    }

    fn take(&mut self) -> MessageDelta {
        let (mut added, message) = (MessageDelta::default(), &mut self.message);
        for event in self.events.drain(..) {
            match event {
                ResponseEvent::Reasoning(text) => added.reasoning.push_str(&text),
                ResponseEvent::Content(text) => added.content.push_str(&text),
                ResponseEvent::ToolCallStart { index, id, name } => {
                    added.calls.push(ToolCallDelta { index, name: name.clone(), ..ToolCallDelta::default() });
                    message.calls.push(ToolCall { id, name, arguments: String::new() });
                }
                ResponseEvent::ToolCallArguments { index, delta } => {
                    // The parser emits one call after the other, so its arguments belong to the
                    // last call.
                    if let Some(call) = message.calls.last_mut() {
                        call.arguments.push_str(&delta);
                    }
                    added.calls.push(ToolCallDelta { index, arguments: delta, ..ToolCallDelta::default() });
                }
                _ => {}
            }
        }
        message.reasoning.push_str(&added.reasoning);
        message.content.push_str(&added.content);
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_formats::Checkpoint;
    use std::path::Path;

    fn parser(format: &str) -> MessageParser {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");
        let checkpoint = Checkpoint::open(Path::new(demo)).unwrap();
        let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint).unwrap());
        let format = ResponseFormat::named(format).unwrap();
        MessageParser::new(tokenizer, &format, &json!([]), &RenderedText::default())
    }

    #[test]
    fn deltas_add_up_to_the_message() {
        let mut parser = parser("hermes");
        let text = "<think>Hm.</think>Yes.<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>\
                    <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
        let (start, rest) = text.split_at(text.len() - 20);
        let mut deltas: Vec<MessageDelta> =
            start.as_bytes().chunks(7).map(|part| parser.push(5, str::from_utf8(part).unwrap())).collect();
        let (message, last) = parser.finish(rest, false);
        deltas.push(last);
        let mut sum = Message::default();
        for delta in deltas {
            sum.reasoning += &delta.reasoning;
            sum.content += &delta.content;
            for ToolCallDelta { index, name, arguments } in delta.calls {
                if index == sum.calls.len() {
                    assert!(!name.is_empty());
                    sum.calls.push(ToolCall {
                        id: message.calls[index].id.clone(),
                        name,
                        ..ToolCall::default()
                    });
                }
                sum.calls[index].arguments += &arguments;
            }
        }
        assert_eq!(sum, message);
        let calls: Vec<_> =
            sum.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
        assert_eq!((sum.reasoning.as_str(), sum.content.as_str()), ("Hm.", "Yes."));
        assert_eq!(calls, [("f", "{\"x\": 1}"), ("g", "{}")]);
    }

    #[test]
    fn a_cut_answer_ends_without_its_partial_marker() {
        for (cut, content) in [(true, "Yes."), (false, "Yes.<tool_c")] {
            let (message, _) = parser("hermes").finish("Yes.<tool_c", cut);
            assert_eq!(message.content, content);
        }
    }
}
