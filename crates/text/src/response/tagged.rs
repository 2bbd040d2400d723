//! Arguments between markers: each key and value becomes part of a JSON object.

use super::call::{
    JsonArguments, Kind, MAX_NAME_BYTES, Progress, escape_into, quoted, typed, undeclared, unescape,
};
use super::event::ResponseEvent;
use super::format::{Arguments, Body, Tagged};
use super::input::floor;
use super::parser::ResponseParser;
use super::state::{Call, Part, Phase, Reading, Step};
use super::watch::{Found, Role};

/// Bytes of a value that is held until its type is certain. A longer one is a string.
const MAX_HELD_BYTES: usize = 1 << 20;

/// What a value's text amounts to.
fn value_of(text: &str, reading: &Reading) -> String {
    let found = match reading {
        Reading::Typed(kinds) => typed(text, kinds),
        Reading::Undeclared => undeclared(text),
        Reading::Json(kinds) => json(text).or_else(|| typed(text, kinds)),
    };
    found.unwrap_or_else(|| quoted(text))
}

fn json(text: &str) -> Option<String> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok().map(|_| text.trim().to_owned())
}

/// A step that takes text up to a marker.
enum Taken {
    /// The marker, and its end.
    Marker(Role, usize),
    /// More must come.
    More,
    /// The text is longer than its limit.
    TooLong,
}

impl ResponseParser {
    pub(super) fn tagged(&mut self, mut call: Call, part: Part, events: &mut Vec<ResponseEvent>) -> Step {
        let format = self.format.clone();
        let Body::Call(shape) = &format.inner.fields[call.field].body else { return call.waits() };
        let Arguments::Tagged(tagged) = &shape.arguments else { return call.waits() };
        match part {
            Part::Between { any, words } => self.between(call, any, words, events),
            Part::Key { any, mut key } => match self.take(&call, Which::Key, &mut key, MAX_NAME_BYTES) {
                Taken::Marker(_, end) => {
                    self.input.at = end;
                    let key = if shape.unescape { unescape(key.trim()) } else { key.trim().to_owned() };
                    call.phase = Phase::Tagged(match &tagged.kind_close {
                        Some(_) => Part::Kind { any, key, kind: String::new() },
                        None => Part::ValueOpen { any, key, kind: None },
                    });
                    call.goes_on()
                }
                Taken::More => call.with(Part::Key { any, key }).waits(),
                Taken::TooLong => self.broken(call, Part::Key { any, key }, events),
            },
            Part::Kind { any, key, mut kind } => {
                match self.take(&call, Which::Kind, &mut kind, MAX_NAME_BYTES) {
                    Taken::Marker(_, end) => {
                        self.input.at = end;
                        call.with(Part::ValueOpen { any, key, kind: Some(kind) }).goes_on()
                    }
                    Taken::More => call.with(Part::Kind { any, key, kind }).waits(),
                    Taken::TooLong => self.broken(call, Part::Kind { any, key, kind }, events),
                }
            }
            Part::ValueOpen { any, key, kind } => self.value_open(call, tagged, any, key, kind, events),
            Part::Text => self.string(call, events),
            Part::Held { text, reading } => self.held(call, text, reading, events),
            Part::Block(arguments) => self.block(call, arguments, events),
        }
    }

    /// Takes text up to a marker of a watch, at most `limit` bytes in all.
    fn take(&mut self, call: &Call, which: Which, text: &mut String, limit: usize) -> Taken {
        let watches = &self.watches.fields[call.field];
        let watch = match which {
            Which::Key => &watches.key,
            Which::Kind => &watches.kind,
            Which::Value => &watches.value,
        };
        let found = watch.scan(&self.input, None);
        let until = match found {
            Found::Marker(_, start, _) => start,
            Found::Hold(at) => at,
            Found::Nothing => self.input.len(),
        };
        let room = floor(self.input.upto(until), limit.saturating_sub(text.len()));
        text.push_str(self.input.slice(self.input.at..self.input.at + room));
        self.input.at += room;
        match found {
            _ if self.input.at < until => Taken::TooLong,
            Found::Marker(role, _, end) => Taken::Marker(role, end),
            _ => Taken::More,
        }
    }

    fn between(&mut self, mut call: Call, any: bool, words: bool, events: &mut Vec<ResponseEvent>) -> Step {
        let watch = &self.watches.fields[call.field].between;
        let found = if words {
            watch.scan(&self.input, None)
        } else {
            let rest = self.input.rest();
            self.input.at += rest.len() - rest.trim_start().len();
            watch.at(&self.input, self.input.at, None)
        };
        let until = match found {
            Found::Marker(_, start, _) => start,
            Found::Hold(at) => at,
            Found::Nothing if words => self.input.len(),
            Found::Nothing if self.input.rest().is_empty() => {
                return call.with(Part::Between { any, words }).waits();
            }
            Found::Nothing => return call.with(Part::Between { any, words: true }).goes_on(),
        };
        // text that is not an argument becomes content
        let text = self.input.upto(until).to_owned();
        self.input.at = until;
        self.content.text(&text, events);
        let Found::Marker(role, _, end) = found else {
            return call.with(Part::Between { any, words }).waits();
        };
        if words {
            self.content.marker(false, events);
        }
        match role {
            Role::Argument => {
                self.input.at = end;
                call.with(Part::Key { any, key: String::new() }).goes_on()
            }
            Role::Block if !any => {
                self.input.at = end;
                call.with(Part::Block(JsonArguments::new())).goes_on()
            }
            _ => {
                if role != Role::Before {
                    self.input.at = end;
                }
                if role == Role::Block {
                    call.malformed = true;
                    return call.with(Part::Between { any, words }).goes_on();
                }
                call.emit(if any { "}" } else { "{}" }.to_owned(), events);
                self.ended(call, true, events)
            }
        }
    }

    /// Ends the call at a missing marker of a key or type: keeps what was parsed, and treats the
    /// rest as content.
    fn broken(&mut self, mut call: Call, mut part: Part, events: &mut Vec<ResponseEvent>) -> Step {
        call.emit(part.finish(), events);
        call.malformed = true;
        self.ended(call, false, events)
    }

    fn value_open(
        &mut self,
        call: Call,
        tagged: &Tagged,
        any: bool,
        key: String,
        kind: Option<String>,
        events: &mut Vec<ResponseEvent>,
    ) -> Step {
        if tagged.value_open.is_some() {
            let rest = self.input.rest();
            let at = self.input.at + rest.len() - rest.trim_start().len();
            let found = self.watches.fields[call.field].value_open.at(&self.input, at, None);
            match found {
                Found::Marker(_, _, end) => self.input.at = end,
                _ if at == self.input.len() || found != Found::Nothing => {
                    self.input.at = at;
                    return call.with(Part::ValueOpen { any, key, kind }).waits();
                }
                // the value follows without it
                _ => self.input.at = at,
            }
        }
        let declared = self.types.of(&call.name, &key).to_vec();
        let text = declared.is_empty() || declared.contains(&Kind::String);
        let only_text = declared == [Kind::String];
        let reading = match kind.as_deref() {
            Some(kind) if kind == tagged.kind_string && text => None,
            Some(kind) if kind == tagged.kind_string => Some(Reading::Typed(declared)),
            Some(_) => Some(Reading::Json(declared)),
            None if only_text => None,
            None if declared.is_empty() => Some(Reading::Undeclared),
            None => Some(Reading::Typed(declared)),
        };
        call.emit(format!("{}{}:", if any { ',' } else { '{' }, quoted(&key)), events);
        let part = match reading {
            Some(reading) => Part::Held { text: String::new(), reading },
            None => {
                call.emit("\"".to_owned(), events);
                Part::Text
            }
        };
        call.with(part).goes_on()
    }

    fn string(&mut self, mut call: Call, events: &mut Vec<ResponseEvent>) -> Step {
        let mut text = String::new();
        let taken = self.take(&call, Which::Value, &mut text, usize::MAX);
        let mut out = String::new();
        escape_into(&mut out, &text);
        match taken {
            Taken::Marker(role, end) => {
                out.push('"');
                call.emit(out, events);
                self.end_value(&mut call, role, end);
                call.with(Part::Between { any: true, words: false }).goes_on()
            }
            Taken::More | Taken::TooLong => {
                call.emit(out, events);
                call.with(Part::Text).waits()
            }
        }
    }

    fn held(
        &mut self,
        mut call: Call,
        mut text: String,
        reading: Reading,
        events: &mut Vec<ResponseEvent>,
    ) -> Step {
        match self.take(&call, Which::Value, &mut text, MAX_HELD_BYTES) {
            Taken::Marker(role, end) => {
                call.emit(value_of(&text, &reading), events);
                self.end_value(&mut call, role, end);
                call.with(Part::Between { any: true, words: false }).goes_on()
            }
            Taken::More => call.with(Part::Held { text, reading }).waits(),
            Taken::TooLong => {
                let mut out = String::from("\"");
                escape_into(&mut out, &text);
                call.emit(out, events);
                call.with(Part::Text).goes_on()
            }
        }
    }

    fn end_value(&mut self, call: &mut Call, role: Role, end: usize) {
        if role == Role::Next {
            self.input.at = end;
        } else {
            call.malformed = true;
        }
    }

    fn block(
        &mut self,
        mut call: Call,
        mut arguments: JsonArguments,
        events: &mut Vec<ResponseEvent>,
    ) -> Step {
        let mut out = String::new();
        let found = self.watches.fields[call.field].block_end.scan(&self.input, None);
        let until = match found {
            Found::Marker(_, start, _) => start,
            Found::Hold(at) => at,
            Found::Nothing => self.input.len(),
        };
        if !call.malformed {
            let text = self.input.upto(until);
            let read = match arguments.read(text, &mut out) {
                Progress::More => text.len(),
                Progress::Done(read) => {
                    let rest = text.get(read..).unwrap_or_default();
                    call.malformed = !rest.trim().is_empty();
                    if call.malformed { read } else { text.len() }
                }
                Progress::Stuck(read) => {
                    call.malformed = true;
                    arguments.finish_broken(&mut out);
                    read
                }
            };
            self.input.at += read;
        }
        out.push_str(self.input.upto(until));
        self.input.at = until;
        call.emit(out, events);
        let Found::Marker(_, _, end) = found else {
            return call.with(Part::Block(arguments)).waits();
        };
        self.input.at = end;
        if !call.malformed {
            let mut out = String::new();
            call.malformed = !arguments.finish(&mut out);
            call.emit(out, events);
        }
        call.phase = Phase::After;
        call.goes_on()
    }
}

/// Which watch.
#[derive(Clone, Copy)]
enum Which {
    Key,
    Kind,
    Value,
}
