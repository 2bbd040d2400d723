//! Lark writer: literals, markers with control tokens, and free text up to a marker.

use crate::vocabulary::{MarkerPiece, VocabularyTrie};
use std::fmt::Write as _;

/// A literal. The trailing blank separates it from a following `i`, which Lark would read as the
/// flag "ignore case".
pub(crate) fn literal(text: &str) -> String {
    let mut literal = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => literal.push_str("\\\""),
            '\\' => literal.push_str("\\\\"),
            c if c.is_ascii_control() => {
                let _ = write!(literal, "\\u{:04x}", u32::from(c));
            }
            c => literal.push(c),
        }
    }
    literal + "\" "
}

/// Escapes a text for a regular expression between slashes.
pub(crate) fn in_regex(text: &str) -> String {
    let mut regex = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            regex.push(c);
        } else {
            let _ = write!(regex, "\\x{{{:x}}}", u32::from(c));
        }
    }
    regex
}

/// A token of the vocabulary by id.
pub(crate) fn token(id: u32) -> String {
    format!("<[{id}]> ")
}

/// A marker of text and control tokens.
pub(crate) fn marker(vocabulary: &VocabularyTrie, text: &str) -> String {
    let piece = |piece| match piece {
        MarkerPiece::Text(text) => literal(text),
        MarkerPiece::Control(id) => token(id),
    };
    vocabulary.pieces(text).into_iter().map(piece).collect()
}

/// Any text, line ends included.
pub(crate) const ANY: &str = "(?s:.*)";

/// A rule `name` (lower case) for text that matches `text`, followed by the marker `end`.
pub(crate) fn up_to(vocabulary: &VocabularyTrie, name: &str, text: &str, end: &str) -> String {
    match vocabulary.pieces(end).as_slice() {
        // `suffix` ends the lexeme at the first occurrence of the marker.
        [MarkerPiece::Text(end)] => format!("{name}[suffix={}]: /{text}/\n", literal(end)),
        [MarkerPiece::Text(begin), ..] => {
            // `suffix` would end the text at the marker's first piece, which may also occur within
            // the text. Here only the following control token ends it.
            let rest = marker(vocabulary, &end[begin.len()..]);
            format!("{name}: /{text}{}/ {rest}\n", in_regex(begin))
        }
        _ => format!("{name}: /{text}/ {}\n", marker(vocabulary, end)),
    }
}
