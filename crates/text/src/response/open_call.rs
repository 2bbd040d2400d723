//! Parsing of a streaming tool call: name, arguments and end.

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
        let Body::Call(shape) = &format.inner.fields[call.field].body else { return call.wait_step() };
        // Mistral before v11 writes `[TOOL_CALLS] [{"name": …}]`; v11 and later write the name
        // here.
        if shape.or_object.is_some() && header.trim().is_empty() {
            let space = self.input.rest().len() - self.input.rest().trim_start().len();
            let end = self.input.at + space;
            header.push_str(self.input.upto(end));
            self.input.at = end;
            if matches!(self.input.bytes().get(end), Some(b'{' | b'[')) && self.opens_object(&call) {
                call.raw.push_str(&header);
                call.phase = CallPhase::Json(JsonReader::objects());
                return call.continue_step();
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
        // The text before the marker cannot be a name: the model wrote about its format.
        if self.input.at < until {
            return self.reject_call(&call, &header, events);
        }
        let WatchMatch::Marker(role, _, end) = found else {
            call.phase = CallPhase::Header(header);
            return call.wait_step();
        };
        let marker = self.input.upto(end).to_owned();
        if role == MarkerRole::NameOpen {
            call.raw.push_str(&header);
            call.raw.push_str(&marker);
            self.input.at = end;
            call.phase = CallPhase::Header(String::new());
            return call.continue_step();
        }
        let announced =
            named(shape, header.trim()).is_some_and(|(name, id)| self.announce(&mut call, name, id, events));
        if !announced {
            return self.reject_call(&call, &header, events);
        }
        if role != MarkerRole::Before {
            self.input.at = end;
        }
        // The call ends after its name: GLM writes calls without arguments like this.
        if role == MarkerRole::Close {
            call.emit("{}".to_owned(), events);
            return self.ended(call, true, events);
        }
        call.phase = match shape.arguments {
            ArgumentsShape::Tagged(_) => CallPhase::Tagged(TaggedPosition::begin()),
            _ => CallPhase::Json(JsonReader::arguments()),
        };
        call.continue_step()
    }

    /// Whether the bracket at the current position begins an object, and not a marker of the
    /// header.
    fn opens_object(&self, call: &OpenCall) -> bool {
        self.watches.fields[call.field].header.at(&self.input, self.input.at, None) == WatchMatch::Nothing
    }

    /// Emits malformed arguments unchanged, up to an end marker.
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
            return OpenCall { phase: CallPhase::Raw, ..call }.wait_step();
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
            return call.wait_step();
        }
        match self.at_end(&call) {
            CallBoundary::Hold => {
                call.phase = CallPhase::After;
                call.wait_step()
            }
            // The arguments are complete, so a missing end marker does not make the call malformed.
            CallBoundary::Close | CallBoundary::Before | CallBoundary::Nothing => {
                self.ended(call, true, events)
            }
        }
    }

    /// Ends a call at the end of the output.
    pub(super) fn finish_call(&mut self, mut call: OpenCall, events: &mut Vec<ResponseEvent>) {
        // Without an index the call was not announced, and its text is content.
        let Some(index) = call.index else {
            let header = match &call.phase {
                CallPhase::Header(header) => header.as_str(),
                _ => "",
            };
            if !matches!(call.phase, CallPhase::After) {
                self.revert_to_content(&format!("{}{header}", call.raw), events);
            }
            return;
        };
        let mut rest = String::new();
        let ending = match &mut call.phase {
            CallPhase::After => CallEnding::Complete,
            // A number is complete only at the end, because more digits could follow.
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

/// Length of the prefix of `text` that can belong to the name: up to a second word or the limit.
/// `header` is the text before it.
fn name_room(header: &str, text: &str, plain: bool) -> usize {
    let room = floor(text, MAX_NAME_BYTES.saturating_sub(header.len()));
    // Names with a pattern can have several words: Kimi-K3 writes attributes.
    if !plain {
        return room;
    }
    // White space before the first word is not a gap, even if it came in an earlier piece.
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

/// Name and id in the text at the position of the name.
fn named(shape: &CallShape, header: &str) -> Option<(String, Option<String>)> {
    let unescaped = |text: String| if shape.unescape { unescape(&text) } else { text };
    if shape.name_patterns.is_empty() {
        return Some((unescaped(header.to_owned()), None));
    }
    let mut found = shape.name_patterns.iter().filter(|regex| regex.is_match(header));
    let mut groups = pattern::captures(found.next()?, header);
    Some((unescaped(groups.remove("name")?), groups.remove("id")))
}
