//! Output that is not parsed yet, and where each byte of it came from.

use std::ops::Range;

/// Where text came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextOrigin {
    /// Ordinary tokens.
    Text,
    /// A token that the vocabulary sets apart from text.
    Control,
    /// The chat template's own text in a prompt: counts as either.
    Template,
    /// What messages contributed to a prompt: never a marker.
    Message,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputEnd {
    /// By the model, or by a stop string.
    Whole,
    /// By a limit, before the model ended it.
    Cut,
}

/// A window on the stream: what is still needed of it.
#[derive(Default)]
pub(super) struct StreamWindow {
    text: String,
    /// Ends of runs of bytes of one origin, in `text`.
    runs: Vec<(usize, TextOrigin)>,
    /// Where parsing has come to, in `text`.
    pub at: usize,
    /// Bytes of the stream before `text`.
    base: usize,
    /// The byte before `text`.
    before: Option<u8>,
    /// Nothing more will come.
    pub ended: Option<OutputEnd>,
}

impl StreamWindow {
    pub fn push(&mut self, text: &str, origin: TextOrigin) {
        self.text.push_str(text);
        match self.runs.last_mut() {
            Some((end, last)) if *last == origin => *end = self.text.len(),
            _ => self.runs.push((self.text.len(), origin)),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// What is not parsed yet.
    pub fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Text from where parsing is up to a position, which must not lie inside a character.
    pub fn upto(&self, end: usize) -> &str {
        self.text.get(self.at..end).unwrap_or_default()
    }

    pub fn slice(&self, range: Range<usize>) -> &str {
        self.text.get(range).unwrap_or_default()
    }

    /// Position in the whole stream.
    pub fn absolute(&self, at: usize) -> usize {
        self.base + at
    }

    /// The byte before a position; none at the beginning of the stream.
    pub fn byte_before(&self, at: usize) -> Option<u8> {
        if at == 0 { self.before } else { self.bytes().get(at - 1).copied() }
    }

    /// First index of `runs` that reaches beyond a position. There are few runs: text is dropped once it is parsed.
    fn run(&self, at: usize) -> usize {
        self.runs.partition_point(|(end, _)| *end <= at)
    }

    pub fn origin(&self, at: usize) -> TextOrigin {
        self.runs.get(self.run(at)).map_or(TextOrigin::Text, |(_, origin)| *origin)
    }

    /// Whether all bytes of a range (as far as they have arrived) have one of the origins.
    pub fn all(&self, range: Range<usize>, allowed: impl Fn(TextOrigin) -> bool) -> bool {
        let mut at = range.start;
        for (end, origin) in self.runs.get(self.run(at)..).unwrap_or_default() {
            if at >= range.end.min(self.len()) {
                break;
            }
            if !allowed(*origin) {
                return false;
            }
            at = *end;
        }
        true
    }

    /// Where the next run of control tokens begins, at a position or after it; else the end.
    pub fn next_control(&self, from: usize) -> usize {
        let mut begin = from;
        for (end, origin) in self.runs.get(self.run(from)..).unwrap_or_default() {
            if matches!(origin, TextOrigin::Control | TextOrigin::Template) {
                return begin;
            }
            begin = *end;
        }
        self.len()
    }

    /// Drops what is parsed.
    pub fn compact(&mut self) {
        if self.at == 0 {
            return;
        }
        let at = self.at.min(self.text.len());
        self.before = self.byte_before(at);
        self.text.drain(..at);
        self.runs.retain(|(end, _)| *end > at);
        for (end, _) in &mut self.runs {
            *end -= at;
        }
        self.base += at;
        self.at = 0;
    }
}

/// The longest part of a text of at most `limit` bytes that ends between characters.
pub(super) fn floor(text: &str, limit: usize) -> usize {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}
