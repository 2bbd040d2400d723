//! States of the parser: outside all fields, in a field, or in a part of a tool call.

use super::call::{JsonArguments, ObjectCalls, ParameterType, escape_into, quoted};
use super::event::{ResponseEvent, append};
use super::format::{ArgumentsShape, CallShape};
use std::collections::HashMap;

/// Bytes of a region that is parsed as a whole, or of a call before its name is known. What is longer is content.
pub(super) const MAX_REGION_BYTES: usize = 4 << 20;

pub(super) enum ParserState {
    /// Outside all fields. `first`: nothing but white space has come since the last of them.
    Outside { first: bool },
    /// In a field whose text goes out as it comes.
    Text { field: usize, first: bool },
    /// In a field that is parsed when it closes: its opening, the opening's groups, and the text so far.
    Region { field: usize, open: String, captures: HashMap<String, String>, body: String },
    /// In a tool call.
    Call(Box<OpenCall>),
}

/// Whether the parser can go on with what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParserFlow {
    Continue,
    Wait,
}

/// What a step of a call leads to.
pub(super) type CallStep = (ParserState, ParserFlow);

/// A call that has begun.
pub(super) struct OpenCall {
    pub field: usize,
    /// Everything since its opening, until it is announced.
    pub raw: String,
    /// Once it is announced.
    pub index: Option<usize>,
    pub name: String,
    pub phase: CallPhase,
    /// The model broke its format.
    pub malformed: bool,
}

/// What of a call comes next.
pub(super) enum CallPhase {
    /// What stands where the name is.
    Header(String),
    /// JSON, of which the arguments are a part or the whole.
    Json(JsonReader),
    /// Malformed JSON, up to the call's end.
    Raw,
    /// Arguments between markers.
    Tagged(TaggedPosition),
    /// The call's end.
    After,
}

/// What reads the JSON of a call.
pub(super) enum JsonReader {
    /// The arguments alone.
    Arguments(JsonArguments),
    /// Objects with name and arguments.
    Objects(ObjectCalls),
}

impl JsonReader {
    pub fn arguments() -> JsonReader {
        JsonReader::Arguments(JsonArguments::new())
    }

    pub fn objects() -> JsonReader {
        JsonReader::Objects(ObjectCalls::new())
    }
}

/// What of the arguments comes next. `any`: some argument went out already.
pub(super) enum TaggedPosition {
    /// `words`: text that is not an argument precedes the next one.
    Between {
        any: bool,
        words: bool,
    },
    Key {
        any: bool,
        key: String,
    },
    Kind {
        any: bool,
        key: String,
        kind: String,
    },
    ValueOpen {
        any: bool,
        key: String,
        kind: Option<String>,
    },
    /// A string that goes out as it comes.
    Text,
    /// A value that goes out when it is whole.
    Held {
        text: String,
        reading: ValueReading,
    },
    /// All arguments as one JSON text.
    Block(JsonArguments),
}

/// How a held value is read.
pub(super) enum ValueReading {
    /// Of the declared types, else a string.
    Typed(Vec<ParameterType>),
    /// As JSON, else of the declared types, else a string.
    Json(Vec<ParameterType>),
    /// As JSON where it is any, else a string: nothing is declared.
    Undeclared,
}

impl OpenCall {
    pub fn new(
        field: usize,
        shape: &CallShape,
        open: String,
        captures: &HashMap<String, String>,
    ) -> OpenCall {
        let mut name = String::new();
        let phase = match (&shape.arguments, &shape.name_group) {
            (ArgumentsShape::Json, Some(group)) => {
                name = captures.get(group).cloned().unwrap_or_default();
                CallPhase::Json(JsonReader::arguments())
            }
            (ArgumentsShape::Object(_), _) => CallPhase::Json(JsonReader::objects()),
            _ => CallPhase::Header(String::new()),
        };
        OpenCall { field, raw: open, index: None, name, phase, malformed: false }
    }

    pub fn waits(self) -> CallStep {
        (ParserState::Call(Box::new(self)), ParserFlow::Wait)
    }

    pub fn goes_on(self) -> CallStep {
        (ParserState::Call(Box::new(self)), ParserFlow::Continue)
    }

    /// Appends to the arguments.
    pub fn emit(&self, delta: String, events: &mut Vec<ResponseEvent>) {
        if let Some(index) = self.index.filter(|_| !delta.is_empty()) {
            append(events, ResponseEvent::ToolCallArguments { index, delta });
        }
    }

    /// In this part of its tagged arguments.
    pub fn with(self, part: TaggedPosition) -> OpenCall {
        OpenCall { phase: CallPhase::Tagged(part), ..self }
    }
}

impl TaggedPosition {
    pub fn begin() -> TaggedPosition {
        TaggedPosition::Between { any: false, words: false }
    }

    /// What was not given out when the output is over, as far as it belongs to the arguments: a prefix of JSON, as the rest is.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        match self {
            TaggedPosition::Held { text, .. } => {
                out.push('"');
                escape_into(&mut out, text);
            }
            TaggedPosition::Key { any, key } => {
                out.push_str(if *any { ",\"" } else { "{\"" });
                escape_into(&mut out, key);
            }
            TaggedPosition::Kind { any, key, .. } | TaggedPosition::ValueOpen { any, key, .. } => {
                out.push(if *any { ',' } else { '{' });
                out.push_str(&quoted(key));
            }
            TaggedPosition::Block(arguments) if !arguments.is_empty() => {
                arguments.finish(&mut out);
            }
            TaggedPosition::Between { .. } | TaggedPosition::Text | TaggedPosition::Block(_) => {}
        }
        out
    }
}
