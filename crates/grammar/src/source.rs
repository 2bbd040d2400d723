//! Sources of constraints: schemas, grammars and tool calls.

use crate::tools::ToolCalls;
use serde_json::Value;

/// A constraint as a request states it.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSource {
    /// A JSON text that is an instance of a schema.
    JsonSchema(Value),
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

impl GrammarSource {
    /// A grammar whose dialect is not said: GBNF defines its rules with `::=`, Lark with a colon.
    pub fn grammar(text: impl Into<String>) -> GrammarSource {
        let text = text.into();
        let code = |line: &str| line.split('#').next().unwrap_or_default().contains("::=");
        if text.lines().any(code) { GrammarSource::Gbnf(text) } else { GrammarSource::Lark(text) }
    }

    /// What it is called in messages.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            GrammarSource::JsonSchema(_) | GrammarSource::JsonObject => "JSON schema",
            GrammarSource::Regex(_) => "regular expression",
            GrammarSource::Choice(_) => "list of choices",
            GrammarSource::Gbnf(_) => "GBNF grammar",
            GrammarSource::Lark(_) => "Lark grammar",
            GrammarSource::Tools(_) => "list of tools",
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
