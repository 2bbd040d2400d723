//! Parsing of a tool call while it streams: name, arguments and end, including malformed arguments.

use super::call::{MAX_NAME_BYTES, unescape};
use super::call_events::CallBoundary;
use super::event::{CallEnding, ResponseEvent, append};
use super::format::{ArgumentsShape, Body, CallShape};
use super::input::floor;
use super::parser::ResponseParser;
use super::pattern;
use super::state::{CallPhase, CallStep, JsonReader, OpenCall, TaggedPosition};
use super::watch::{MarkerRole, WatchMatch};

impl ResponseParser {
    pub(super) fn call(&mut self, mut call: OpenCall, events: &mut Vec<ResponseEvent>) -> CallStep {
        let phase = std::mem::replace(&mut call.phase, CallPhase::Raw);
        match phase {
            CallPhase::Header(header) => self.header(call, header, events),
            CallPhase::Json(reader) => self.json(call, reader, events),
            CallPhase::Raw => self.raw_arguments(call, events),
            CallPhase::Tagged(part) => self.tagged(call, part, events),
            CallPhase::After => self.after(call, events),
        }
    }

    fn header(
        &mut self,
        mut call: OpenCall,
        mut header: String,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        let format = self.format.clone();
        let Body::Call(shape) = &format.inner.fields[call.field].body else { return call.waits() };
        if shape.or_object.is_some() && header.trim().is_empty() {
            let space = self.input.rest().len() - self.input.rest().trim_start().len();
            let end = self.input.at + space;
            header.push_str(self.input.upto(end));
            self.input.at = end;
            if matches!(self.input.bytes().get(end), Some(b'{' | b'[')) && self.opens_object(&call) {
                call.raw.push_str(&header);
                call.phase = CallPhase::Json(JsonReader::objects());
                return call.goes_on();
            }
        }
        let found = self.watches.fields[call.field].header.scan(&self.input, None);
        let until = match found {
            WatchMatch::Marker(_, start, _) => start,
            WatchMatch::Hold(at) => at,
            WatchMatch::Nothing => self.input.len(),
        };
        let plain = shape.name_patterns.is_empty();
        let room = name_room(&header, self.input.upto(until), plain);
        header.push_str(self.input.slice(self.input.at..self.input.at + room));
        self.input.at += room;
        if self.input.at < until {
            return self.no_call(&call, &header, events);
        }
        let WatchMatch::Marker(role, _, end) = found else {
            call.phase = CallPhase::Header(header);
            return call.waits();
        };
        let marker = self.input.upto(end).to_owned();
        if role == MarkerRole::NameOpen {
            call.raw.push_str(&header);
            call.raw.push_str(&marker);
            self.input.at = end;
            call.phase = CallPhase::Header(String::new());
            return call.goes_on();
        }
        let announced =
            named(shape, header.trim()).is_some_and(|(name, id)| self.announce(&mut call, name, id, events));
        if !announced {
            return self.no_call(&call, &header, events);
        }
        if role != MarkerRole::Before {
            self.input.at = end;
        }
        if role == MarkerRole::Close {
            call.emit("{}".to_owned(), events);
            return self.ended(call, true, events);
        }
        call.phase = match shape.arguments {
            ArgumentsShape::Tagged(_) => CallPhase::Tagged(TaggedPosition::begin()),
            _ => CallPhase::Json(JsonReader::arguments()),
        };
        call.goes_on()
    }

    /// Whether the bracket here begins calls written as objects, and not one of the header's markers.
    fn opens_object(&self, call: &OpenCall) -> bool {
        self.watches.fields[call.field].header.at(&self.input, self.input.at, None) == WatchMatch::Nothing
    }

    fn raw_arguments(&mut self, call: OpenCall, events: &mut Vec<ResponseEvent>) -> CallStep {
        let found = self.watches.fields[call.field].end.scan(&self.input, None);
        let until = match found {
            WatchMatch::Marker(_, start, _) => start,
            WatchMatch::Hold(at) => at,
            WatchMatch::Nothing => self.input.len(),
        };
        call.emit(self.input.upto(until).to_owned(), events);
        self.input.at = until;
        let WatchMatch::Marker(role, _, end) = found else {
            return OpenCall { phase: CallPhase::Raw, ..call }.waits();
        };
        if role == MarkerRole::Close {
            self.input.at = end;
        }
        self.ended(call, false, events)
    }

    fn after(&mut self, mut call: OpenCall, events: &mut Vec<ResponseEvent>) -> CallStep {
        let rest = self.input.rest();
        self.input.at += rest.len() - rest.trim_start().len();
        if self.input.rest().is_empty() {
            call.phase = CallPhase::After;
            return call.waits();
        }
        match self.at_end(&call) {
            CallBoundary::Hold => {
                call.phase = CallPhase::After;
                call.waits()
            }
            CallBoundary::Close | CallBoundary::Before | CallBoundary::Nothing => {
                self.ended(call, true, events)
            }
        }
    }

    /// The output is over inside a call.
    pub(super) fn finish_call(&mut self, mut call: OpenCall, events: &mut Vec<ResponseEvent>) {
        let Some(index) = call.index else {
            let header = match &call.phase {
                CallPhase::Header(header) => header.as_str(),
                _ => "",
            };
            if !matches!(call.phase, CallPhase::After) {
                self.give_up(&format!("{}{header}", call.raw), events);
            }
            return;
        };
        let mut rest = String::new();
        let ending = match &mut call.phase {
            CallPhase::After => CallEnding::Complete,
            CallPhase::Json(JsonReader::Arguments(arguments)) if !arguments.is_empty() => {
                match arguments.finish(&mut rest) {
                    true => CallEnding::Complete,
                    false => CallEnding::Cut,
                }
            }
            CallPhase::Json(JsonReader::Objects(objects)) => {
                rest = objects.finish();
                CallEnding::Cut
            }
            CallPhase::Tagged(part) => {
                rest = part.finish();
                CallEnding::Cut
            }
            CallPhase::Raw => CallEnding::Malformed,
            CallPhase::Header(_) | CallPhase::Json(_) => CallEnding::Cut,
        };
        call.emit(rest, events);
        append(events, ResponseEvent::ToolCallEnd { index, ending });
    }
}

/// How much of a text can belong to what stands where the name is: up to a second word, or the limit.
fn name_room(header: &str, text: &str, plain: bool) -> usize {
    let room = floor(text, MAX_NAME_BYTES.saturating_sub(header.len()));
    if !plain {
        return room;
    }
    let mut word = !header.trim().is_empty();
    let mut gap = word && header.ends_with(char::is_whitespace);
    for (i, c) in text.char_indices().take_while(|(i, _)| *i < room) {
        match c.is_whitespace() {
            true => gap = word,
            false if gap && word => return i,
            false => word = true,
        }
    }
    room
}

/// Name and id in what stands where the name is.
fn named(shape: &CallShape, header: &str) -> Option<(String, Option<String>)> {
    let unescaped = |text: String| if shape.unescape { unescape(&text) } else { text };
    if shape.name_patterns.is_empty() {
        return Some((unescaped(header.to_owned()), None));
    }
    let mut found = shape.name_patterns.iter().filter(|regex| regex.is_match(header));
    let mut groups = pattern::captures(found.next()?, header);
    Some((unescaped(groups.remove("name")?), groups.remove("id")))
}
