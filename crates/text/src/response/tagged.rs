//! Arguments between markers: each key and value becomes part of a JSON object.

use super::call::{
    JsonArguments, MAX_NAME_BYTES, ParameterType, ReadProgress, escape_into, quoted, typed, undeclared,
    unescape,
};
use super::event::ResponseEvent;
use super::format::{ArgumentsShape, Body, TaggedShape};
use super::input::floor;
use super::parser::ResponseParser;
use super::state::{CallPhase, CallStep, OpenCall, TaggedPosition, ValueReading};
use super::watch::{MarkerRole, WatchMatch};

/// Bytes of a value that is held until its type is certain. A longer one is a string.
const MAX_HELD_BYTES: usize = 1 << 20;

/// What a value's text amounts to.
fn value_of(text: &str, reading: &ValueReading) -> String {
    let found = match reading {
        ValueReading::Typed(kinds) => typed(text, kinds),
        ValueReading::Undeclared => undeclared(text),
        ValueReading::Json(kinds) => json(text).or_else(|| typed(text, kinds)),
    };
    found.unwrap_or_else(|| quoted(text))
}

fn json(text: &str) -> Option<String> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok().map(|_| text.trim().to_owned())
}

/// A step that takes text up to a marker.
enum TakenText {
    /// The marker, and its end.
    Marker(MarkerRole, usize),
    /// More must come.
    More,
    /// The text is longer than its limit.
    TooLong,
}

impl ResponseParser {
    pub(super) fn tagged(
        &mut self,
        mut call: OpenCall,
        part: TaggedPosition,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        let format = self.format.clone();
        let Body::Call(shape) = &format.inner.fields[call.field].body else { return call.waits() };
        let ArgumentsShape::Tagged(tagged) = &shape.arguments else { return call.waits() };
        match part {
            TaggedPosition::Between { any, words } => self.between(call, any, words, events),
            TaggedPosition::Key { any, mut key } => {
                match self.take(&call, WatchKind::Key, &mut key, MAX_NAME_BYTES) {
                    TakenText::Marker(_, end) => {
                        self.input.at = end;
                        let key = if shape.unescape { unescape(key.trim()) } else { key.trim().to_owned() };
                        call.phase = CallPhase::Tagged(match &tagged.kind_close {
                            Some(_) => TaggedPosition::Kind { any, key, kind: String::new() },
                            None => TaggedPosition::ValueOpen { any, key, kind: None },
                        });
                        call.goes_on()
                    }
                    TakenText::More => call.with(TaggedPosition::Key { any, key }).waits(),
                    TakenText::TooLong => self.broken(call, TaggedPosition::Key { any, key }, events),
                }
            }
            TaggedPosition::Kind { any, key, mut kind } => {
                match self.take(&call, WatchKind::Kind, &mut kind, MAX_NAME_BYTES) {
                    TakenText::Marker(_, end) => {
                        self.input.at = end;
                        call.with(TaggedPosition::ValueOpen { any, key, kind: Some(kind) }).goes_on()
                    }
                    TakenText::More => call.with(TaggedPosition::Kind { any, key, kind }).waits(),
                    TakenText::TooLong => self.broken(call, TaggedPosition::Kind { any, key, kind }, events),
                }
            }
            TaggedPosition::ValueOpen { any, key, kind } => {
                self.value_open(call, tagged, any, key, kind, events)
            }
            TaggedPosition::Text => self.string(call, events),
            TaggedPosition::Held { text, reading } => self.held(call, text, reading, events),
            TaggedPosition::Block(arguments) => self.block(call, arguments, events),
        }
    }

    /// Takes text up to a marker of a watch, at most `limit` bytes in all.
    fn take(&mut self, call: &OpenCall, which: WatchKind, text: &mut String, limit: usize) -> TakenText {
        let watches = &self.watches.fields[call.field];
        let watch = match which {
            WatchKind::Key => &watches.key,
            WatchKind::Kind => &watches.kind,
            WatchKind::Value => &watches.value,
        };
        let found = watch.scan(&self.input, None);
        let until = match found {
            WatchMatch::Marker(_, start, _) => start,
            WatchMatch::Hold(at) => at,
            WatchMatch::Nothing => self.input.len(),
        };
        let room = floor(self.input.upto(until), limit.saturating_sub(text.len()));
        text.push_str(self.input.slice(self.input.at..self.input.at + room));
        self.input.at += room;
        match found {
            _ if self.input.at < until => TakenText::TooLong,
            WatchMatch::Marker(role, _, end) => TakenText::Marker(role, end),
            _ => TakenText::More,
        }
    }

    fn between(
        &mut self,
        mut call: OpenCall,
        any: bool,
        words: bool,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        let watch = &self.watches.fields[call.field].between;
        let found = if words {
            watch.scan(&self.input, None)
        } else {
            let rest = self.input.rest();
            self.input.at += rest.len() - rest.trim_start().len();
            watch.at(&self.input, self.input.at, None)
        };
        let until = match found {
            WatchMatch::Marker(_, start, _) => start,
            WatchMatch::Hold(at) => at,
            WatchMatch::Nothing if words => self.input.len(),
            WatchMatch::Nothing if self.input.rest().is_empty() => {
                return call.with(TaggedPosition::Between { any, words }).waits();
            }
            WatchMatch::Nothing => return call.with(TaggedPosition::Between { any, words: true }).goes_on(),
        };
        // text that is not an argument becomes content
        let text = self.input.upto(until).to_owned();
        self.input.at = until;
        self.content.text(&text, events);
        let WatchMatch::Marker(role, _, end) = found else {
            return call.with(TaggedPosition::Between { any, words }).waits();
        };
        if words {
            self.content.marker(false, events);
        }
        match role {
            MarkerRole::Argument => {
                self.input.at = end;
                call.with(TaggedPosition::Key { any, key: String::new() }).goes_on()
            }
            MarkerRole::Block if !any => {
                self.input.at = end;
                call.with(TaggedPosition::Block(JsonArguments::new())).goes_on()
            }
            _ => {
                if role != MarkerRole::Before {
                    self.input.at = end;
                }
                if role == MarkerRole::Block {
                    call.malformed = true;
                    return call.with(TaggedPosition::Between { any, words }).goes_on();
                }
                call.emit(if any { "}" } else { "{}" }.to_owned(), events);
                self.ended(call, true, events)
            }
        }
    }

    /// Ends the call at a missing marker of a key or type: keeps what was parsed, and treats the
    /// rest as content.
    fn broken(
        &mut self,
        mut call: OpenCall,
        mut part: TaggedPosition,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        call.emit(part.finish(), events);
        call.malformed = true;
        self.ended(call, false, events)
    }

    fn value_open(
        &mut self,
        call: OpenCall,
        tagged: &TaggedShape,
        any: bool,
        key: String,
        kind: Option<String>,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        if tagged.value_open.is_some() {
            let rest = self.input.rest();
            let at = self.input.at + rest.len() - rest.trim_start().len();
            let found = self.watches.fields[call.field].value_open.at(&self.input, at, None);
            match found {
                WatchMatch::Marker(_, _, end) => self.input.at = end,
                _ if at == self.input.len() || found != WatchMatch::Nothing => {
                    self.input.at = at;
                    return call.with(TaggedPosition::ValueOpen { any, key, kind }).waits();
                }
                // the value follows without it
                _ => self.input.at = at,
            }
        }
        let declared = self.types.of(&call.name, &key).to_vec();
        let text = declared.is_empty() || declared.contains(&ParameterType::String);
        let only_text = declared == [ParameterType::String];
        let reading = match kind.as_deref() {
            Some(kind) if kind == tagged.kind_string && text => None,
            Some(kind) if kind == tagged.kind_string => Some(ValueReading::Typed(declared)),
            Some(_) => Some(ValueReading::Json(declared)),
            None if only_text => None,
            None if declared.is_empty() => Some(ValueReading::Undeclared),
            None => Some(ValueReading::Typed(declared)),
        };
        call.emit(format!("{}{}:", if any { ',' } else { '{' }, quoted(&key)), events);
        let part = match reading {
            Some(reading) => TaggedPosition::Held { text: String::new(), reading },
            None => {
                call.emit("\"".to_owned(), events);
                TaggedPosition::Text
            }
        };
        call.with(part).goes_on()
    }

    fn string(&mut self, mut call: OpenCall, events: &mut Vec<ResponseEvent>) -> CallStep {
        let mut text = String::new();
        let taken = self.take(&call, WatchKind::Value, &mut text, usize::MAX);
        let mut out = String::new();
        escape_into(&mut out, &text);
        match taken {
            TakenText::Marker(role, end) => {
                out.push('"');
                call.emit(out, events);
                self.end_value(&mut call, role, end);
                call.with(TaggedPosition::Between { any: true, words: false }).goes_on()
            }
            TakenText::More | TakenText::TooLong => {
                call.emit(out, events);
                call.with(TaggedPosition::Text).waits()
            }
        }
    }

    fn held(
        &mut self,
        mut call: OpenCall,
        mut text: String,
        reading: ValueReading,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        match self.take(&call, WatchKind::Value, &mut text, MAX_HELD_BYTES) {
            TakenText::Marker(role, end) => {
                call.emit(value_of(&text, &reading), events);
                self.end_value(&mut call, role, end);
                call.with(TaggedPosition::Between { any: true, words: false }).goes_on()
            }
            TakenText::More => call.with(TaggedPosition::Held { text, reading }).waits(),
            TakenText::TooLong => {
                let mut out = String::from("\"");
                escape_into(&mut out, &text);
                call.emit(out, events);
                call.with(TaggedPosition::Text).goes_on()
            }
        }
    }

    fn end_value(&mut self, call: &mut OpenCall, role: MarkerRole, end: usize) {
        if role == MarkerRole::Next {
            self.input.at = end;
        } else {
            call.malformed = true;
        }
    }

    fn block(
        &mut self,
        mut call: OpenCall,
        mut arguments: JsonArguments,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        let mut out = String::new();
        let found = self.watches.fields[call.field].block_end.scan(&self.input, None);
        let until = match found {
            WatchMatch::Marker(_, start, _) => start,
            WatchMatch::Hold(at) => at,
            WatchMatch::Nothing => self.input.len(),
        };
        if !call.malformed {
            let text = self.input.upto(until);
            let read = match arguments.read(text, &mut out) {
                ReadProgress::More => text.len(),
                ReadProgress::Done(read) => {
                    let rest = text.get(read..).unwrap_or_default();
                    call.malformed = !rest.trim().is_empty();
                    if call.malformed { read } else { text.len() }
                }
                ReadProgress::Stuck(read) => {
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
        let WatchMatch::Marker(_, _, end) = found else {
            return call.with(TaggedPosition::Block(arguments)).waits();
        };
        self.input.at = end;
        if !call.malformed {
            let mut out = String::new();
            call.malformed = !arguments.finish(&mut out);
            call.emit(out, events);
        }
        call.phase = CallPhase::After;
        call.goes_on()
    }
}

#[derive(Clone, Copy)]
enum WatchKind {
    Key,
    Kind,
    Value,
}
