//! Search for a template's markers in a stream.

use super::input::{OutputEnd, StreamWindow, TextOrigin};
use super::pattern::{PatternFit, PatternSearch, ResponsePattern};

/// The meaning of a marker in the state in which it is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkerRole {
    /// Opens the field with this index.
    Open(usize),
    /// Closes the open field or call.
    Close,
    /// Part of the format without content.
    Ignore,
    /// Precedes the call's name. DeepSeek-R1 writes a type before it: `function<｜tool▁sep｜>name`.
    NameOpen,
    /// Ends the call's name.
    NameClose,
    /// Ends the open field, call or name, and is the beginning of the next part.
    Before,
    /// Begins an argument of a call.
    Argument,
    /// Begins the arguments of a call as one JSON text.
    Block,
    /// Separates two parts of an argument.
    Next,
}

/// A literal marker, and the ranges of it that must come from control tokens.
#[derive(Clone)]
struct Literal {
    text: String,
    control: Vec<std::ops::Range<usize>>,
}

enum MarkerMatcher {
    Literal(Literal),
    Pattern(Box<PatternSearch>),
}

struct WatchedMarker {
    role: MarkerRole,
    matcher: MarkerMatcher,
    /// Matches only if it contains a control token.
    verified: bool,
}

enum MarkerFit {
    No,
    Partial,
    /// Up to this end.
    Full(usize),
}

/// The markers that are searched in one state.
#[derive(Default)]
pub(super) struct MarkerWatch {
    watched: Vec<WatchedMarker>,
    /// First bytes of the literals.
    first: Vec<u8>,
    patterns: bool,
}

/// Result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchMatch {
    /// A marker, with its start and end. Text before it contains no marker.
    Marker(MarkerRole, usize, usize),
    /// A marker may begin at this position. More input is needed to decide.
    Hold(usize),
    /// No marker up to the end.
    Nothing,
}

impl Literal {
    fn new(text: &str, control_tokens: &[String]) -> Literal {
        let mut control: Vec<std::ops::Range<usize>> = Vec::new();
        let mut at = 0;
        // A marker can mix control tokens and text: Kimi-K3's `<|open|>think<|sep|>` has two.
        while at < text.len() {
            let here = text.get(at..).unwrap_or_default();
            let token = control_tokens.iter().filter(|t| !t.is_empty() && here.starts_with(t.as_str()));
            match token.map(String::len).max() {
                Some(length) => {
                    control.push(at..at + length);
                    at += length;
                }
                None => at += here.chars().next().map_or(1, char::len_utf8),
            }
        }
        Literal { text: text.to_owned(), control }
    }

    fn fit(&self, input: &StreamWindow, at: usize, verified: bool) -> MarkerFit {
        let here = input.bytes().get(at..).unwrap_or_default();
        let length = here.len().min(self.text.len());
        if here[..length] != self.text.as_bytes()[..length] {
            return MarkerFit::No;
        }
        let own = |origin| matches!(origin, TextOrigin::Control | TextOrigin::Template);
        if !input.all(at..at + length, |origin| origin != TextOrigin::Message) {
            return MarkerFit::No;
        }
        // `length` may end before or inside a control token. Only the bytes that have arrived
        // count.
        let known =
            self.control.iter().all(|c| input.all(at + c.start..at + c.end.min(length).max(c.start), own));
        // Without control tokens in the marker, its text in the answer may be meant as text.
        let unmarked = self.control.is_empty() && !input.all(at..at + length, |o| o == TextOrigin::Template);
        if !known || (verified && unmarked) {
            return MarkerFit::No;
        }
        if length < self.text.len() { MarkerFit::Partial } else { MarkerFit::Full(at + length) }
    }
}

impl MarkerWatch {
    pub fn literals<'a>(
        &mut self,
        role: MarkerRole,
        texts: impl IntoIterator<Item = &'a String>,
        control_tokens: &[String],
        verified: bool,
    ) {
        for text in texts {
            let literal = Literal::new(text, control_tokens);
            self.first.extend(text.bytes().next().filter(|byte| !self.first.contains(byte)));
            self.watched.push(WatchedMarker { role, matcher: MarkerMatcher::Literal(literal), verified });
        }
    }

    pub fn pattern(&mut self, role: MarkerRole, pattern: &ResponsePattern) {
        self.patterns = true;
        self.watched.push(WatchedMarker {
            role,
            matcher: MarkerMatcher::Pattern(Box::new(PatternSearch::new(pattern))),
            verified: false,
        });
    }

    /// The longest marker that begins at a position; of equally long ones the first. If the output
    /// ends inside a longer marker, the shorter one extends to the end.
    pub fn at(&self, input: &StreamWindow, at: usize, skip_empty: Option<usize>) -> WatchMatch {
        // Almost all positions fail this test, so it decides the cost of plain text. A pattern can
        // begin with any byte.
        let byte = input.bytes().get(at);
        if !self.patterns && byte.is_none_or(|byte| !self.first.contains(byte)) {
            return WatchMatch::Nothing;
        }
        let mut found = WatchMatch::Nothing;
        // `begun`: a marker began here, and the output ended inside it.
        let (mut longest, mut begun) = (None, false);
        for watched in &self.watched {
            let fit = match &watched.matcher {
                MarkerMatcher::Literal(literal) if at < input.len() => {
                    literal.fit(input, at, watched.verified)
                }
                MarkerMatcher::Literal(_) => MarkerFit::No,
                MarkerMatcher::Pattern(pattern) => match pattern.fit(input, at) {
                    PatternFit::No => MarkerFit::No,
                    PatternFit::Partial => MarkerFit::Partial,
                    PatternFit::Full(end) => MarkerFit::Full(end),
                },
            };
            match fit {
                MarkerFit::Partial => match input.ended {
                    // A shorter marker that matches must wait too: a longer one may follow.
                    None => return WatchMatch::Hold(at),
                    // A longer output would have completed the marker.
                    Some(OutputEnd::Cut) => begun = true,
                    // The model ended its output here, so `<thin` is text. A control token is
                    // never text, even if the rest of its marker is missing.
                    Some(OutputEnd::Whole) => begun |= input.next_control(at) < input.len(),
                },
                MarkerFit::Full(end) if end == at && skip_empty == Some(input.absolute(at)) => {}
                MarkerFit::Full(end) if longest.is_none_or(|longest| end > longest) => {
                    longest = Some(end);
                    found = WatchMatch::Marker(watched.role, at, end);
                }
                _ => {}
            }
        }
        match found {
            WatchMatch::Marker(role, at, _) if begun => WatchMatch::Marker(role, at, input.len()),
            WatchMatch::Nothing if begun => WatchMatch::Hold(at),
            found => found,
        }
    }

    /// The first marker at or after the current position.
    pub fn scan(&self, input: &StreamWindow, skip_empty: Option<usize>) -> WatchMatch {
        let bytes = input.bytes();
        for at in input.at..bytes.len() {
            let candidate = self.patterns || self.first.contains(&bytes[at]);
            // Continuation bytes of UTF-8 are skipped: callers slice the text at a match.
            if candidate && bytes[at] & 0xc0 != 0x80 {
                match self.at(input, at, skip_empty) {
                    WatchMatch::Nothing => {}
                    found => return found,
                }
            }
        }
        WatchMatch::Nothing
    }
}
