//! Sources of constraints: schemas, grammars and tool calls.

use crate::tools::ToolCalls;
use serde_json::Value;

/// A constraint as a request states it.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A JSON text that is an instance of a schema.
    JsonSchema(Value),
    /// A JSON object.
    JsonObject,
    /// A text that matches a regular expression as a whole; the syntax of Rust's crate regex, without look-around and back references.
    Regex(String),
    /// One of some texts.
    Choice(Vec<String>),
    /// llama.cpp's grammar dialect.
    Gbnf(String),
    /// llguidance's dialect of Lark.
    Lark(String),
    /// Calls of tools in the model's own format.
    Tools(Box<ToolCalls>),
}

impl Source {
    /// A grammar whose dialect is not said: GBNF defines its rules with `::=`, Lark with a colon.
    pub fn grammar(text: impl Into<String>) -> Source {
        let text = text.into();
        let code = |line: &str| line.split('#').next().unwrap_or_default().contains("::=");
        if text.lines().any(code) { Source::Gbnf(text) } else { Source::Lark(text) }
    }

    /// What it is called in messages.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Source::JsonSchema(_) | Source::JsonObject => "JSON schema",
            Source::Regex(_) => "regular expression",
            Source::Choice(_) => "list of choices",
            Source::Gbnf(_) => "GBNF grammar",
            Source::Lark(_) => "Lark grammar",
            Source::Tools(_) => "list of tools",
        }
    }
}

/// Reasoning that precedes what is constrained, and is free itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasoning {
    /// What opens it, such as `<think>`.
    pub begin: String,
    /// What closes it, such as `</think>`.
    pub end: String,
    /// Whether the prompt has opened it. Otherwise the output may open it, or begin with what is constrained.
    pub open: bool,
}
