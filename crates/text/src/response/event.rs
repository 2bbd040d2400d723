//! Events of a parsed response.

use serde_json::Value;

/// An increment of the parsed response. The concatenated deltas of one kind (or of one call) are
/// the parsed value. They do not depend on how the output was divided into pieces.
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
        /// The id that the model wrote, if its format has ids; otherwise one derived from the
        /// caller's seed.
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
    Field { name: String, value: Value },
}

/// How a tool call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnding {
    /// The arguments are one valid JSON value.
    Complete,
    /// The model broke its format. The arguments are the text that it wrote, which may not be JSON.
    Malformed,
    /// The output ended inside the call: the arguments are a prefix.
    Cut,
}

/// Appends an event. A delta is joined to a preceding delta of the same kind.
pub(super) fn append(events: &mut Vec<ResponseEvent>, event: ResponseEvent) {
    // One `push` can emit many small deltas (held white space, then text). Joining them gives the
    // client one event, and makes the events of the whole output comparable to those of its pieces.
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
