//! Tools that the model may call.

use crate::error::ApiError;
use crate::json::{Fields, text_len};
use crate::limits::Limits;
use serde_json::{Value, json};

/// A tool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// JSON schema of its arguments.
    pub(crate) parameters: Option<Value>,
    /// Bytes of the schema as text.
    pub(crate) schema_bytes: usize,
    pub(crate) strict: bool,
}

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// Not at all: the model does not hear of them.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// Longest name of a tool, as OpenAI has it, with room for names that clients make of paths.
const MAX_NAME: usize = 128;

/// Adds a function by its `name`, `description`, `parameters` and `strict`; the schema has one of several names.
pub(crate) fn read_function_tool(
    fields: &Fields<'_>,
    schema: &'static str,
    limits: &Limits,
    tools: &mut Vec<Tool>,
) -> Result<(), ApiError> {
    let name = fields.require_str("name")?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-./:".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(allowed) {
        let problem = format!(
            "a tool's name has 1 to {MAX_NAME} letters, digits or any of _-./:, this one is {name:?}"
        );
        return Err(fields.error("name", problem));
    }
    // each schema is shown to the model, and compiled where a call is forced
    let schema_bytes = fields.get(schema).map_or(0, text_len);
    let bytes = tools.iter().map(|tool| tool.schema_bytes).sum::<usize>() + schema_bytes;
    limits.check("tools", "grammar_bytes × 16", bytes, limits.grammar_bytes * 16)?;
    let parameters = fields.object(schema)?.map(|object| Value::Object(object.map().clone()));
    tools.push(Tool {
        name: name.to_owned(),
        description: fields.str("description")?.map(str::to_owned),
        parameters,
        schema_bytes,
        strict: fields.bool("strict")?.unwrap_or(false),
    });
    Ok(())
}

impl Tool {
    /// In the form that chat templates read.
    pub(crate) fn for_template(&self) -> Value {
        let empty = || json!({"type": "object", "properties": {}});
        json!({"type": "function", "function": {
            "name": self.name,
            "description": self.description.as_deref().unwrap_or_default(),
            "parameters": self.parameters.clone().unwrap_or_else(empty),
        }})
    }
}

impl ToolChoice {
    /// A choice must be one of the tools.
    pub(crate) fn check(&self, param: &str, tools: &[Tool]) -> Result<(), ApiError> {
        match self {
            ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
                Err(ApiError::field(param, format!("there is no tool named {name:?} in `tools`")))
            }
            ToolChoice::Required if tools.is_empty() => {
                Err(ApiError::field(param, "a tool call is required, but `tools` is empty"))
            }
            _ => Ok(()),
        }
    }
}
