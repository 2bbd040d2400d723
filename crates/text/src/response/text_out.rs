//! Output of reasoning and answer text, which holds back white space at its edges until the
//! following text is known.

use super::event::{ResponseEvent, append};
use super::format::StripRule;

/// Bytes of white space that are held back. A longer run is text.
const MAX_RUN_BYTES: usize = 1024;

pub(super) struct TextOut {
    event: fn(String) -> ResponseEvent,
    strip: StripRule,
    join: String,
    /// White space that comes now is at the beginning.
    lead: bool,
    held: String,
    /// The present run of white space was too long to be held back.
    flooding: bool,
    /// Something went out already.
    wrote: bool,
    /// Something else stood in between since.
    apart: bool,
    /// `lead` and `apart` as they were before the last marker, and the white space dropped there.
    undo: (bool, bool, String),
}

impl TextOut {
    pub fn new(event: fn(String) -> ResponseEvent, strip: StripRule, join: Option<&String>) -> TextOut {
        TextOut {
            event,
            strip,
            join: join.cloned().unwrap_or_default(),
            lead: strip == StripRule::Both,
            held: String::new(),
            flooding: false,
            wrote: false,
            apart: false,
            undo: (false, false, String::new()),
        }
    }

    pub fn text(&mut self, text: &str, events: &mut Vec<ResponseEvent>) {
        if self.strip == StripRule::None {
            return self.emit(text, events);
        }
        let text = if self.lead { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        self.lead = false;
        let body = text.trim_end();
        if !body.is_empty() {
            self.release(events);
            self.emit(body, events);
            self.flooding = false;
        }
        let tail = text.get(body.len()..).unwrap_or_default();
        self.held.push_str(tail);
        if self.flooding || self.held.len() > MAX_RUN_BYTES {
            self.release(events);
            self.flooding = true;
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
        if self.wrote && self.apart && !self.join.is_empty() {
            append(events, (self.event)(self.join.clone()));
        }
        (self.wrote, self.apart) = (true, false);
        append(events, (self.event)(text.to_owned()));
    }

    /// A marker: what comes next is another piece. `calls`: it begins tool calls.
    pub fn marker(&mut self, calls: bool, events: &mut Vec<ResponseEvent>) {
        if self.strip == StripRule::BeforeCalls && !calls {
            self.release(events);
        }
        let dropped = std::mem::take(&mut self.held);
        self.undo = (self.lead, self.apart, dropped);
        self.flooding = false;
        self.lead = matches!(self.strip, StripRule::AtMarkers | StripRule::Both);
        self.apart = true;
    }

    /// The last marker was none.
    pub fn undo_marker(&mut self, events: &mut Vec<ResponseEvent>) {
        let (lead, apart, dropped) = std::mem::take(&mut self.undo);
        (self.lead, self.apart) = (lead, apart);
        self.text(&dropped, events);
    }

    /// The output is over.
    pub fn finish(&mut self, events: &mut Vec<ResponseEvent>) {
        if self.strip != StripRule::Both {
            self.release(events);
        }
        self.held.clear();
    }

    /// What a prompt left behind is not the model's.
    pub fn forget(&mut self) {
        self.held.clear();
        (self.wrote, self.apart, self.flooding) = (false, false, false);
    }
}
