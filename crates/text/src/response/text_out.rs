//! Output of reasoning and answer text, which holds back white space at its edges until the
//! following text is known.

use super::event::{ResponseEvent, append};
use super::format::StripRule;

/// Maximum bytes of white space that are held back. A longer run is text, so that a model that
/// repeats line ends does not fill memory or stall the stream.
const MAX_RUN_BYTES: usize = 1024;

pub(super) struct TextOut {
    event: fn(String) -> ResponseEvent,
    strip: StripRule,
    join: String,
    /// White space here is dropped, because no text has followed the last marker.
    at_start: bool,
    held: String,
    /// The current run of white space exceeds [`MAX_RUN_BYTES`].
    long_run: bool,
    /// Text has been emitted.
    wrote: bool,
    /// A marker has followed the emitted text.
    separated: bool,
    /// `at_start`, `separated` and the dropped white space before the last marker, for
    /// [`TextOut::undo_marker`].
    undo: (bool, bool, String),
}

impl TextOut {
    pub fn new(event: fn(String) -> ResponseEvent, strip: StripRule, join: Option<&String>) -> TextOut {
        TextOut {
            event,
            strip,
            join: join.cloned().unwrap_or_default(),
            at_start: strip == StripRule::Both,
            held: String::new(),
            long_run: false,
            wrote: false,
            separated: false,
            undo: (false, false, String::new()),
        }
    }

    pub fn text(&mut self, text: &str, events: &mut Vec<ResponseEvent>) {
        if self.strip == StripRule::None {
            return self.emit(text, events);
        }
        let text = if self.at_start { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        self.at_start = false;
        let body = text.trim_end();
        // Text follows the held white space, so that white space is inside the text.
        if !body.is_empty() {
            self.release(events);
            self.emit(body, events);
            self.long_run = false;
        }
        let tail = text.get(body.len()..).unwrap_or_default();
        self.held.push_str(tail);
        if self.long_run || self.held.len() > MAX_RUN_BYTES {
            self.release(events);
            self.long_run = true;
        }
    }

    fn release(&mut self, events: &mut Vec<ResponseEvent>) {
        let held = std::mem::take(&mut self.held);
        self.emit(&held, events);
    }

    fn emit(&mut self, text: &str, events: &mut Vec<ResponseEvent>) {
        if text.is_empty() {
            return;
        }
        // Two answers around a tool call must not run together.
        if self.wrote && self.separated && !self.join.is_empty() {
            append(events, (self.event)(self.join.clone()));
        }
        (self.wrote, self.separated) = (true, false);
        append(events, (self.event)(text.to_owned()));
    }

    /// Ends a piece of text at a marker. `calls`: the marker begins tool calls.
    pub fn marker(&mut self, calls: bool, events: &mut Vec<ResponseEvent>) {
        // Kimi-K3: white space is part of the answer, unless tool calls follow.
        if self.strip == StripRule::BeforeCalls && !calls {
            self.release(events);
        }
        let dropped = std::mem::take(&mut self.held);
        self.undo = (self.at_start, self.separated, dropped);
        self.long_run = false;
        self.at_start = matches!(self.strip, StripRule::AtMarkers | StripRule::Both);
        self.separated = true;
    }

    /// Reverts [`TextOut::marker`]: the marker turned out to be text.
    pub fn undo_marker(&mut self, events: &mut Vec<ResponseEvent>) {
        let (at_start, separated, dropped) = std::mem::take(&mut self.undo);
        (self.at_start, self.separated) = (at_start, separated);
        self.text(&dropped, events);
    }

    /// Ends the output.
    pub fn finish(&mut self, events: &mut Vec<ResponseEvent>) {
        if self.strip != StripRule::Both {
            self.release(events);
        }
        self.held.clear();
    }

    /// Drops text of the prompt. `at_start` stays: white space may be dropped at the beginning of
    /// the response.
    pub fn forget(&mut self) {
        self.held.clear();
        (self.wrote, self.separated, self.long_run) = (false, false, false);
    }
}
