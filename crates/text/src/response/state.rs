//! States of the parser: outside all fields, in a field, or in a part of a tool call.

use super::call::{JsonArguments, Kind, ObjectCalls, escape_into, quoted};
use super::event::{ResponseEvent, append};
use super::format::{Arguments, CallShape};
use std::collections::HashMap;

/// Bytes of a region that is parsed as a whole, or of a call before its name is known. What is longer is content.
pub(super) const MAX_REGION_BYTES: usize = 4 << 20;

/// Where the parser is.
pub(super) enum State {
    /// Outside all fields. `first`: nothing but white space has come since the last of them.
    Outside { first: bool },
    /// In a field whose text goes out as it comes.
    Text { field: usize, first: bool },
    /// In a field that is parsed when it closes: its opening, the opening's groups, and the text so far.
    Region { field: usize, open: String, captures: HashMap<String, String>, body: String },
    /// In a tool call.
    Call(Box<Call>),
}

/// Whether the parser can go on with what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Wait,
}

/// What a step of a call leads to.
pub(super) type Step = (State, Flow);

/// A call that has begun.
pub(super) struct Call {
    pub field: usize,
    /// Everything since its opening, until it is announced.
    pub raw: String,
    /// Once it is announced.
    pub index: Option<usize>,
    pub name: String,
    pub phase: Phase,
    /// The model broke its format.
    pub malformed: bool,
}

/// What of a call comes next.
pub(super) enum Phase {
    /// What stands where the name is.
    Header(String),
    /// JSON, of which the arguments are a part or the whole.
    Json(JsonReader),
    /// Malformed JSON, up to the call's end.
    Raw,
    /// Arguments between markers.
    Tagged(Part),
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
pub(super) enum Part {
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
        reading: Reading,
    },
    /// All arguments as one JSON text.
    Block(JsonArguments),
}

/// How a held value is read.
pub(super) enum Reading {
    /// Of the declared types, else a string.
    Typed(Vec<Kind>),
    /// As JSON, else of the declared types, else a string.
    Json(Vec<Kind>),
    /// As JSON where it is any, else a string: nothing is declared.
    Undeclared,
}

impl Call {
    pub fn new(field: usize, shape: &CallShape, open: String, captures: &HashMap<String, String>) -> Call {
        let mut name = String::new();
        let phase = match (&shape.arguments, &shape.name_group) {
            (Arguments::Json, Some(group)) => {
                name = captures.get(group).cloned().unwrap_or_default();
                Phase::Json(JsonReader::arguments())
            }
            (Arguments::Object(_), _) => Phase::Json(JsonReader::objects()),
            _ => Phase::Header(String::new()),
        };
        Call { field, raw: open, index: None, name, phase, malformed: false }
    }

    pub fn waits(self) -> Step {
        (State::Call(Box::new(self)), Flow::Wait)
    }

    pub fn goes_on(self) -> Step {
        (State::Call(Box::new(self)), Flow::Continue)
    }

    /// Appends to the arguments.
    pub fn emit(&self, delta: String, events: &mut Vec<ResponseEvent>) {
        if let Some(index) = self.index.filter(|_| !delta.is_empty()) {
            append(events, ResponseEvent::ToolCallArguments { index, delta });
        }
    }

    /// In this part of its tagged arguments.
    pub fn with(self, part: Part) -> Call {
        Call { phase: Phase::Tagged(part), ..self }
    }
}

impl Part {
    pub fn begin() -> Part {
        Part::Between { any: false, words: false }
    }

    /// What was not given out when the output is over, as far as it belongs to the arguments: a prefix of JSON, as the rest is.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        match self {
            Part::Held { text, .. } => {
                out.push('"');
                escape_into(&mut out, text);
            }
            Part::Key { any, key } => {
                out.push_str(if *any { ",\"" } else { "{\"" });
                escape_into(&mut out, key);
            }
            Part::Kind { any, key, .. } | Part::ValueOpen { any, key, .. } => {
                out.push(if *any { ',' } else { '{' });
                out.push_str(&quoted(key));
            }
            Part::Block(arguments) if !arguments.is_empty() => {
                arguments.finish(&mut out);
            }
            Part::Between { .. } | Part::Text | Part::Block(_) => {}
        }
        out
    }
}
