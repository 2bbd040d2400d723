//! Errors of constrained output.

use std::fmt;
use std::time::Duration;

/// A place in a grammar's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePosition {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
}

impl SourcePosition {
    /// The place of a byte of a text.
    pub(crate) fn of(text: &str, byte: usize) -> SourcePosition {
        let before = &text[..text.floor_char_boundary(byte)];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        SourcePosition {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// An error of a grammar, a schema, or of following one. A server answers those for which [`is_of_request`](GrammarError::is_of_request) holds with 400.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum GrammarError {
    #[error("the {what} is malformed at {place}: {problem}")]
    Syntax { what: &'static str, place: SourcePosition, problem: String },
    /// A schema, grammar or pattern that cannot be compiled: it contradicts itself, or uses what is not supported.
    #[error("the {what} cannot be used: {problem}")]
    Invalid {
        what: &'static str,
        /// The keyword, rule or value at fault.
        problem: String,
    },
    #[error("the {what} has {found} {unit}; the limit is {limit}")]
    TooLarge {
        what: &'static str,
        unit: &'static str,
        /// How many it has, or at how many counting stopped.
        found: usize,
        limit: usize,
    },
    #[error("the {what} takes more than {:.1} s to compile: simplify it", limit.as_secs_f64())]
    Timeout { what: &'static str, limit: Duration },
    #[error("{0} grammars are being compiled already; try again in a moment")]
    Busy(usize),
    #[error("output cannot be constrained with this tokenizer: {0}")]
    Vocabulary(String),
    /// A step at which the grammar allows no token, or is too ambiguous to say which.
    #[error("the {what} allows no next token: {problem}")]
    Step { what: &'static str, problem: String },
}

impl GrammarError {
    /// Whether the request is at fault, rather than the model or the present load.
    pub fn is_of_request(&self) -> bool {
        !matches!(self, GrammarError::Busy(_) | GrammarError::Vocabulary(_))
    }
}

/// A library's message in one line, with the place in a Lark grammar that it names, if any: `at 3(7): …` or `3(7): …`.
pub(crate) fn read_message(what: &'static str, message: &str) -> GrammarError {
    let first = message.lines().next().unwrap_or_default().trim();
    let first = first.strip_prefix("at ").unwrap_or(first);
    let found = leading_place(first);
    let problem = found.map_or(first, |(_, problem)| problem);
    // a pattern is quoted over several lines, and the last one says what is wrong with it
    let of_pattern = message.lines().find_map(|line| line.trim().strip_prefix("error: "));
    let problem = match (problem, of_pattern) {
        ("NoExtension" | "NoExtensionBias", _) => "no output can obey it".to_owned(),
        (_, Some(of_pattern)) => format!("a pattern is malformed: {of_pattern}"),
        (problem, None) => problem.to_owned(),
    };
    match found {
        // of other grammars, the library sees only what was made of them
        Some((place, _)) if what == "Lark grammar" => {
            GrammarError::Syntax { what, place, problem: shorten(&problem) }
        }
        _ => GrammarError::Invalid { what, problem: shorten(&problem) },
    }
}

fn leading_place(text: &str) -> Option<(SourcePosition, &str)> {
    let (line, rest) = text.split_once('(')?;
    let (column, rest) = rest.split_once("): ")?;
    Some((SourcePosition { line: line.parse().ok()?, column: column.parse().ok()? }, rest))
}

/// At most some 300 bytes of a text that may quote a whole schema.
pub(crate) fn shorten(text: &str) -> String {
    const MAX_BYTES: usize = 300;
    if text.len() <= MAX_BYTES {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(MAX_BYTES)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_lines_and_characters() {
        assert_eq!(SourcePosition::of("añb\ncd", 4), SourcePosition { line: 1, column: 4 });
        assert_eq!(SourcePosition::of("añb\ncd", 6), SourcePosition { line: 2, column: 2 });
        assert_eq!(SourcePosition::of("", 9), SourcePosition { line: 1, column: 1 });
    }

    #[test]
    fn a_librarys_message_gives_up_its_place() {
        let error = read_message("Lark grammar", "at 3(7): unknown name: \"x\"\n 1 | start: x\n");
        assert_eq!(
            error.to_string(),
            "the Lark grammar is malformed at line 3, column 7: unknown name: \"x\""
        );
        let error = read_message("JSON schema", "Unimplemented keys: [\"not\"]");
        assert_eq!(error.to_string(), "the JSON schema cannot be used: Unimplemented keys: [\"not\"]");
    }
}
