//! Calls whose arguments are JSON, or which are JSON objects as a whole.

use super::call::{JsonArguments, ObjectCalls, ObjectEvent, ObjectKeys, ReadProgress};
use super::call_events::CallBoundary;
use super::event::ResponseEvent;
use super::format::{ArgumentsShape, Body};
use super::input::floor;
use super::parser::ResponseParser;
use super::state::{CallPhase, CallStep, JsonReader, MAX_REGION_BYTES, OpenCall};

impl ResponseParser {
    /// Text that JSON can be read from, up to the next control token. At a control token: its first character, so that what it may begin
    /// is looked at first.
    fn readable(&self) -> usize {
        let at = self.input.at;
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
        if call.index.is_none() && matches!(reader, JsonReader::Arguments(_)) {
            return self.no_call(&call, "", events);
        }
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
                let announced = call.index.is_some();
                let room =
                    if announced { usize::MAX } else { MAX_REGION_BYTES.saturating_sub(call.raw.len()) };
                let room = floor(self.input.upto(end), room);
                if room == 0 {
                    return self.no_call(&call, "", events);
                }
                let text = self.input.slice(self.input.at..self.input.at + room).to_owned();
                (room, self.read_objects(&mut call, objects, &text, events))
            }
        };
        match progress {
            ReadProgress::More => {
                self.input.at += length;
                call.phase = CallPhase::Json(reader);
                call.goes_on()
            }
            ReadProgress::Done(read) => {
                self.input.at += read;
                if self.closes_itself(&call) {
                    return self.ended(call, true, events);
                }
                call.phase = CallPhase::After;
                call.goes_on()
            }
            ReadProgress::Stuck(read) => {
                self.input.at += read;
                let end = self.at_end(&call);
                self.json_ends(call, reader, &end, events)
            }
        }
    }

    /// A format whose calls end with their JSON.
    fn closes_itself(&self, call: &OpenCall) -> bool {
        self.format.inner.fields[call.field].close.is_none()
    }

    /// The JSON ends, or cannot go on.
    fn json_ends(
        &mut self,
        mut call: OpenCall,
        reader: JsonReader,
        end: &CallBoundary,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        if matches!(end, CallBoundary::Hold) {
            call.phase = CallPhase::Json(reader);
            return call.waits();
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
        let whole =
            if matches!(end, CallBoundary::Nothing) && nothing { false } else { arguments.finish(&mut out) };
        call.emit(out, events);
        if matches!(end, CallBoundary::Nothing) {
            call.malformed = true;
            call.phase = CallPhase::Raw;
            return call.goes_on();
        }
        self.ended(call, whole, events)
    }

    /// Reads objects and gives out what they tell.
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
        // what comes behind a call may turn out to be none
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
                return call.goes_on();
            }
            return self.ended(call, false, events);
        }
        if objects.is_between() && !matches!(end, CallBoundary::Nothing) && call.raw.trim().is_empty() {
            return self.ended(call, true, events);
        }
        self.no_call(&call, "", events)
    }
}

/// The keys of calls that are written as objects.
fn object_keys(body: &Body) -> Option<&ObjectKeys> {
    let Body::Call(shape) = body else { return None };
    match &shape.arguments {
        ArgumentsShape::Object(keys) => Some(keys),
        _ => shape.or_object.as_ref(),
    }
}
