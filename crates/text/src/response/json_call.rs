//! Calls whose arguments are JSON, or which are JSON objects as a whole.

use super::call::{JsonArguments, ObjectCalls, ObjectEvent, ObjectKeys, Progress};
use super::call_events::End;
use super::event::ResponseEvent;
use super::format::{Arguments, Body};
use super::input::floor;
use super::parser::ResponseParser;
use super::state::{Call, JsonReader, MAX_REGION_BYTES, Phase, Step};

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
        mut call: Call,
        mut reader: JsonReader,
        events: &mut Vec<ResponseEvent>,
    ) -> Step {
        if call.index.is_none() && matches!(reader, JsonReader::Arguments(_)) {
            return self.no_call(&call, "", events);
        }
        if self.at_control() {
            match self.at_end(&call) {
                End::Nothing => {}
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
            Progress::More => {
                self.input.at += length;
                call.phase = Phase::Json(reader);
                call.goes_on()
            }
            Progress::Done(read) => {
                self.input.at += read;
                if self.closes_itself(&call) {
                    return self.ended(call, true, events);
                }
                call.phase = Phase::After;
                call.goes_on()
            }
            Progress::Stuck(read) => {
                self.input.at += read;
                let end = self.at_end(&call);
                self.json_ends(call, reader, &end, events)
            }
        }
    }

    /// A format whose calls end with their JSON.
    fn closes_itself(&self, call: &Call) -> bool {
        self.format.inner.fields[call.field].close.is_none()
    }

    /// The JSON ends, or cannot go on.
    fn json_ends(
        &mut self,
        mut call: Call,
        reader: JsonReader,
        end: &End,
        events: &mut Vec<ResponseEvent>,
    ) -> Step {
        if matches!(end, End::Hold) {
            call.phase = Phase::Json(reader);
            return call.waits();
        }
        match reader {
            JsonReader::Arguments(arguments) => self.arguments_end(call, arguments, end, events),
            JsonReader::Objects(objects) => self.objects_end(call, objects, end, events),
        }
    }

    fn arguments_end(
        &mut self,
        mut call: Call,
        mut arguments: JsonArguments,
        end: &End,
        events: &mut Vec<ResponseEvent>,
    ) -> Step {
        let mut out = String::new();
        let nothing = arguments.is_empty();
        let whole = if matches!(end, End::Nothing) && nothing { false } else { arguments.finish(&mut out) };
        call.emit(out, events);
        if matches!(end, End::Nothing) {
            call.malformed = true;
            call.phase = Phase::Raw;
            return call.goes_on();
        }
        self.ended(call, whole, events)
    }

    /// Reads objects and gives out what they tell.
    fn read_objects(
        &mut self,
        call: &mut Call,
        objects: &mut ObjectCalls,
        text: &str,
        events: &mut Vec<ResponseEvent>,
    ) -> Progress {
        let format = self.format.clone();
        let Some(keys) = object_keys(&format.inner.fields[call.field].body) else {
            return Progress::Stuck(0);
        };
        let mut found = Vec::new();
        let progress = objects.read(text, keys, &mut found);
        let read = match progress {
            Progress::More => text.len(),
            Progress::Done(read) | Progress::Stuck(read) => read,
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
        mut call: Call,
        mut objects: ObjectCalls,
        end: &End,
        events: &mut Vec<ResponseEvent>,
    ) -> Step {
        if call.index.is_some() && objects.started() {
            call.emit(objects.finish(), events);
            call.malformed = true;
            if matches!(end, End::Nothing) {
                call.phase = Phase::Raw;
                return call.goes_on();
            }
            return self.ended(call, false, events);
        }
        if objects.is_between() && !matches!(end, End::Nothing) && call.raw.trim().is_empty() {
            return self.ended(call, true, events);
        }
        self.no_call(&call, "", events)
    }
}

/// The keys of calls that are written as objects.
fn object_keys(body: &Body) -> Option<&ObjectKeys> {
    let Body::Call(shape) = body else { return None };
    match &shape.arguments {
        Arguments::Object(keys) => Some(keys),
        _ => shape.or_object.as_ref(),
    }
}
