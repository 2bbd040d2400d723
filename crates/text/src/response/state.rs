//! States of the parser: outside all fields, in a field, or at a position of a tool call.

use super::call::{JsonArguments, ObjectCalls, ParameterType, escape_into, quoted};
use super::event::{ResponseEvent, append};
use super::format::{ArgumentsShape, CallShape};
use std::collections::HashMap;

/// Maximum bytes of a region that is parsed as a whole, or of a call before its name is known.
/// Longer text is content.
// The raw text is kept to be emitted as content if parsing fails, so it must be bounded.
pub(super) const MAX_REGION_BYTES: usize = 4 << 20;

pub(super) enum ParserState {
    /// Outside all fields. `first`: only white space has followed the last field.
    Outside { first: bool },
    /// In a field whose text is streamed.
    Text { field: usize, first: bool },
    /// In a field that is parsed when it closes: the opening marker, its groups, and the text so
    /// far.
    Region { field: usize, open: String, captures: HashMap<String, String>, body: String },
    // Boxed, because it is several times as large as the other states.
    /// In a tool call.
    Call(Box<OpenCall>),
}

/// Whether the parser can take another step, or needs more input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParserFlow {
    Continue,
    Wait,
}

/// Result of a step within a call.
pub(super) type CallStep = (ParserState, ParserFlow);

/// A tool call that is being parsed.
pub(super) struct OpenCall {
    pub field: usize,
    // Until the call is announced it may turn out to be text, which must then be emitted unchanged.
    /// All text since the opening marker, until the call is announced.
    pub raw: String,
    /// The call's index, once the call is announced.
    pub index: Option<usize>,
    pub name: String,
    pub phase: CallPhase,
    /// The model broke its format.
    pub malformed: bool,
}

/// The next part of a call.
pub(super) enum CallPhase {
    /// The name, with the text read so far.
    Header(String),
    /// The arguments as JSON, or objects that contain them.
    Json(JsonReader),
    /// Malformed JSON, up to the call's end.
    Raw,
    /// Arguments between markers.
    Tagged(TaggedPosition),
    /// The call's end.
    After,
}

/// A reader of a call's JSON.
pub(super) enum JsonReader {
    /// For JSON that consists of the arguments.
    Arguments(JsonArguments),
    /// For objects with name and arguments.
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

/// The next part of tagged arguments. `any`: at least one argument has been emitted.
pub(super) enum TaggedPosition {
    /// `words`: text that is not an argument precedes the next argument.
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
    /// A string, which is streamed.
    Text,
    /// A value that is held until it is complete, because its type depends on its text.
    Held {
        text: String,
        reading: ValueReading,
    },
    /// All arguments as one JSON text.
    Block(JsonArguments),
}

/// How a held value is parsed.
pub(super) enum ValueReading {
    /// As the first matching declared type, otherwise as a string.
    Typed(Vec<ParameterType>),
    /// As JSON, otherwise like `Typed`. For formats that mark a value as JSON.
    Json(Vec<ParameterType>),
    /// As JSON if valid, otherwise as a string. For parameters without a declared type.
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
            // All other formats write the name before the arguments.
            _ => CallPhase::Header(String::new()),
        };
        OpenCall { field, raw: open, index: None, name, phase, malformed: false }
    }

    pub fn wait_step(self) -> CallStep {
        (ParserState::Call(Box::new(self)), ParserFlow::Wait)
    }

    pub fn continue_step(self) -> CallStep {
        (ParserState::Call(Box::new(self)), ParserFlow::Continue)
    }

    /// Emits arguments of an announced call.
    pub fn emit(&self, delta: String, events: &mut Vec<ResponseEvent>) {
        if let Some(index) = self.index.filter(|_| !delta.is_empty()) {
            append(events, ResponseEvent::ToolCallArguments { index, delta });
        }
    }

    pub fn with(self, part: TaggedPosition) -> OpenCall {
        OpenCall { phase: CallPhase::Tagged(part), ..self }
    }
}

impl TaggedPosition {
    pub fn begin() -> TaggedPosition {
        TaggedPosition::Between { any: false, words: false }
    }

    /// Unfinished arguments at the end of the output. All emitted arguments form a prefix of JSON.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        match self {
            // An incomplete value has no type yet. A string that is not closed can hold any text.
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
