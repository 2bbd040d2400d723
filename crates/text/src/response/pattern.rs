//! Regular expressions as markers, matched incrementally.
//!
//! A backtracking engine cannot tell whether more text could change a match. A lazy DFA can: its
//! state is dead when no continuation matches.

use super::error::ResponseFormatError;
use super::input::{StreamWindow, TextOrigin};
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::util::{start, syntax};
use regex_automata::{Anchored, meta};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum bytes of a match. It bounds the text that is held back, and the cost of a search per
/// byte: an expression such as `<.*>` could match the rest of any output.
const MAX_MATCH_BYTES: usize = 1024;

/// A compiled expression.
#[derive(Clone)]
pub(super) struct ResponsePattern {
    compiled: Arc<CompiledPattern>,
}

/// An expression with the scratch memory of one parser. Formats are shared between threads, so the
/// DFA's cache cannot be part of the compiled expression.
pub(super) struct PatternSearch {
    pattern: ResponsePattern,
    cache: RefCell<Cache>,
}

struct CompiledPattern {
    dfa: DFA,
    regex: meta::Regex,
}

pub(super) enum PatternFit {
    No,
    Partial,
    Full(usize),
}

/// A Python expression in Rust's syntax. `\Z` is the only difference in what templates use.
fn translated(pattern: &str) -> String {
    pattern.replace(r"\Z", r"\z")
}

/// Compiles an expression for captures. Dots match line ends.
pub(super) fn regex(place: &str, pattern: &str) -> Result<meta::Regex, ResponseFormatError> {
    meta::Builder::new()
        .syntax(syntax::Config::new().dot_matches_new_line(true))
        // Templates come from checkpoints. `(a{1000}){1000}` must not exhaust memory.
        .configure(meta::Config::new().nfa_size_limit(Some(1 << 20)))
        .build(&translated(pattern))
        .map_err(|e| refused(place, pattern, &e))
}

fn refused(place: &str, pattern: &str, problem: &impl std::error::Error) -> ResponseFormatError {
    // The outer message of regex-automata says only that building failed. The source has the
    // reason.
    let problem = std::error::Error::source(problem).map_or_else(|| problem.to_string(), ToString::to_string);
    ResponseFormatError::Pattern { place: place.to_owned(), pattern: pattern.to_owned(), problem }
}

impl ResponsePattern {
    pub fn new(place: &str, pattern: &str) -> Result<ResponsePattern, ResponseFormatError> {
        let regex = regex(place, pattern)?;
        let dfa = DFA::builder()
            .syntax(syntax::Config::new().dot_matches_new_line(true))
            .build(&translated(pattern))
            .map_err(|e| refused(place, pattern, &e))?;
        Ok(ResponsePattern { compiled: Arc::new(CompiledPattern { dfa, regex }) })
    }

    /// Named groups of a match.
    pub fn captures(&self, text: &str) -> HashMap<String, String> {
        captures(&self.compiled.regex, text)
    }

    pub fn has_names(&self) -> bool {
        self.compiled.regex.group_info().all_names().any(|(_, _, name)| name.is_some())
    }
}

impl PatternSearch {
    pub fn new(pattern: &ResponsePattern) -> PatternSearch {
        PatternSearch { pattern: pattern.clone(), cache: RefCell::new(pattern.compiled.dfa.create_cache()) }
    }

    /// Matches the expression at a position.
    pub fn fit(&self, input: &StreamWindow, at: usize) -> PatternFit {
        // A failure of the DFA counts as no match. The text then stays content.
        self.run(input, at).unwrap_or(PatternFit::No)
    }

    fn run(&self, input: &StreamWindow, at: usize) -> Option<PatternFit> {
        let (dfa, cache) = (&self.pattern.compiled.dfa, &mut *self.cache.borrow_mut());
        let config = start::Config::new().anchored(Anchored::Yes).look_behind(input.byte_before(at));
        let mut state = dfa.start_state(cache, &config).ok()?;
        let mut last = None;
        let done = |last: Option<usize>| Some(last.map_or(PatternFit::No, PatternFit::Full));
        for (i, byte) in input.bytes().get(at..)?.iter().enumerate() {
            // Text of messages is never part of a marker, even if a pattern such as `<.*>` would
            // match it.
            if i == MAX_MATCH_BYTES || input.origin(at + i) == TextOrigin::Message {
                return done(last);
            }
            state = dfa.next_state(cache, state, *byte).ok()?;
            // Match states of regex-automata are delayed by one byte: this byte is not part of the
            // match.
            if state.is_match() {
                last = Some(at + i);
            }
            if state.is_dead() || state.is_quit() {
                return done(last);
            }
        }
        // The state is alive, so more text could make a longer match.
        if input.ended.is_none() {
            return Some(PatternFit::Partial);
        }
        if dfa.next_eoi_state(cache, state).ok()?.is_match() {
            last = Some(input.len());
        }
        done(last)
    }
}

/// Named groups of the first match of an expression.
pub(super) fn captures(regex: &meta::Regex, text: &str) -> HashMap<String, String> {
    let mut found = regex.create_captures();
    regex.captures(text, &mut found);
    let names = regex.group_info().all_names().filter_map(|(_, group, name)| Some((group, name?)));
    let value = |group| found.get_group(group).and_then(|span| text.get(span.range()));
    names.filter_map(|(group, name)| Some((name.to_owned(), value(group)?.to_owned()))).collect()
}
