//! Tool calls in a model's own format.

mod grammar;

pub(crate) use grammar::grammars;

use latent_text::ToolGrammar;
use serde_json::Value;

/// A tool that can be called.
#[derive(Clone, Debug, PartialEq)]
pub struct CallableTool {
    pub name: String,
    /// Schema of the arguments. `None` accepts any.
    pub parameters: Option<Value>,
    /// Whether an unsupported schema is an error. If false, such a tool accepts any arguments.
    pub strict: bool,
}

/// Which tools the response must call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolRequirement {
    /// Any text, followed by any number of calls.
    Auto,
    /// At least one call of any tool, and no other text.
    Required,
    /// One call of this tool.
    Named(String),
}

/// The tool calls that a response may contain.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCalls {
    /// The model's format.
    pub format: ToolGrammar,
    /// Control tokens, and markers that begin with one, that are allowed in text before the calls,
    /// such as those around reasoning:
    /// [`ResponseFormat::free_markers`](latent_text::ResponseFormat::free_markers).
    pub free_markers: Vec<String>,
    pub tools: Vec<CallableTool>,
    pub choice: ToolRequirement,
    /// Whether several calls are allowed.
    pub parallel: bool,
}
