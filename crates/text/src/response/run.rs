//! The parser's executor: a state machine over a format's fields. Input arrives in pieces.
//!
//! A step consumes input up to the next marker. If the rest of the input could be the beginning of
//! a marker, the step ends, and the rest waits for the next piece.

use super::event::ResponseEvent;
use super::format::{Body, Delimiter, FieldKind, ResponseFormat};
use super::input::{OutputEnd, TextOrigin};
use super::options::ParserOptions;
use super::parser::ResponseParser;
use super::state::{CallPhase, JsonReader, OpenCall, ParserFlow, ParserState};
use super::watch::{MarkerRole, WatchMatch};
use latent_jinja::RenderedText;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

impl ResponseFormat {
    /// Whether the end of the prompt opens the reasoning. Some templates end with `<think>`.
    pub fn opens_reasoning(&self, prompt: &RenderedText) -> bool {
        let mut parser = ResponseParser::new(self, &Value::Null, &ParserOptions::default());
        parser.continue_prompt(prompt);
        parser.in_reasoning()
    }
}

impl ResponseParser {
    /// Starts in the state that the end of the prompt leaves: the template may open the reasoning,
    /// and the caller may have begun the answer. No text of the prompt is emitted. Call this before
    /// the first [`push`](Self::push).
    pub fn continue_prompt(&mut self, prompt: &RenderedText) {
        let mut at = self.format.assistant_turn(prompt);
        // The prompt goes through the parser, so that its markers change the state. The events are
        // dropped.
        let mut events = Vec::new();
        let content = prompt.content.iter().filter(|range| range.end > at).cloned().collect::<Vec<_>>();
        for range in content.into_iter().chain(std::iter::once(prompt.text.len()..prompt.text.len())) {
            // Only the template's text can hold markers. A user's message that contains `<think>`
            // must not open the reasoning.
            for (until, origin) in
                [(range.start.max(at), TextOrigin::Template), (range.end, TextOrigin::Message)]
            {
                if let Some(text) = prompt.text.get(at..until).filter(|text| !text.is_empty()) {
                    self.input.push(text, origin);
                    self.run(&mut events);
                }
                at = at.max(until);
            }
        }
        self.reasoning.forget();
        self.content.forget();
        self.loose.clear();
        // Calls of the prompt are not part of the response: its indices start at 0.
        (self.calls, self.ids) = (0, HashSet::new());
        // The beginning of the call or region was not emitted, so the response cannot continue it.
        if matches!(self.state, ParserState::Call(_) | ParserState::Region { .. }) {
            self.state = ParserState::Outside { first: true };
        }
    }

    /// Parses the next piece of output. `special`: the piece is the text of one control token
    /// ([`ParserOptions::control_tokens`]).
    pub fn push(&mut self, piece: &str, special: bool, events: &mut Vec<ResponseEvent>) {
        if !piece.is_empty() && self.input.ended.is_none() {
            self.input.push(piece, if special { TextOrigin::Control } else { TextOrigin::Text });
            self.run(events);
        }
    }

    /// Ends the output: emits held text and closes the open field or call. If the output ends
    /// inside a marker, after one of its control tokens, the partial marker is dropped.
    pub fn finish(&mut self, events: &mut Vec<ResponseEvent>) {
        self.end(OutputEnd::Whole, events);
    }

    /// Ends an output that a limit cut off. Unlike [`ResponseParser::finish`], drops a partial
    /// marker and a call without a name, so that the result is a prefix of the result of the longer
    /// output.
    pub fn cut(&mut self, events: &mut Vec<ResponseEvent>) {
        self.end(OutputEnd::Cut, events);
    }

    fn end(&mut self, how: OutputEnd, events: &mut Vec<ResponseEvent>) {
        if self.input.ended.is_some() {
            return;
        }
        self.input.ended = Some(how);
        // A partial marker that was held can now be decided.
        self.run(events);
        match self.take_state() {
            ParserState::Outside { .. } | ParserState::Text { .. } => {}
            ParserState::Region { field, open, captures, body } => {
                let read = self.end_region(field, &captures, &body, events);
                // A cut call or field is dropped: its raw text would not be part of the answer if
                // the output were longer.
                let text =
                    matches!(self.format.inner.fields[field].kind, FieldKind::Reasoning | FieldKind::Content);
                if !read && (text || how == OutputEnd::Whole) {
                    self.revert_to_content(&(open + &body), events);
                }
            }
            ParserState::Call(call) if call.index.is_some() || how == OutputEnd::Whole => {
                self.finish_call(*call, events);
            }
            ParserState::Call(_) => {}
        }
        self.end_loose(events);
        self.reasoning.finish(events);
        self.content.finish(events);
    }

    fn run(&mut self, events: &mut Vec<ResponseEvent>) {
        while self.input.at < self.input.len() && self.step(events) == ParserFlow::Continue {}
        self.input.compact();
    }

    fn step(&mut self, events: &mut Vec<ResponseEvent>) -> ParserFlow {
        match self.take_state() {
            ParserState::Outside { first } => self.outside(first, events),
            ParserState::Text { field, first } => self.text(field, first, events),
            ParserState::Region { field, open, captures, body } => {
                self.region(field, open, captures, body, events)
            }
            ParserState::Call(call) => {
                let (next, flow) = self.call(*call, events);
                self.state = next;
                flow
            }
        }
    }

    /// Whether some markers of the format count only at the beginning of a text (`first`).
    fn distinguishes_start(&self) -> bool {
        self.format.inner.fields.iter().any(|field| field.first)
    }

    /// Emits text up to a position as part of a field.
    fn emit_until(&mut self, field: Option<usize>, end: usize, events: &mut Vec<ResponseEvent>) {
        let text = self.input.upto(end);
        match field.map(|field| &self.format.inner.fields[field]) {
            Some(field) if !matches!(field.body, Body::Text) => self.loose.push_str(text),
            Some(field) if field.kind == FieldKind::Reasoning => self.reasoning.text(text, events),
            Some(_) => self.content.text(text, events),
            // A template without an implicit field excludes this text from the message.
            None => {}
        }
        self.input.at = end;
    }

    /// Emits white space at the beginning of a text, and matches markers at its end. Returns `None`
    /// if the input ends first.
    fn marker_after_space(
        &mut self,
        field: Option<usize>,
        inside: bool,
        events: &mut Vec<ResponseEvent>,
    ) -> Option<WatchMatch> {
        let rest = self.input.rest();
        let end = self.input.at + rest.len() - rest.trim_start().len();
        self.emit_until(field, end, events);
        if end == self.input.len() {
            return None;
        }
        let watch = match field {
            Some(field) if inside => &self.watches.fields[field].first,
            _ => &self.watches.outside_first,
        };
        Some(watch.at(&self.input, end, self.last_empty))
    }

    fn outside(&mut self, first: bool, events: &mut Vec<ResponseEvent>) -> ParserFlow {
        let implicit = self.format.inner.implicit;
        let first = first && self.distinguishes_start();
        let found = if first {
            match self.marker_after_space(implicit, false, events) {
                Some(found) => found,
                None => return ParserFlow::Wait,
            }
        } else {
            self.watches.outside.scan(&self.input, self.last_empty)
        };
        self.state = ParserState::Outside { first };
        match found {
            WatchMatch::Marker(role, start, end) => {
                self.emit_until(implicit, start, events);
                self.marker(role, end, events);
                ParserFlow::Continue
            }
            WatchMatch::Hold(at) => {
                self.emit_until(implicit, at, events);
                ParserFlow::Wait
            }
            // Text other than white space: from now on, markers with `first` need a control token.
            WatchMatch::Nothing if first => {
                self.state = ParserState::Outside { first: false };
                ParserFlow::Continue
            }
            WatchMatch::Nothing => {
                self.emit_until(implicit, self.input.len(), events);
                ParserFlow::Wait
            }
        }
    }

    /// Handles a marker outside all fields, from the current position to `end`.
    fn marker(&mut self, role: MarkerRole, end: usize, events: &mut Vec<ResponseEvent>) {
        let open = self.input.upto(end).to_owned();
        if open.is_empty() {
            self.last_empty = Some(self.input.absolute(end));
        }
        self.input.at = end;
        self.end_loose(events);
        // White space before a marker can be dropped only now. Kimi-K3 keeps it except before
        // calls.
        let calls = self.begins_calls(role, &open);
        self.content.marker(calls, events);
        self.reasoning.marker(calls, events);
        let MarkerRole::Open(field) = role else { return };
        let opened = &self.format.inner.fields[field];
        let captures = match &opened.open {
            Delimiter::Pattern(pattern) => pattern.captures(&open),
            _ => HashMap::new(),
        };
        self.state = match &opened.body {
            Body::Text => ParserState::Text { field, first: true },
            Body::Region(_) => ParserState::Region { field, open, captures, body: String::new() },
            Body::Call(shape) => {
                let call = OpenCall::new(field, shape, open, &captures);
                ParserState::Call(Box::new(self.announce_captured(call, events)))
            }
        };
    }

    fn begins_calls(&self, role: MarkerRole, marker: &str) -> bool {
        match role {
            MarkerRole::Open(field) => self.format.inner.fields[field].kind == FieldKind::Tools,
            _ => self.format.inner.grammar.as_ref().is_some_and(|g| g.section_open.trim() == marker),
        }
    }

    /// Announces a call whose name is a group of its opening pattern.
    fn announce_captured(&mut self, mut call: OpenCall, events: &mut Vec<ResponseEvent>) -> OpenCall {
        if matches!(call.phase, CallPhase::Json(JsonReader::Arguments(_))) {
            let name = std::mem::take(&mut call.name);
            self.announce(&mut call, name, None, events);
        }
        call
    }

    fn text(&mut self, field: usize, first: bool, events: &mut Vec<ResponseEvent>) -> ParserFlow {
        let first = first && self.format.inner.fields[field].first;
        let found = if first {
            match self.marker_after_space(Some(field), true, events) {
                Some(found) => found,
                None => {
                    self.state = ParserState::Text { field, first };
                    return ParserFlow::Wait;
                }
            }
        } else {
            self.watches.fields[field].inside.scan(&self.input, self.last_empty)
        };
        self.state = ParserState::Text { field, first };
        match found {
            WatchMatch::Marker(role, start, end) => {
                self.emit_until(Some(field), start, events);
                if end == start {
                    self.last_empty = Some(self.input.absolute(end));
                }
                match role {
                    // The opening marker again: a model may repeat the `<think>` of its prompt.
                    MarkerRole::Ignore => self.input.at = end,
                    // The marker opens another field and is parsed again outside.
                    MarkerRole::Before => self.close_text(field, events),
                    _ => {
                        self.input.at = end;
                        self.close_text(field, events);
                    }
                }
                ParserFlow::Continue
            }
            WatchMatch::Hold(at) => {
                self.emit_until(Some(field), at, events);
                ParserFlow::Wait
            }
            WatchMatch::Nothing if first => {
                self.state = ParserState::Text { field, first: false };
                ParserFlow::Continue
            }
            WatchMatch::Nothing => {
                self.emit_until(Some(field), self.input.len(), events);
                ParserFlow::Wait
            }
        }
    }

    fn close_text(&mut self, field: usize, events: &mut Vec<ResponseEvent>) {
        self.reasoning.marker(false, events);
        if self.format.inner.fields[field].kind == FieldKind::Content {
            self.content.marker(false, events);
        }
        self.state = ParserState::Outside { first: true };
    }
}
