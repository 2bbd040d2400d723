//! Grammar and constraint errors.

use std::fmt;
use std::time::Duration;

/// A position in a grammar's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePosition {
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
}

impl SourcePosition {
    /// Position of a byte offset in a text.
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

/// An error of a grammar or schema, or of a response that follows it. The server returns 400 for
/// errors with [`is_of_request`](GrammarError::is_of_request).
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum GrammarError {
    #[error("the {what} is malformed at {place}: {problem}")]
    Syntax { what: &'static str, place: SourcePosition, problem: String },
    /// A schema, grammar or pattern that cannot be compiled: it is contradictory or uses an
    /// unsupported feature.
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
        /// The number found, or the number at which counting stopped.
        found: usize,
        limit: usize,
    },
    #[error("the {what} takes more than {:.1} s to compile: simplify it", limit.as_secs_f64())]
    Timeout { what: &'static str, limit: Duration },
    #[error("{0} grammars are already being compiled; try again in a moment")]
    Busy(usize),
    #[error("output cannot be constrained with this tokenizer: {0}")]
    Vocabulary(String),
    /// The grammar allows no next token, or is too ambiguous to compute the mask.
    #[error("the {what} allows no next token: {problem}")]
    Step { what: &'static str, problem: String },
}

impl GrammarError {
    /// Whether the request is at fault, rather than the model or the current load.
    pub fn is_of_request(&self) -> bool {
        !matches!(self, GrammarError::Busy(_) | GrammarError::Vocabulary(_))
    }
}

/// Converts a message of llguidance to an error of one line, with its position in a Lark grammar if
/// it has one: `at 3(7): …` or `3(7): …`.
pub(crate) fn read_message(what: &'static str, message: &str) -> GrammarError {
    let first = message.lines().next().unwrap_or_default().trim();
    let first = first.strip_prefix("at ").unwrap_or(first);
    let found = leading_place(first);
    let problem = found.map_or(first, |(_, problem)| problem);
    // regex-syntax quotes the pattern over several lines; the last line, `error: …`, is the reason.
    let of_pattern = message.lines().find_map(|line| line.trim().strip_prefix("error: "));
    let problem = match (problem, of_pattern) {
        ("NoExtension" | "NoExtensionBias", _) => "no output can obey it".to_owned(),
        (_, Some(of_pattern)) => format!("a pattern is malformed: {of_pattern}"),
        (problem, None) => problem.to_owned(),
    };
    match found {
        // For other sources llguidance sees generated Lark, whose positions mean nothing to the
        // client.
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

/// Truncates a message to about 300 bytes, because it may quote a whole schema.
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
    fn positions_count_lines_and_characters() {
        assert_eq!(SourcePosition::of("añb\ncd", 4), SourcePosition { line: 1, column: 4 });
        assert_eq!(SourcePosition::of("añb\ncd", 6), SourcePosition { line: 2, column: 2 });
        assert_eq!(SourcePosition::of("", 9), SourcePosition { line: 1, column: 1 });
    }

    #[test]
    fn positions_are_read_from_messages_of_llguidance() {
        let error = read_message("Lark grammar", "at 3(7): unknown name: \"x\"\n 1 | start: x\n");
        assert_eq!(
            error.to_string(),
            "the Lark grammar is malformed at line 3, column 7: unknown name: \"x\""
        );
        let error = read_message("JSON schema", "Unimplemented keys: [\"not\"]");
        assert_eq!(error.to_string(), "the JSON schema cannot be used: Unimplemented keys: [\"not\"]");
    }
}
