//! The response parser: its format and its state.

use super::call::ToolTypes;
use super::event::ResponseEvent;
use super::format::{Body, FieldKind, FormatRules, ResponseFormat, StripRule};
use super::input::StreamWindow;
use super::options::ParserOptions;
use super::state::ParserState;
use super::text_out::TextOut;
use super::watches::Watches;
use serde_json::Value;
use std::collections::HashSet;

/// Parses one response, as a whole or while it streams. The concatenated events do not depend on
/// how the output is divided into pieces.
///
/// ```
/// use latent_text::{CallEnding, ParserOptions, ResponseEvent, ResponseFormat, ResponseParser};
/// let format = ResponseFormat::named("hermes")?;
/// let mut parser = ResponseParser::new(&format, &serde_json::json!([]), &ParserOptions::default());
/// let mut events = Vec::new();
/// for piece in ["<thi", "nk>Hm.</think>\n<tool_call>{\"name\": \"f\", \"argu", "ments\": {}}</tool_call>"] {
///     parser.push(piece, false, &mut events);
/// }
/// parser.finish(&mut events);
/// assert_eq!(events[0], ResponseEvent::Reasoning("Hm.".into()));
/// assert!(matches!(&events[1], ResponseEvent::ToolCallStart { name, .. } if name == "f"));
/// assert_eq!(events[2], ResponseEvent::ToolCallArguments { index: 0, delta: "{}".into() });
/// assert_eq!(events[3], ResponseEvent::ToolCallEnd { index: 0, ending: CallEnding::Complete });
/// # Ok::<(), latent_text::ResponseFormatError>(())
/// ```
pub struct ResponseParser {
    pub(super) format: ResponseFormat,
    pub(super) watches: Watches,
    pub(super) types: ToolTypes,
    pub(super) input: StreamWindow,
    pub(super) state: ParserState,
    pub(super) reasoning: TextOut,
    pub(super) content: TextOut,
    /// Text of the implicit field (outside all markers) if that field is a region.
    pub(super) loose: String,
    pub(super) seed: u64,
    pub(super) calls: usize,
    pub(super) ids: HashSet<String>,
    // A pattern can match the empty string. Without this position, the parser would find such a
    // marker again and again at the same byte and never advance.
    /// Position in the stream of the last empty marker.
    pub(super) last_empty: Option<usize>,
}

impl ResponseParser {
    /// A parser for one response. `tools` is the request's list of tools: objects with `name` and
    /// `parameters`, or such objects in `function`. It is null or empty if the request has no
    /// tools.
    pub fn new(format: &ResponseFormat, tools: &Value, options: &ParserOptions) -> ResponseParser {
        let inner: &FormatRules = &format.inner;
        let out = |kind, event| {
            let field = inner.fields.iter().find(|field| field.kind == kind);
            let strip = field.map_or(StripRule::AtMarkers, |field| field.strip);
            TextOut::new(event, strip, field.and_then(|field| field.join.as_ref()))
        };
        let reasoning = inner.fields.iter().position(|field| field.kind == FieldKind::Reasoning);
        let state = match reasoning.filter(|_| options.starts_in_reasoning && options.parse_reasoning) {
            // A region is parsed from its opening marker to its closing one. It cannot start in
            // the middle.
            Some(field) if matches!(inner.fields[field].body, Body::Text) => {
                ParserState::Text { field, first: true }
            }
            _ => ParserState::Outside { first: true },
        };
        ResponseParser {
            watches: Watches::new(inner, options),
            types: ToolTypes::new(tools),
            input: StreamWindow::default(),
            state,
            reasoning: out(FieldKind::Reasoning, ResponseEvent::Reasoning),
            content: out(FieldKind::Content, ResponseEvent::Content),
            loose: String::new(),
            seed: options.id_seed,
            calls: 0,
            ids: HashSet::new(),
            last_empty: None,
            format: format.clone(),
        }
    }

    /// Whether the next text is reasoning.
    pub fn in_reasoning(&self) -> bool {
        let field = match &self.state {
            ParserState::Text { field, .. } => Some(*field),
            ParserState::Outside { .. } => self.format.inner.implicit,
            _ => None,
        };
        field.is_some_and(|field| self.format.inner.fields[field].kind == FieldKind::Reasoning)
    }

    /// Takes the state for one step. A step that sets no other state continues outside all fields.
    pub(super) fn take_state(&mut self) -> ParserState {
        std::mem::replace(&mut self.state, ParserState::Outside { first: true })
    }

    /// Emits the raw text of a call or region as content, because it could not be parsed.
    pub(super) fn revert_to_content(&mut self, raw: &str, events: &mut Vec<ResponseEvent>) {
        // The opening marker dropped white space before it. That white space is text again.
        self.content.undo_marker(events);
        self.content.text(raw, events);
        self.state = ParserState::Outside { first: false };
    }
}
