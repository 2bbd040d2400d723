//! Searching for a template's markers in a stream.

use super::input::{OutputEnd, StreamWindow, TextOrigin};
use super::pattern::{PatternFit, PatternSearch, ResponsePattern};

/// What a marker means where it was searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkerRole {
    /// Opens the field with this index.
    Open(usize),
    /// Closes what is open.
    Close,
    /// Part of the format that carries nothing.
    Ignore,
    /// What is before it is not the call's name.
    NameOpen,
    /// The call's name ends before it.
    NameClose,
    /// What is open ends before it; it belongs to what follows.
    Before,
    /// An argument of a call begins.
    Argument,
    /// The arguments of a call, as one JSON text, begin.
    Block,
    /// What goes between two parts of an argument.
    Next,
}

/// A literal, and which of its bytes must come from control tokens.
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
    /// Counts only if control tokens show that it is not text.
    verified: bool,
}

enum MarkerFit {
    No,
    Partial,
    /// Up to this end.
    Full(usize),
}

/// What is searched at one time.
#[derive(Default)]
pub(super) struct MarkerWatch {
    watched: Vec<WatchedMarker>,
    /// Bytes that a literal begins with.
    first: Vec<u8>,
    patterns: bool,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchMatch {
    /// A marker, from one position to another. Text before it is of no marker.
    Marker(MarkerRole, usize, usize),
    /// From this position on there may be one, once more has arrived.
    Hold(usize),
    /// None up to the end.
    Nothing,
}

impl Literal {
    fn new(text: &str, control_tokens: &[String]) -> Literal {
        let mut control: Vec<std::ops::Range<usize>> = Vec::new();
        let mut at = 0;
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
        let known =
            self.control.iter().all(|c| input.all(at + c.start..at + c.end.min(length).max(c.start), own));
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

    /// The marker that begins exactly here: the longest; of equally long ones the first. Where a longer one is cut off, it ends the output.
    pub fn at(&self, input: &StreamWindow, at: usize, skip_empty: Option<usize>) -> WatchMatch {
        let byte = input.bytes().get(at);
        if !self.patterns && byte.is_none_or(|byte| !self.first.contains(byte)) {
            return WatchMatch::Nothing;
        }
        let mut found = WatchMatch::Nothing;
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
                    None => return WatchMatch::Hold(at),
                    Some(OutputEnd::Cut) => begun = true,
                    // a control token never matches as text, even if it would complete a marker
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

    /// The first marker from where parsing is.
    pub fn scan(&self, input: &StreamWindow, skip_empty: Option<usize>) -> WatchMatch {
        let bytes = input.bytes();
        for at in input.at..bytes.len() {
            let candidate = self.patterns || self.first.contains(&bytes[at]);
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
