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

/// Parses one response, whole or while it arrives: any way to cut the output into pieces gives the same concatenated events.
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
    /// Text outside all fields, where the field that it belongs to is parsed as a whole.
    pub(super) loose: String,
    pub(super) seed: u64,
    pub(super) calls: usize,
    pub(super) ids: HashSet<String>,
    /// Where the last marker without any text was found, so that it is found once.
    pub(super) last_empty: Option<usize>,
}

impl ResponseParser {
    /// A parser for one response. `tools` are those of the request, as clients send them: a list of objects with `name` and `parameters`,
    /// each perhaps in `function`; null or empty if there are none.
    pub fn new(format: &ResponseFormat, tools: &Value, options: &ParserOptions) -> ResponseParser {
        let inner: &FormatRules = &format.inner;
        let out = |kind, event| {
            let field = inner.fields.iter().find(|field| field.kind == kind);
            let strip = field.map_or(StripRule::AtMarkers, |field| field.strip);
            TextOut::new(event, strip, field.and_then(|field| field.join.as_ref()))
        };
        let reasoning = inner.fields.iter().position(|field| field.kind == FieldKind::Reasoning);
        let state = match reasoning.filter(|_| options.starts_in_reasoning && options.parse_reasoning) {
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

    /// Whether what comes next is reasoning.
    pub fn in_reasoning(&self) -> bool {
        let field = match &self.state {
            ParserState::Text { field, .. } => Some(*field),
            ParserState::Outside { .. } => self.format.inner.implicit,
            _ => None,
        };
        field.is_some_and(|field| self.format.inner.fields[field].kind == FieldKind::Reasoning)
    }

    pub(super) fn take_state(&mut self) -> ParserState {
        std::mem::replace(&mut self.state, ParserState::Outside { first: true })
    }

    /// What looked like the beginning of something was content.
    pub(super) fn give_up(&mut self, raw: &str, events: &mut Vec<ResponseEvent>) {
        self.content.undo_marker(events);
        self.content.text(raw, events);
        self.state = ParserState::Outside { first: false };
    }
}
