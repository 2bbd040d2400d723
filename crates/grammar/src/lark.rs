//! Writing Lark: literals, markers with control tokens in them, and free text up to a marker.

use crate::vocabulary::{MarkerPiece, VocabularyTrie};
use std::fmt::Write as _;

/// A text as a literal. The blank behind it keeps an `i` that follows from being a flag.
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

/// A text as part of a regular expression between slashes.
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

/// A token of the vocabulary.
pub(crate) fn token(id: u32) -> String {
    format!("<[{id}]> ")
}

/// A marker: text and control tokens.
pub(crate) fn marker(vocabulary: &VocabularyTrie, text: &str) -> String {
    let piece = |piece| match piece {
        MarkerPiece::Text(text) => literal(text),
        MarkerPiece::Control(id) => token(id),
    };
    vocabulary.pieces(text).into_iter().map(piece).collect()
}

/// Any text.
pub(crate) const ANY: &str = "(?s:.*)";

/// A rule for text by a regular expression up to a marker, and the marker itself, under a name that begins with a small letter.
pub(crate) fn up_to(vocabulary: &VocabularyTrie, name: &str, text: &str, end: &str) -> String {
    match vocabulary.pieces(end).as_slice() {
        [MarkerPiece::Text(end)] => format!("{name}[suffix={}]: /{text}/\n", literal(end)),
        [MarkerPiece::Text(begin), ..] => {
            // the text may contain what the marker begins with: only the control token behind it ends the text
            let rest = marker(vocabulary, &end[begin.len()..]);
            format!("{name}: /{text}{}/ {rest}\n", in_regex(begin))
        }
        _ => format!("{name}: /{text}/ {}\n", marker(vocabulary, end)),
    }
}
