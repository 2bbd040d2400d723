//! Helpers that parse outputs, whole or in pieces, and write calls by a format's grammar.

use latent_text::{
    ArgumentsGrammar, CallEnding, ParserOptions, RenderedText, ResponseEvent, ResponseFormat, ResponseParser,
    ToolGrammar,
};
use serde_json::{Map, Value, json};

/// A piece of output, and whether it is a control token.
pub type OutputPiece = (String, bool);

/// The message of all events.
#[derive(Debug, Default, PartialEq)]
pub struct FoldedMessage {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<FoldedCall>,
    pub fields: Vec<(String, Value)>,
}

#[derive(Debug, PartialEq)]
pub struct FoldedCall {
    pub id: String,
    pub name: String,
    pub arguments: String,
    pub ending: Option<CallEnding>,
}

pub fn events(
    format: &ResponseFormat,
    tools: &Value,
    options: &ParserOptions,
    prompt: Option<&str>,
    pieces: impl IntoIterator<Item = OutputPiece>,
) -> Vec<ResponseEvent> {
    ended(format, tools, options, prompt, pieces, ResponseParser::finish)
}

/// Events of an output, ended by `end`.
pub fn ended(
    format: &ResponseFormat,
    tools: &Value,
    options: &ParserOptions,
    prompt: Option<&str>,
    pieces: impl IntoIterator<Item = OutputPiece>,
    end: fn(&mut ResponseParser, &mut Vec<ResponseEvent>),
) -> Vec<ResponseEvent> {
    let mut parser = ResponseParser::new(format, tools, options);
    if let Some(prompt) = prompt {
        parser.continue_prompt(&RenderedText { text: prompt.to_owned(), content: Vec::new() });
    }
    let mut events = Vec::new();
    for (piece, special) in pieces {
        parser.push(&piece, special, &mut events);
    }
    end(&mut parser, &mut events);
    events
}

/// Combines events to a message, and checks their order: calls do not overlap and are numbered.
pub fn fold(events: &[ResponseEvent]) -> FoldedMessage {
    let mut message = FoldedMessage::default();
    for event in events {
        let open = message.calls.last().is_some_and(|call| call.ending.is_none());
        let last = message.calls.len().wrapping_sub(1);
        match event {
            ResponseEvent::Reasoning(text) => message.reasoning.push_str(text),
            ResponseEvent::Content(text) => message.content.push_str(text),
            ResponseEvent::ToolCallStart { index, id, name } => {
                assert!(!open && *index == message.calls.len(), "{event:?}");
                assert!(!message.calls.iter().any(|call| call.id == *id), "the id {id:?} comes twice");
                message.calls.push(FoldedCall {
                    id: id.clone(),
                    name: name.clone(),
                    arguments: String::new(),
                    ending: None,
                });
            }
            ResponseEvent::ToolCallArguments { index, delta } => {
                assert!(open && *index == last && !delta.is_empty(), "{event:?}");
                message.calls[last].arguments.push_str(delta);
            }
            ResponseEvent::ToolCallEnd { index, ending } => {
                assert!(open && *index == last, "{event:?}");
                let call = &mut message.calls[last];
                let valid = serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments).is_ok();
                assert!(
                    *ending != CallEnding::Complete || valid,
                    "complete, but no JSON: {:?}",
                    call.arguments
                );
                call.ending = Some(*ending);
            }
            ResponseEvent::Field { name, value } => message.fields.push((name.clone(), value.clone())),
            other => panic!("{other:?}"),
        }
    }
    assert!(message.calls.iter().all(|call| call.ending.is_some()), "a call has no end");
    message
}

pub fn whole(format: &ResponseFormat, tools: &Value, prompt: Option<&str>, output: &str) -> FoldedMessage {
    fold(&events(format, tools, &ParserOptions::default(), prompt, [(output.to_owned(), false)]))
}

/// The text of calls by a format's grammar.
pub fn write_calls(grammar: &ToolGrammar, calls: &[(String, Map<String, Value>)]) -> String {
    let mut out = grammar.section_open.clone();
    for (i, (name, arguments)) in calls.iter().enumerate() {
        if i > 0 {
            out.push_str(&grammar.separator);
        }
        out.push_str(&grammar.open);
        out.push_str(&grammar.name_of(name, i));
        out.push_str(&grammar.name_close);
        match &grammar.arguments {
            ArgumentsGrammar::Tagged(tagged) => {
                let mut parts = Vec::new();
                for (key, value) in arguments {
                    let (json_type, text) = match value {
                        Value::String(text) => ("string", text.clone()),
                        Value::Null => ("null", value.to_string()),
                        Value::Bool(_) => ("boolean", value.to_string()),
                        Value::Number(_) => ("number", value.to_string()),
                        Value::Array(_) => ("array", value.to_string()),
                        Value::Object(_) => ("object", value.to_string()),
                    };
                    let kind =
                        tagged.kind.as_ref().map(|kind| format!("{}{}", kind.of(json_type), kind.close));
                    let kind = kind.unwrap_or_default();
                    let (open, key_close) = (&tagged.open, &tagged.key_close);
                    parts.push(format!(
                        "{open}{key}{key_close}{kind}{}{text}{}",
                        tagged.value_open, tagged.close
                    ));
                }
                if !parts.is_empty() {
                    out.push_str(&tagged.before);
                    out.push_str(&parts.join(&tagged.separator));
                    out.push_str(&tagged.after);
                }
            }
            _ => out.push_str(&Value::Object(arguments.clone()).to_string()),
        }
        out.push_str(&grammar.close);
    }
    out + &grammar.section_close
}

/// Tools that declare the types of arguments.
pub fn tools_for(calls: &[(String, Map<String, Value>)]) -> Value {
    let kind = |value: &Value| match value {
        Value::String(_) => "string",
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let tool = |(name, arguments): &(String, Map<String, Value>)| {
        let properties: Map<String, Value> =
            arguments.iter().map(|(key, value)| (key.clone(), json!({"type": kind(value)}))).collect();
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}})
    };
    Value::Array(calls.iter().map(tool).collect())
}

/// The control tokens that a family's vocabulary would have: parts of its markers in `<…>`, bars or
/// brackets.
pub fn control_tokens(format: &ResponseFormat) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for marker in format.markers() {
        for (open, close) in [
            ("<|", "|>"),
            ("<｜", "｜>"),
            ("<think", ">"),
            ("</think", ">"),
            ("<tool", ">"),
            ("</tool", ">"),
            ("<arg", ">"),
            ("</arg", ">"),
            ("[", "]"),
            ("｜DSML", "｜"),
            ("｜GCML", "｜"),
        ] {
            let mut rest = marker;
            while let Some(at) = rest.find(open) {
                let Some(end) = rest[at + open.len()..].find(close) else { break };
                let end = at + open.len() + end + close.len();
                found.push(rest[at..end].to_owned());
                rest = &rest[end..];
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}
