//! Output that is not parsed yet, with the origin of each byte.

use std::ops::Range;

/// The origin of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextOrigin {
    /// Ordinary tokens.
    Text,
    /// A control token.
    Control,
    // A rendered prompt does not tell whether `<think>` will become a token, so both must match.
    /// The chat template's own text in a prompt: counts as text and as control tokens.
    Template,
    /// Text of a prompt that came from messages: never a marker.
    Message,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputEnd {
    /// The model or a stop string ended the output.
    Whole,
    /// A limit ended the output.
    Cut,
}

/// A window of the stream: the text that the parser still needs.
#[derive(Default)]
pub(super) struct StreamWindow {
    text: String,
    /// Ends of runs of bytes of one origin, in `text`.
    runs: Vec<(usize, TextOrigin)>,
    /// The parser's position in `text`.
    pub at: usize,
    /// Number of bytes of the stream before `text`.
    base: usize,
    // `\b` and `^` in a marker's pattern look at it.
    /// The byte before `text`.
    before: Option<u8>,
    /// Set once the output has ended.
    pub ended: Option<OutputEnd>,
}

impl StreamWindow {
    pub fn push(&mut self, text: &str, origin: TextOrigin) {
        self.text.push_str(text);
        // Pieces of one origin share a run, so the number of runs does not grow with the number of
        // tokens.
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

    /// The text that is not parsed yet.
    pub fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Text from the current position to `end`, which must be a character boundary.
    pub fn upto(&self, end: usize) -> &str {
        self.text.get(self.at..end).unwrap_or_default()
    }

    pub fn slice(&self, range: Range<usize>) -> &str {
        self.text.get(range).unwrap_or_default()
    }

    /// The position in the whole stream of a position in the window.
    pub fn absolute(&self, at: usize) -> usize {
        self.base + at
    }

    /// The byte before a position; `None` at the beginning of the stream.
    pub fn byte_before(&self, at: usize) -> Option<u8> {
        if at == 0 { self.before } else { self.bytes().get(at - 1).copied() }
    }

    /// Index of the run that contains a position.
    fn run(&self, at: usize) -> usize {
        self.runs.partition_point(|(end, _)| *end <= at)
    }

    pub fn origin(&self, at: usize) -> TextOrigin {
        self.runs.get(self.run(at)).map_or(TextOrigin::Text, |(_, origin)| *origin)
    }

    /// Whether all bytes of a range that have arrived have an allowed origin.
    pub fn all(&self, range: Range<usize>, allowed: impl Fn(TextOrigin) -> bool) -> bool {
        let mut at = range.start;
        for (end, origin) in self.runs.get(self.run(at)..).unwrap_or_default() {
            // A marker may extend beyond the text that has arrived.
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

    /// The beginning of the first run of control tokens at or after a position; otherwise the end.
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

    /// Drops parsed text. The window stays small, whatever the length of the output.
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

/// The length of the longest prefix of at most `limit` bytes that ends at a character boundary.
pub(super) fn floor(text: &str, limit: usize) -> usize {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}
