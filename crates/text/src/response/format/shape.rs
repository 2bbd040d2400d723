//! The compiled rules that the parser runs.

use super::region::Region;
use crate::response::call::ObjectKeys;
use crate::response::grammar::ToolGrammar;
use crate::response::pattern::ResponsePattern;
use regex_automata::meta;

/// Origin of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatSource {
    /// The checkpoint's own response template.
    Checkpoint,
    /// A built-in format, chosen by strings in the chat template.
    ChatTemplate,
    /// A built-in format, chosen by the architecture.
    Architecture,
    /// A built-in format, requested by name.
    Named,
    /// The fallback for unknown models, which parses `<think>` only.
    Generic,
}

pub(in crate::response) struct FormatRules {
    pub name: String,
    pub source: FormatSource,
    pub fields: Vec<FormatField>,
    /// The field without an opening marker, to which text outside all other fields belongs.
    pub implicit: Option<usize>,
    pub anchor: Anchor,
    /// Markers without content, such as `<|im_end|>`.
    pub ignore: Vec<String>,
    /// Markers around all calls.
    pub sections: Vec<String>,
    /// End markers of calls, which are ignored outside of calls.
    pub call_ends: Vec<String>,
    // Only from the key `call`. Hugging Face's keys describe parsing, not writing.
    pub grammar: Option<ToolGrammar>,
}

/// The text of a prompt after which the assistant's turn begins.
pub(in crate::response) enum Anchor {
    Literals(Vec<String>),
    Pattern(meta::Regex),
}

pub(in crate::response) struct FormatField {
    pub name: String,
    pub kind: FieldKind,
    pub open: Delimiter,
    pub close: Delimiter,
    /// See `FieldSpec::first`.
    pub first: bool,
    pub interrupted_by: Vec<String>,
    pub strip: StripRule,
    /// Text inserted between two pieces of the field.
    pub join: Option<String>,
    pub body: Body,
}

/// The part of a message that a field becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::response) enum FieldKind {
    Reasoning,
    Content,
    Tools,
    Other,
}

/// Where white space around text is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::response) enum StripRule {
    None,
    /// Before tool calls.
    BeforeCalls,
    /// Next to markers.
    AtMarkers,
    /// At the beginning and the end.
    Both,
}

pub(in crate::response) enum Delimiter {
    None,
    Literals(Vec<String>),
    Pattern(ResponsePattern),
}

/// The way to parse a field's text.
pub(in crate::response) enum Body {
    /// Streamed text.
    Text,
    /// A streamed tool call.
    Call(Box<CallShape>),
    /// Parsed as a whole when the field closes.
    Region(Box<Region>),
}

/// The compiled form of [`CallSpec`](super::spec::CallSpec), which describes the fields.
pub(in crate::response) struct CallShape {
    pub name_open: Option<String>,
    pub name_close: Vec<String>,
    pub name_before: Vec<String>,
    pub name_patterns: Vec<meta::Regex>,
    /// The group of the opening pattern that contains the name.
    pub name_group: Option<String>,
    pub unescape: bool,
    pub id_prefix: String,
    pub id_length: usize,
    pub arguments: ArgumentsShape,
    pub or_object: Option<ObjectKeys>,
}

pub(in crate::response) enum ArgumentsShape {
    Json,
    Object(ObjectKeys),
    Tagged(TaggedShape),
}

pub(in crate::response) struct TaggedShape {
    pub open: String,
    pub key_close: String,
    pub kind_close: Option<String>,
    pub kind_string: String,
    pub value_open: Option<String>,
    pub close: String,
    pub block: Option<(String, String)>,
}

impl Delimiter {
    pub fn literals(&self) -> &[String] {
        match self {
            Delimiter::Literals(texts) => texts,
            _ => &[],
        }
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Delimiter::None)
    }
}

impl CallShape {
    pub fn markers(&self) -> impl Iterator<Item = &str> {
        let tagged = match &self.arguments {
            ArgumentsShape::Tagged(tagged) => Some(tagged),
            _ => None,
        };
        let parts = tagged.into_iter().flat_map(|tagged| {
            let literal = [&tagged.open, &tagged.key_close, &tagged.close];
            let block = tagged.block.iter().flat_map(|(open, close)| [open, close]);
            literal.into_iter().chain(&tagged.kind_close).chain(&tagged.value_open).chain(block)
        });
        let names = self.name_open.iter().chain(&self.name_close).chain(&self.name_before);
        names.chain(parts).map(String::as_str)
    }
}
