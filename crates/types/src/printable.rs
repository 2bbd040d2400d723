//! Text from files and paths, made safe to show on a terminal.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a terminal may interpret the character instead of showing it, or reorder the text around it: C0 and C1 controls with ESC, DEL,
/// line and paragraph separators, and the bidirectional embeddings, overrides and isolates.
fn acts(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name in one line: each character that a terminal may interpret, line feeds included, becomes an escape such as `\n` or `\u{1b}`.
///
/// ```
/// assert_eq!(latent_types::printable("a\u{1b}[2Jb\n"), r"a\u{1b}[2Jb\n");
/// assert_eq!(latent_types::printable("DeepSeek-V3 · ü 文"), "DeepSeek-V3 · ü 文");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, acts)
}

/// The same for text of several lines: line feeds and tabs stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| acts(c) && !matches!(c, '\n' | '\t'))
}

/// Streamed text: as [`printable_lines`], but bidirectional controls stay, since languages written from right to left use them, and a carriage
/// return, which would go back over the line, is dropped.
pub fn printable_stream(text: &str) -> Cow<'_, str> {
    let acts = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains('\r') {
        return escaped(text, acts);
    }
    Cow::Owned(escaped(&text.replace('\r', ""), acts).into_owned())
}

fn escaped(text: &str, acts: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&acts) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !acts(c) => safe.push(c),
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            '\t' => safe.push_str("\\t"),
            c => {
                // writing into a string cannot fail
                let _ = write!(safe, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_escaped_and_everything_else_stays() {
        let title = "\u{1b}]0;pwned\u{7}\u{1b}[2J";
        assert_eq!(printable(title), r"\u{1b}]0;pwned\u{7}\u{1b}[2J");
        assert_eq!(printable("\u{9b}31m\u{7f}\r\t"), r"\u{9b}31m\u{7f}\r\t");
        assert_eq!(printable("a\u{202e}b\u{2066}c\u{2069}\u{2028}"), r"a\u{202e}b\u{2066}c\u{2069}\u{2028}");
        assert!(matches!(printable("C:\\models\\é 文 \u{200f}"), Cow::Borrowed(_)));
        for c in ('\0'..=char::MAX).filter(|c| acts(*c)) {
            assert!(!printable(&c.to_string()).contains(c), "{c:?}");
        }
    }

    #[test]
    fn lines_keep_their_breaks_and_streams_their_direction() {
        assert_eq!(printable_lines("a\n\tb\u{1b}"), "a\n\tb\\u{1b}");
        assert_eq!(printable_stream("a\r\n\u{202b}b\u{1b}[0m"), "a\n\u{202b}b\\u{1b}[0m");
    }
}
