//! Tool definitions and tool choice.

use crate::error::ApiError;
use crate::json::{ObjectFields, text_len};
use crate::limits::Limits;
use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// JSON schema of its arguments.
    pub(crate) parameters: Option<Value>,
    /// Length of the schema as JSON text.
    pub(crate) schema_bytes: usize,
    pub(crate) strict: bool,
    /// The client's names, if the tool is in a namespace (Codex).
    pub(crate) namespaced: Option<NamespacedTool>,
}

/// The names of a tool in a namespace.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NamespacedTool {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The name under which the model calls a tool in a namespace: chat templates have no namespaces.
/// Codex itself builds such names for MCP servers (`mcp__server__tool`).
pub(crate) fn qualified_name(namespace: Option<&str>, name: &str) -> String {
    match namespace.filter(|namespace| !namespace.is_empty()) {
        None => name.to_owned(),
        // A separator that one of the names already has is not doubled.
        Some(namespace) if namespace.ends_with('_') || name.starts_with('_') => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}__{name}"),
    }
}

/// The error for OpenAI's `custom` tools, whose input is free text in place of JSON arguments.
pub(crate) fn refuse_custom_tool(tool: &ObjectFields<'_>) -> ApiError {
    tool.error(
        "type",
        "tools of the type \"custom\" are not supported: use a function with a parameter of the type string",
    )
}

/// OpenAI's `tool_choice` of the type `allowed_tools`.
pub(crate) struct AllowedTools {
    required: bool,
    names: Vec<String>,
}

impl AllowedTools {
    /// Parses `mode` and `tools`. `name` parses the name of a function, which is nested in chat
    /// completions and flat in responses.
    pub(crate) fn read(
        choice: &ObjectFields<'_>,
        name: impl Fn(&ObjectFields<'_>) -> Result<String, ApiError>,
    ) -> Result<AllowedTools, ApiError> {
        let required = match choice.require_str("mode")? {
            "auto" => false,
            "required" => true,
            other => {
                return Err(
                    choice.error("mode", format!("unknown value {other:?}, expected auto or required"))
                );
            }
        };
        let mut names = Vec::new();
        for tool in choice.objects("tools")? {
            match tool.require_str("type")? {
                "function" => names.push(name(&tool)?),
                other => {
                    return Err(tool.error("type", format!("unknown value {other:?}, expected \"function\"")));
                }
            }
        }
        if names.is_empty() {
            return Err(
                choice.error("tools", "at least one tool is needed; `tool_choice`: \"none\" allows none")
            );
        }
        Ok(AllowedTools { required, names })
    }

    /// Sets the allowed tools of a conversation. Returns its tool choice.
    pub(crate) fn apply(self, allowed: &mut Option<Vec<String>>) -> ToolChoice {
        *allowed = Some(self.names);
        if self.required { ToolChoice::Required } else { ToolChoice::Auto }
    }
}

/// `tool_choice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The prompt contains no tools.
    None,
    /// At least one call.
    Required,
    Named(String),
}

/// Maximum length of a tool's name. OpenAI's limit is 64, but clients derive names from paths.
pub(crate) const MAX_TOOL_NAME: usize = 128;

/// Adds a function. `schema` is the name of the field with its schema: `parameters` in OpenAI's
/// API, `input_schema` in Anthropic's.
pub(crate) fn read_function_tool(
    fields: &ObjectFields<'_>,
    schema: &'static str,
    limits: &Limits,
    tools: &mut Vec<Tool>,
) -> Result<(), ApiError> {
    let name = fields.require_str("name")?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-./:".contains(c);
    if name.is_empty() || name.len() > MAX_TOOL_NAME || !name.chars().all(allowed) {
        let problem = format!(
            "a tool's name must have 1 to {MAX_TOOL_NAME} letters, digits or any of _-./:, found {name:?}"
        );
        return Err(fields.error("name", problem));
    }
    // All schemas are rendered into the prompt, and compiled to a grammar if a call is required.
    // The limit bounds both.
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
        namespaced: None,
    });
    Ok(())
}

impl Tool {
    /// The tool in the form that chat templates read.
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
    /// Checks that the chosen tool and all `allowed` ones exist. `sent` is the number of tools in
    /// the request, including those that are not functions.
    pub(crate) fn check(
        &self,
        param: &str,
        tools: &[Tool],
        allowed: Option<&[String]>,
        sent: usize,
    ) -> Result<(), ApiError> {
        let known = |name: &String| tools.iter().any(|tool| tool.name == *name);
        let named = match self {
            ToolChoice::Named(name) => std::slice::from_ref(name),
            _ => allowed.unwrap_or_default(),
        };
        if let Some(name) = named.iter().find(|name| !known(name)) {
            return Err(ApiError::field(param, format!("no function named {name:?} is in `tools`")));
        }
        // A named tool was found above, so only `required` can be without a tool.
        if *self != ToolChoice::Required || !tools.is_empty() {
            return Ok(());
        }
        let problem = match sent {
            0 => "a tool call is required, but `tools` is empty".to_owned(),
            _ => format!(
                "a tool call is required, but `tools` ({sent}) has no function: tools of other types are not available"
            ),
        };
        Err(ApiError::field(param, problem))
    }
}
