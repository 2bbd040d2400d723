//! Character classes of Python.

/// Whitespace as defined by `str.isspace` and `\s`.
pub(crate) fn is_space(c: char) -> bool {
    // Python also counts the four information separators (U+001C to U+001F); Unicode's White_Space
    // property, which Rust follows, does not.
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.isprintable`, except that unassigned code points count as printable.
pub(crate) fn is_printable(c: char) -> bool {
    // The common characters of Unicode categories C and Z, except the space: `repr` escapes them.
    // Which code points are unassigned depends on Python's version, so they are not listed.
    let hidden = matches!(c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{a0}' | '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
        | '\u{1680}' | '\u{180e}' | '\u{2000}'..='\u{200f}' | '\u{2028}'..='\u{202f}' | '\u{205f}'..='\u{206f}'
        | '\u{3000}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}'..='\u{ffff}'
        | '\u{e0001}'..='\u{e007f}' | '\u{f0000}'..='\u{10ffff}');
    !hidden
}
