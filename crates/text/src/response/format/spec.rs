//! Response templates as JSON: Hugging Face's form, and the keys that the built-in templates add.

use super::super::call::ObjectKeys;
use super::super::error::ResponseFormatError;
use serde::Deserialize;
use serde_json::{Map, Value};

/// One literal, or a list of alternatives.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Literals {
    One(String),
    Many(Vec<String>),
}

impl Literals {
    pub fn list(&self, place: &str) -> Result<Vec<String>, ResponseFormatError> {
        let list = match self {
            Literals::One(text) => vec![text.clone()],
            Literals::Many(texts) => texts.clone(),
        };
        // An empty literal would match everywhere.
        if list.is_empty() || list.iter().any(String::is_empty) {
            return Err(ResponseFormatError::malformed(place, "literals must not be empty"));
        }
        Ok(list)
    }
}

/// A file of a built-in template.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnFile {
    pub name: String,
    /// The published template or parser that the format was taken from, for readers of the file.
    #[serde(rename = "source")]
    pub _source: String,
    #[serde(default)]
    pub chosen_by: FormatSelector,
    pub response_template: Value,
}

/// Conditions under which a built-in template is chosen for a model.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FormatSelector {
    /// Strings that must all occur in the chat template.
    pub all: Vec<String>,
    /// Strings that must not occur in it.
    pub none: Vec<String>,
    /// Architectures: `model_type` of config.json or `general.architecture` of GGUF.
    pub architectures: Vec<String>,
}

// Unknown keys are errors: a rule that the parser ignores would give wrong messages silently.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TemplateSpec {
    pub version: Option<Value>,
    // `defaults` sets the role of the parsed message, which is always the assistant's here.
    #[serde(default, rename = "defaults")]
    pub _defaults: Map<String, Value>,
    pub fields: Map<String, Value>,
    pub start_anchor: Option<Literals>,
    pub start_anchor_pattern: Option<String>,
    /// Added key: markers without content.
    pub ignore: Option<Literals>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FieldSpec {
    pub open: Option<Literals>,
    pub open_pattern: Option<String>,
    pub close: Option<Literals>,
    pub close_pattern: Option<String>,
    pub content: Option<String>,
    #[serde(default)]
    pub content_args: Map<String, Value>,
    #[serde(default)]
    pub repeats: bool,
    pub join: Option<String>,
    // Not enforced: a response that lacks a field is still served.
    #[serde(rename = "optional")]
    pub _optional: Option<bool>,
    pub transform: Option<Value>,
    #[serde(default)]
    pub transform_each: bool,
    /// Added key: the field opens only before the answer has begun, or by a control token.
    #[serde(default)]
    pub first: bool,
    /// Added key: markers of other fields that also end this one.
    pub interrupted_by: Option<Literals>,
    /// Added key: the form of tool calls.
    pub call: Option<CallSpec>,
}

/// The form of tool calls.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallSpec {
    /// Markers around all calls.
    pub section: Option<SectionSpec>,
    /// Between two calls.
    #[serde(default)]
    pub separator: String,
    /// Precedes the name within the call. Text before it is ignored (DeepSeek-R1's `function`).
    pub name_open: Option<String>,
    /// Ends the name.
    pub name_close: Option<Literals>,
    /// Ends the name, and belongs to the arguments: `{` where Mistral's `[ARGS]` is missing.
    pub name_before: Option<Literals>,
    /// Expressions with a group `name` and optionally `id`, tried in order on the text of the name.
    #[serde(default)]
    pub name_patterns: Vec<String>,
    /// The form for constrained decoding, if several are parsed.
    #[serde(default)]
    pub written: WrittenSpec,
    /// Whether names and keys are escaped like XML attributes (Kimi-K3).
    #[serde(default)]
    pub unescape: bool,
    /// The form of created ids.
    #[serde(default)]
    pub id: IdSpec,
    pub arguments: ArgumentsSpec,
    /// Keys of calls that are objects, if the format also has those (Mistral before v11).
    pub or_object: Option<ObjectKeys>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SectionSpec {
    pub open: String,
    pub close: String,
}

/// A call as the model writes it. A missing part is the first literal of the parsed ones.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WrittenSpec {
    pub open: Option<String>,
    /// Contains `{name}`, and optionally `{index}` (from 0) or `{number}` (from 1).
    pub name: Option<String>,
    pub name_close: Option<String>,
    pub close: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IdSpec {
    pub prefix: String,
    pub length: usize,
}

impl Default for IdSpec {
    // The form of OpenAI's ids.
    fn default() -> IdSpec {
        IdSpec { prefix: "call_".to_owned(), length: 24 }
    }
}

/// The form of a call's arguments.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub(super) enum ArgumentsSpec {
    /// One JSON object.
    Json {},
    /// A member of an object that also contains the name.
    Object(ObjectKeys),
    /// Arguments between markers.
    Tagged(Box<TaggedSpec>),
}

/// Arguments between markers.
///
/// The parser skips any white space between arguments. `separator`, `space`, `before` and `after`
/// are the white space that constrained decoding writes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaggedSpec {
    /// Before a key.
    pub open: String,
    /// After the key.
    pub key_close: String,
    /// After the value's type, which follows the key.
    pub kind_close: Option<String>,
    /// The type of plain text.
    #[serde(default)]
    pub kind_string: String,
    /// The types of JSON, for constrained decoding; the first one is the default.
    #[serde(default)]
    pub kind_json: Vec<String>,
    /// Before the value, after any white space.
    pub value_open: Option<String>,
    /// After the value.
    pub close: String,
    /// Between two arguments.
    #[serde(default)]
    pub separator: String,
    /// Between key and value.
    #[serde(default)]
    pub space: String,
    /// Before the first argument.
    #[serde(default)]
    pub before: String,
    /// After the last argument.
    #[serde(default)]
    pub after: String,
    /// Markers around all arguments as one JSON text, an alternative to single arguments (Kimi-K3).
    pub block: Option<SectionSpec>,
}
