//! Arguments between markers. Each key and value becomes part of a JSON object.
//!
//! GLM, Ling-3, Kimi-K3, the DSML of DeepSeek-V3.2 and V4, and the GCML of GigaChat-3.5 are written
//! like this.

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

/// Maximum bytes of a value that is held until its type is certain. A longer value is a string.
const MAX_HELD_BYTES: usize = 1 << 20;

/// A value's text as JSON.
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

/// Result of consuming text up to a marker.
enum TakenText {
    /// The marker's role and end.
    Marker(MarkerRole, usize),
    /// The marker has not arrived.
    More,
    /// The text exceeds its limit.
    TooLong,
}

impl ResponseParser {
    pub(super) fn tagged(
        &mut self,
        mut call: OpenCall,
        part: TaggedPosition,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        // The two `else` branches cannot occur: the phase follows from the shape.
        let format = self.format.clone();
        let Body::Call(shape) = &format.inner.fields[call.field].body else { return call.wait_step() };
        let ArgumentsShape::Tagged(tagged) = &shape.arguments else { return call.wait_step() };
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
                        call.continue_step()
                    }
                    TakenText::More => call.with(TaggedPosition::Key { any, key }).wait_step(),
                    TakenText::TooLong => self.broken(call, TaggedPosition::Key { any, key }, events),
                }
            }
            TaggedPosition::Kind { any, key, mut kind } => {
                match self.take(&call, WatchKind::Kind, &mut kind, MAX_NAME_BYTES) {
                    TakenText::Marker(_, end) => {
                        self.input.at = end;
                        call.with(TaggedPosition::ValueOpen { any, key, kind: Some(kind) }).continue_step()
                    }
                    TakenText::More => call.with(TaggedPosition::Kind { any, key, kind }).wait_step(),
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

    /// Appends input up to a marker to `text`, which may have at most `limit` bytes.
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
            // Checked first: a marker beyond the limit must give the same result as text that
            // arrives in pieces and exceeds the limit before its marker.
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
            // White space between arguments is layout and is dropped. White space after other text
            // is kept with that text.
            let rest = self.input.rest();
            self.input.at += rest.len() - rest.trim_start().len();
            watch.at(&self.input, self.input.at, None)
        };
        let until = match found {
            WatchMatch::Marker(_, start, _) => start,
            WatchMatch::Hold(at) => at,
            WatchMatch::Nothing if words => self.input.len(),
            WatchMatch::Nothing if self.input.rest().is_empty() => {
                return call.with(TaggedPosition::Between { any, words }).wait_step();
            }
            WatchMatch::Nothing => {
                return call.with(TaggedPosition::Between { any, words: true }).continue_step();
            }
        };
        // Text that is not an argument becomes content, so that nothing the model wrote is lost
        // (test case "glm: words between arguments").
        let text = self.input.upto(until).to_owned();
        self.input.at = until;
        self.content.text(&text, events);
        let WatchMatch::Marker(role, _, end) = found else {
            return call.with(TaggedPosition::Between { any, words }).wait_step();
        };
        if words {
            self.content.marker(false, events);
        }
        match role {
            MarkerRole::Argument => {
                self.input.at = end;
                call.with(TaggedPosition::Key { any, key: String::new() }).continue_step()
            }
            // Kimi-K3 may write all arguments as one JSON object.
            MarkerRole::Block if !any => {
                self.input.at = end;
                call.with(TaggedPosition::Block(JsonArguments::new())).continue_step()
            }
            _ => {
                if role != MarkerRole::Before {
                    self.input.at = end;
                }
                // A block after single arguments cannot be merged into the emitted object.
                if role == MarkerRole::Block {
                    call.malformed = true;
                    return call.with(TaggedPosition::Between { any, words }).continue_step();
                }
                call.emit(if any { "}" } else { "{}" }.to_owned(), events);
                self.ended(call, true, events)
            }
        }
    }

    /// Ends a call whose key or type exceeds its limit, because a marker is missing. The rest of
    /// the output is content.
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
                    return call.with(TaggedPosition::ValueOpen { any, key, kind }).wait_step();
                }
                // The marker is missing and the value follows (test case "glm: value without its
                // opening").
                _ => self.input.at = at,
            }
        }
        let declared = self.types.of(&call.name, &key).to_vec();
        let text = declared.is_empty() || declared.contains(&ParameterType::String);
        let only_text = declared == [ParameterType::String];
        // `None`: certainly a string, which is streamed. All other values are held until they are
        // complete: `5` may become the number 5 or the string "5 apples".
        let reading = match kind.as_deref() {
            Some(kind) if kind == tagged.kind_string && text => None,
            // The model calls the value a string, but the schema does not allow strings.
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
        call.with(part).continue_step()
    }

    fn string(&mut self, mut call: OpenCall, events: &mut Vec<ResponseEvent>) -> CallStep {
        let mut text = String::new();
        // Without a limit, because the text is emitted and not kept.
        let taken = self.take(&call, WatchKind::Value, &mut text, usize::MAX);
        let mut out = String::new();
        escape_into(&mut out, &text);
        match taken {
            TakenText::Marker(role, end) => {
                out.push('"');
                call.emit(out, events);
                self.end_value(&mut call, role, end);
                call.with(TaggedPosition::Between { any: true, words: false }).continue_step()
            }
            TakenText::More | TakenText::TooLong => {
                call.emit(out, events);
                call.with(TaggedPosition::Text).wait_step()
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
                call.with(TaggedPosition::Between { any: true, words: false }).continue_step()
            }
            TakenText::More => call.with(TaggedPosition::Held { text, reading }).wait_step(),
            // Held text has not been emitted, so it can still become the beginning of a string.
            TakenText::TooLong => {
                let mut out = String::from("\"");
                escape_into(&mut out, &text);
                call.emit(out, events);
                call.with(TaggedPosition::Text).continue_step()
            }
        }
    }

    fn end_value(&mut self, call: &mut OpenCall, role: MarkerRole, end: usize) {
        if role == MarkerRole::Next {
            self.input.at = end;
        } else {
            // The value's own end is missing. The marker belongs to the next part and is parsed
            // again there.
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
        // Arguments of a malformed block are emitted as the model wrote them, up to the end marker.
        if !call.malformed {
            let text = self.input.upto(until);
            let read = match arguments.read(text, &mut out) {
                ReadProgress::More => text.len(),
                ReadProgress::Done(read) => {
                    // Only white space may follow the object.
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
            return call.with(TaggedPosition::Block(arguments)).wait_step();
        };
        self.input.at = end;
        if !call.malformed {
            let mut out = String::new();
            call.malformed = !arguments.finish(&mut out);
            call.emit(out, events);
        }
        call.phase = CallPhase::After;
        call.continue_step()
    }
}

#[derive(Clone, Copy)]
enum WatchKind {
    Key,
    Kind,
    Value,
}
