//! Tool calls whose arguments are JSON, or which are JSON objects.

use super::call::{JsonArguments, ObjectCalls, ObjectEvent, ObjectKeys, ReadProgress};
use super::call_events::CallBoundary;
use super::event::ResponseEvent;
use super::format::{ArgumentsShape, Body};
use super::input::floor;
use super::parser::ResponseParser;
use super::state::{CallPhase, CallStep, JsonReader, MAX_REGION_BYTES, OpenCall};

impl ResponseParser {
    /// End of the input that the JSON reader may consume: the next control token.
    fn readable(&self) -> usize {
        let at = self.input.at;
        // A control token inside a JSON string ends the call only if it begins an end marker.
        // Otherwise its first character is read as text, and the next one is checked again.
        match self.input.next_control(at) {
            next if next > at => next,
            _ => at + self.input.rest().chars().next().map_or(0, char::len_utf8),
        }
    }

    fn at_control(&self) -> bool {
        self.input.next_control(self.input.at) == self.input.at
    }

    pub(super) fn json(
        &mut self,
        mut call: OpenCall,
        mut reader: JsonReader,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        // The call's name was invalid.
        if call.index.is_none() && matches!(reader, JsonReader::Arguments(_)) {
            return self.reject_call(&call, "", events);
        }
        // The end marker as text may be part of a JSON string, so only control tokens are checked
        // before the JSON ends.
        if self.at_control() {
            match self.at_end(&call) {
                CallBoundary::Nothing => {}
                end => return self.json_ends(call, reader, &end, events),
            }
        }
        let end = self.readable();
        let (length, progress) = match &mut reader {
            JsonReader::Arguments(arguments) => {
                let mut out = String::new();
                let progress = arguments.read(self.input.upto(end), &mut out);
                call.emit(out, events);
                (end - self.input.at, progress)
            }
            JsonReader::Objects(objects) => {
                // Before the name is known, the raw text is kept, so it is limited.
                let announced = call.index.is_some();
                let room =
                    if announced { usize::MAX } else { MAX_REGION_BYTES.saturating_sub(call.raw.len()) };
                let room = floor(self.input.upto(end), room);
                if room == 0 {
                    return self.reject_call(&call, "", events);
                }
                let text = self.input.slice(self.input.at..self.input.at + room).to_owned();
                (room, self.read_objects(&mut call, objects, &text, events))
            }
        };
        match progress {
            ReadProgress::More => {
                self.input.at += length;
                call.phase = CallPhase::Json(reader);
                call.continue_step()
            }
            ReadProgress::Done(read) => {
                self.input.at += read;
                if self.closes_itself(&call) {
                    return self.ended(call, true, events);
                }
                call.phase = CallPhase::After;
                call.continue_step()
            }
            ReadProgress::Stuck(read) => {
                self.input.at += read;
                let end = self.at_end(&call);
                self.json_ends(call, reader, &end, events)
            }
        }
    }

    /// Whether the end of the JSON ends a call (Mistral: calls have no end marker).
    fn closes_itself(&self, call: &OpenCall) -> bool {
        self.format.inner.fields[call.field].close.is_none()
    }

    /// Handles the end of the JSON at an end marker or an invalid byte.
    fn json_ends(
        &mut self,
        mut call: OpenCall,
        reader: JsonReader,
        end: &CallBoundary,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        if matches!(end, CallBoundary::Hold) {
            call.phase = CallPhase::Json(reader);
            return call.wait_step();
        }
        match reader {
            JsonReader::Arguments(arguments) => self.arguments_end(call, arguments, end, events),
            JsonReader::Objects(objects) => self.objects_end(call, objects, end, events),
        }
    }

    fn arguments_end(
        &mut self,
        mut call: OpenCall,
        mut arguments: JsonArguments,
        end: &CallBoundary,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        let mut out = String::new();
        let nothing = arguments.is_empty();
        // Empty arguments before an end marker mean `{}`. Empty arguments before an invalid byte do
        // not: the raw text follows instead.
        let whole =
            if matches!(end, CallBoundary::Nothing) && nothing { false } else { arguments.finish(&mut out) };
        call.emit(out, events);
        // Invalid JSON: emit the text as it is, up to an end marker.
        if matches!(end, CallBoundary::Nothing) {
            call.malformed = true;
            call.phase = CallPhase::Raw;
            return call.continue_step();
        }
        self.ended(call, whole, events)
    }

    /// Reads objects and emits their events.
    fn read_objects(
        &mut self,
        call: &mut OpenCall,
        objects: &mut ObjectCalls,
        text: &str,
        events: &mut Vec<ResponseEvent>,
    ) -> ReadProgress {
        let format = self.format.clone();
        let Some(keys) = object_keys(&format.inner.fields[call.field].body) else {
            return ReadProgress::Stuck(0);
        };
        let mut found = Vec::new();
        let progress = objects.read(text, keys, &mut found);
        let read = match progress {
            ReadProgress::More => text.len(),
            ReadProgress::Done(read) | ReadProgress::Stuck(read) => read,
        };
        // Text after a complete call may turn out to be no call. It must be in `raw`, even if it
        // arrived in one piece with the end of the call.
        let mut from = 0;
        for event in found {
            match event {
                ObjectEvent::Start { name, id } => {
                    self.announce(call, name, id, events);
                }
                ObjectEvent::Arguments(delta) => call.emit(delta, events),
                ObjectEvent::End(left) => {
                    self.end_call(call, true, events);
                    call.raw.clear();
                    from = text.len() - left;
                }
            }
        }
        if call.index.is_none() {
            call.raw.push_str(text.get(from..read).unwrap_or_default());
        }
        progress
    }

    fn objects_end(
        &mut self,
        mut call: OpenCall,
        mut objects: ObjectCalls,
        end: &CallBoundary,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        if call.index.is_some() && objects.started() {
            call.emit(objects.finish(), events);
            call.malformed = true;
            if matches!(end, CallBoundary::Nothing) {
                call.phase = CallPhase::Raw;
                return call.continue_step();
            }
            return self.ended(call, false, events);
        }
        // All objects are complete, and only white space follows them.
        if objects.is_between() && !matches!(end, CallBoundary::Nothing) && call.raw.trim().is_empty() {
            return self.ended(call, true, events);
        }
        self.reject_call(&call, "", events)
    }
}

/// The keys of a format whose calls are objects.
fn object_keys(body: &Body) -> Option<&ObjectKeys> {
    let Body::Call(shape) = body else { return None };
    match &shape.arguments {
        ArgumentsShape::Object(keys) => Some(keys),
        _ => shape.or_object.as_ref(),
    }
}
