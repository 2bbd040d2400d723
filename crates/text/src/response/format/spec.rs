//! Response templates as they are written: Hugging Face's form, and what ours say beyond it.

use super::super::call::ObjectKeys;
use super::super::error::ResponseFormatError;
use serde::Deserialize;
use serde_json::{Map, Value};

/// One literal, or several of which any counts.
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
        if list.is_empty() || list.iter().any(String::is_empty) {
            return Err(ResponseFormatError::malformed(place, "literals must not be empty"));
        }
        Ok(list)
    }
}

/// A file of ours.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnFile {
    pub name: String,
    /// Where the format was learnt, for the reader.
    #[serde(rename = "source")]
    pub _source: String,
    #[serde(default)]
    pub chosen_by: FormatSelector,
    pub response_template: Value,
}

/// What makes a file of ours the one for a model.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FormatSelector {
    /// Strings that all occur in the chat template.
    pub all: Vec<String>,
    /// Strings none of which does.
    pub none: Vec<String>,
    /// Architectures: `model_type` of config.json or `general.architecture` of GGUF.
    pub architectures: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TemplateSpec {
    pub version: Option<Value>,
    #[serde(default, rename = "defaults")]
    pub _defaults: Map<String, Value>,
    pub fields: Map<String, Value>,
    pub start_anchor: Option<Literals>,
    pub start_anchor_pattern: Option<String>,
    /// Ours: markers that carry nothing.
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
    #[serde(rename = "optional")]
    pub _optional: Option<bool>,
    pub transform: Option<Value>,
    #[serde(default)]
    pub transform_each: bool,
    /// Ours: opens only before the answer has begun, unless a control token shows that it is meant.
    #[serde(default)]
    pub first: bool,
    /// Ours: other fields' markers by which this one ends, too.
    pub interrupted_by: Option<Literals>,
    /// Ours: how tool calls are written.
    pub call: Option<CallSpec>,
}

/// How tool calls are written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallSpec {
    /// What calls stand in together.
    pub section: Option<SectionSpec>,
    /// Between two calls.
    #[serde(default)]
    pub separator: String,
    /// Precedes the name, within the call; text before it is not read.
    pub name_open: Option<String>,
    /// Ends the name.
    pub name_close: Option<Literals>,
    /// Ends the name, and belongs to the arguments.
    pub name_before: Option<Literals>,
    /// Expressions with groups `name` and perhaps `id`, tried in order on what stands where the name is.
    #[serde(default)]
    pub name_patterns: Vec<String>,
    /// The text that the model writes itself, if other text precedes it in the parsed output.
    #[serde(default)]
    pub written: WrittenSpec,
    /// Names and keys are escaped as XML's attributes.
    #[serde(default)]
    pub unescape: bool,
    /// The form of ids that are made up.
    #[serde(default)]
    pub id: IdSpec,
    pub arguments: ArgumentsSpec,
    /// Calls may also be objects with these keys.
    pub or_object: Option<ObjectKeys>,
}

/// What calls stand in together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SectionSpec {
    pub open: String,
    pub close: String,
}

/// A call as the model writes it. What is left out is the first literal that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WrittenSpec {
    pub open: Option<String>,
    /// With `{name}`, and perhaps `{index}` (from 0) or `{number}` (from 1).
    pub name: Option<String>,
    pub name_close: Option<String>,
    pub close: Option<String>,
}

/// The form of ids.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IdSpec {
    pub prefix: String,
    pub length: usize,
}

impl Default for IdSpec {
    fn default() -> IdSpec {
        IdSpec { prefix: "call_".to_owned(), length: 24 }
    }
}

/// How a call's arguments are written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub(super) enum ArgumentsSpec {
    /// One JSON object.
    Json {},
    /// In one object with the name.
    Object(ObjectKeys),
    /// One by one, between markers.
    Tagged(Box<TaggedSpec>),
}

/// Arguments between markers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaggedSpec {
    /// Before a key.
    pub open: String,
    /// Behind it.
    pub key_close: String,
    /// What follows the key is its type, up to this.
    pub kind_close: Option<String>,
    /// The type that means text as it stands.
    #[serde(default)]
    pub kind_string: String,
    /// Types that mean JSON, for constraining: the first is for anything.
    #[serde(default)]
    pub kind_json: Vec<String>,
    /// Before the value, after any white space.
    pub value_open: Option<String>,
    /// Behind it.
    pub close: String,
    /// Between two arguments, for constraining.
    #[serde(default)]
    pub separator: String,
    /// Between key and value, for constraining.
    #[serde(default)]
    pub space: String,
    /// Before the first argument, for constraining.
    #[serde(default)]
    pub before: String,
    /// Behind the last, for constraining.
    #[serde(default)]
    pub after: String,
    /// All arguments as one JSON text, in place of the tags.
    pub block: Option<SectionSpec>,
}
