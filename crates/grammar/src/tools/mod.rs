//! Calls of tools, in the format of a model.

mod grammar;

pub(crate) use grammar::grammars;

use latent_text::ToolGrammar;
use serde_json::Value;

/// A tool that can be called.
#[derive(Clone, Debug, PartialEq)]
pub struct CallableTool {
    pub name: String,
    /// The schema of its arguments; none: it takes any.
    pub parameters: Option<Value>,
    /// Whether a schema that cannot be followed is an error. Otherwise the tool then takes any arguments.
    pub strict: bool,
}

/// Which tools have to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolRequirement {
    /// Any text, and then calls or none.
    Auto,
    /// At least one call, of any tool, and no other text.
    Required,
    /// A call of this tool.
    Named(String),
}

/// The calls that an output may have.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCalls {
    /// The model's format.
    pub format: ToolGrammar,
    /// Control tokens, and markers that begin with one, that text before the calls may hold, such as those around reasoning:
    /// [`ResponseFormat::free_markers`](latent_text::ResponseFormat::free_markers).
    pub free_markers: Vec<String>,
    pub tools: Vec<CallableTool>,
    pub choice: ToolRequirement,
    /// Whether there can be several calls.
    pub parallel: bool,
}
