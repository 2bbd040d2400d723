//! Events of a parsed response.

use serde_json::Value;

/// A piece of the parsed response. Deltas are only ever appended to: those of one kind (and of one call), concatenated, are the
/// parsed value, whatever pieces the output arrived in.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ResponseEvent {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// A tool call begins. Its arguments follow, then its end; calls do not overlap.
    ToolCallStart {
        /// 0 for the first call of the response.
        index: usize,
        /// The model's own id where its format has one, else one made from the caller's seed.
        id: String,
        /// The function's name.
        name: String,
    },
    /// More of a call's arguments: JSON text.
    ToolCallArguments {
        /// Which call.
        index: usize,
        /// The text to append.
        delta: String,
    },
    ToolCallEnd {
        /// Which call.
        index: usize,
        /// Whether the arguments are valid JSON.
        ending: CallEnding,
    },
    /// A field of the checkpoint's own template that is neither reasoning, content nor tool calls.
    Field {
        name: String,
        /// What its region was parsed to.
        value: Value,
    },
}

/// How a tool call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnding {
    /// The arguments are one valid JSON value.
    Complete,
    /// The model wrote something that its format does not allow: the arguments are what it wrote, and may not be JSON.
    Malformed,
    /// The output ended inside the call: the arguments are a prefix.
    Cut,
}

/// Appends, joining a delta to the one before it of the same kind.
pub(super) fn append(events: &mut Vec<ResponseEvent>, event: ResponseEvent) {
    use ResponseEvent::{Content, Reasoning, ToolCallArguments};
    match (events.last_mut(), &event) {
        (Some(Reasoning(text)), Reasoning(more)) | (Some(Content(text)), Content(more)) => {
            text.push_str(more)
        }
        (Some(ToolCallArguments { index, delta }), ToolCallArguments { index: same, delta: more })
            if index == same =>
        {
            delta.push_str(more)
        }
        _ => events.push(event),
    }
}
