//! Escapes text from files and paths for terminals. A model's name could otherwise change a
//! terminal's title, or look like another name.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a terminal may interpret a character instead of showing it, or reorder the text around
/// it: C0 and C1 controls including ESC, DEL, line and paragraph separators, all bidirectional
/// controls (marks, embeddings, overrides, isolates), deprecated format characters, interlinear
/// annotations, and tags, which hide text.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Whether a character is invisible and can make two different names look alike. Text may contain
/// them: some scripts and emoji need joiners.
// Unicode's Default_Ignorable_Code_Point without the characters of `acts`, and without U+FE00 to
// U+FE0F, which emoji in names contain.
fn hides(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
    ) || matches!(c, '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}')
        || matches!(c, '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}')
        || matches!(c, '\u{e0080}'..='\u{e0fff}')
}

/// A name in one line. Characters that a terminal may interpret, including line feeds, and
/// invisible ones become escapes such as `\n` or `\u{1b}`.
///
/// ```
/// assert_eq!(latent_types::printable("a\u{1b}[2Jb\n"), r"a\u{1b}[2Jb\n");
/// assert_eq!(latent_types::printable("DeepSeek-V3 · ü 文"), "DeepSeek-V3 · ü 文");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c| acts(c) || hides(c))
}

/// Like [`printable`] for text of several lines. Line feeds, tabs and invisible characters stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| acts(c) && !matches!(c, '\n' | '\t'))
}

/// Like [`printable_lines`] for streamed text. Carriage returns are dropped, because text after one
/// would overwrite the line.
pub fn printable_stream(text: &str) -> Cow<'_, str> {
    // Most texts have none, and need no copy.
    match text.contains('\r') {
        false => printable_lines(text),
        true => Cow::Owned(printable_lines(&text.replace('\r', "")).into_owned()),
    }
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
                // Writing to a string cannot fail.
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
    fn only_characters_that_a_terminal_interprets_are_escaped() {
        let title = "\u{1b}]0;pwned\u{7}\u{1b}[2J";
        assert_eq!(printable(title), r"\u{1b}]0;pwned\u{7}\u{1b}[2J");
        assert_eq!(printable("\u{9b}31m\u{7f}\r\t"), r"\u{9b}31m\u{7f}\r\t");
        assert_eq!(printable("a\u{202e}b\u{2066}c\u{2069}\u{2028}"), r"a\u{202e}b\u{2066}c\u{2069}\u{2028}");
        assert_eq!(
            printable("a\u{200f}b\u{61c}c\u{200b}d\u{e0041}"),
            r"a\u{200f}b\u{61c}c\u{200b}d\u{e0041}"
        );
        assert!(matches!(printable("C:\\models\\é 文 سلام ❤\u{fe0f}"), Cow::Borrowed(_)));
        // All characters, because a range with a wrong end is easy to overlook.
        for c in ('\0'..=char::MAX).filter(|c| acts(*c) || hides(*c)) {
            assert!(!printable(&c.to_string()).contains(c), "{c:?}");
        }
    }

    /// The property Bidi_Control of Unicode's PropList.txt.
    #[test]
    fn no_bidirectional_control_passes_in_names_lines_or_streams() {
        let marks = ['\u{61c}', '\u{200e}', '\u{200f}'].into_iter();
        for c in marks.chain('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}') {
            let text = format!("a{c}b");
            let shown = format!("a\\u{{{:x}}}b", u32::from(c));
            assert_eq!([printable(&text), printable_lines(&text), printable_stream(&text)], [&*shown; 3]);
        }
    }

    #[test]
    fn lines_keep_their_breaks_and_text_its_joiners() {
        assert_eq!(printable_lines("a\n\tb\u{1b}"), "a\n\tb\\u{1b}");
        assert_eq!(printable_stream("a\r\n\u{202b}b\u{1b}[0m"), "a\n\\u{202b}b\\u{1b}[0m");
        // Persian and emoji need joiners.
        let joined = "می\u{200c}خواهم 👩\u{200d}🚀";
        assert_eq!([printable_lines(joined), printable_stream(joined)], [joined; 2]);
    }
}
