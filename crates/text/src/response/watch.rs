//! Searching for a template's markers in a stream.

use super::input::{Ended, Input, Origin};
use super::pattern::{Pattern, PatternFit, Search};

/// What a marker means where it was searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
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

enum Matcher {
    Literal(Literal),
    Pattern(Box<Search>),
}

struct Watched {
    role: Role,
    matcher: Matcher,
    /// Counts only if control tokens show that it is not text.
    verified: bool,
}

enum Fit {
    No,
    Partial,
    /// Up to this end.
    Full(usize),
}

/// What is searched at one time.
#[derive(Default)]
pub(super) struct Watch {
    watched: Vec<Watched>,
    /// Bytes that a literal begins with.
    first: Vec<u8>,
    patterns: bool,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A marker, from one position to another. Text before it is of no marker.
    Marker(Role, usize, usize),
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

    fn fit(&self, input: &Input, at: usize, verified: bool) -> Fit {
        let here = input.bytes().get(at..).unwrap_or_default();
        let length = here.len().min(self.text.len());
        if here[..length] != self.text.as_bytes()[..length] {
            return Fit::No;
        }
        let own = |origin| matches!(origin, Origin::Control | Origin::Template);
        if !input.all(at..at + length, |origin| origin != Origin::Message) {
            return Fit::No;
        }
        let known =
            self.control.iter().all(|c| input.all(at + c.start..at + c.end.min(length).max(c.start), own));
        let unmarked = self.control.is_empty() && !input.all(at..at + length, |o| o == Origin::Template);
        if !known || (verified && unmarked) {
            return Fit::No;
        }
        if length < self.text.len() { Fit::Partial } else { Fit::Full(at + length) }
    }
}

impl Watch {
    pub fn literals<'a>(
        &mut self,
        role: Role,
        texts: impl IntoIterator<Item = &'a String>,
        control_tokens: &[String],
        verified: bool,
    ) {
        for text in texts {
            let literal = Literal::new(text, control_tokens);
            self.first.extend(text.bytes().next().filter(|byte| !self.first.contains(byte)));
            self.watched.push(Watched { role, matcher: Matcher::Literal(literal), verified });
        }
    }

    pub fn pattern(&mut self, role: Role, pattern: &Pattern) {
        self.patterns = true;
        self.watched.push(Watched {
            role,
            matcher: Matcher::Pattern(Box::new(Search::new(pattern))),
            verified: false,
        });
    }

    /// The marker that begins exactly here: the longest; of equally long ones the first. Where a longer one is cut off, it ends the output.
    pub fn at(&self, input: &Input, at: usize, skip_empty: Option<usize>) -> Found {
        let byte = input.bytes().get(at);
        if !self.patterns && byte.is_none_or(|byte| !self.first.contains(byte)) {
            return Found::Nothing;
        }
        let mut found = Found::Nothing;
        let (mut longest, mut begun) = (None, false);
        for watched in &self.watched {
            let fit = match &watched.matcher {
                Matcher::Literal(literal) if at < input.len() => literal.fit(input, at, watched.verified),
                Matcher::Literal(_) => Fit::No,
                Matcher::Pattern(pattern) => match pattern.fit(input, at) {
                    PatternFit::No => Fit::No,
                    PatternFit::Partial => Fit::Partial,
                    PatternFit::Full(end) => Fit::Full(end),
                },
            };
            match fit {
                Fit::Partial => match input.ended {
                    None => return Found::Hold(at),
                    Some(Ended::Cut) => begun = true,
                    // a control token never matches as text, even if it would complete a marker
                    Some(Ended::Whole) => begun |= input.next_control(at) < input.len(),
                },
                Fit::Full(end) if end == at && skip_empty == Some(input.absolute(at)) => {}
                Fit::Full(end) if longest.is_none_or(|longest| end > longest) => {
                    longest = Some(end);
                    found = Found::Marker(watched.role, at, end);
                }
                _ => {}
            }
        }
        match found {
            Found::Marker(role, at, _) if begun => Found::Marker(role, at, input.len()),
            Found::Nothing if begun => Found::Hold(at),
            found => found,
        }
    }

    /// The first marker from where parsing is.
    pub fn scan(&self, input: &Input, skip_empty: Option<usize>) -> Found {
        let bytes = input.bytes();
        for at in input.at..bytes.len() {
            let candidate = self.patterns || self.first.contains(&bytes[at]);
            if candidate && bytes[at] & 0xc0 != 0x80 {
                match self.at(input, at, skip_empty) {
                    Found::Nothing => {}
                    found => return found,
                }
            }
        }
        Found::Nothing
    }
}
