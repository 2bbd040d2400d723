//! The compiled format that the parser runs.

use super::region::Region;
use crate::response::call::ObjectKeys;
use crate::response::grammar::ToolGrammar;
use crate::response::pattern::ResponsePattern;
use regex_automata::meta;

/// Where a format came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatSource {
    /// The checkpoint's own response template.
    Checkpoint,
    /// One of ours, known by strings in the chat template.
    ChatTemplate,
    /// One of ours, known by the architecture.
    Architecture,
    /// One of ours, asked for by name.
    Named,
    /// Nothing is known of the model: `<think>` only.
    Generic,
}

pub(in crate::response) struct FormatRules {
    pub name: String,
    pub source: FormatSource,
    pub fields: Vec<FormatField>,
    /// The field that text outside the others belongs to.
    pub implicit: Option<usize>,
    pub anchor: Anchor,
    /// Markers that carry nothing.
    pub ignore: Vec<String>,
    /// Markers around all calls.
    pub sections: Vec<String>,
    pub call_ends: Vec<String>,
    pub grammar: Option<ToolGrammar>,
}

/// What ends everything in a prompt that is not the assistant's present turn.
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
    /// Put between two pieces of text that something else stood between.
    pub join: Option<String>,
    pub body: Body,
}

/// What a field's text becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::response) enum FieldKind {
    Reasoning,
    Content,
    Tools,
    Other,
}

/// Which white space around text is dropped.
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

/// How a field's text is read.
pub(in crate::response) enum Body {
    /// As it comes.
    Text,
    /// As a tool call.
    Call(Box<CallShape>),
    /// As a whole, when it is closed.
    Region(Box<Region>),
}

/// How a call is read.
pub(in crate::response) struct CallShape {
    pub name_open: Option<String>,
    pub name_close: Vec<String>,
    pub name_before: Vec<String>,
    pub name_patterns: Vec<meta::Regex>,
    /// The name is in this group of the opening pattern.
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
