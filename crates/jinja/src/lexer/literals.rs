//! Number and string literals.

use super::TokenKind;
use crate::error::{Error, Result};

/// Reads a number at the beginning of `rest` and returns it with its length.
pub(super) fn number(rest: &str, may_be_float: bool) -> Result<(TokenKind, usize)> {
    // Single underscores between digits are allowed, as in Python: 1_000.
    let digits = |from: usize| {
        let tail = &rest.as_bytes()[from..];
        let mut length = 0;
        while tail.get(length).is_some_and(u8::is_ascii_digit)
            || (length > 0
                && tail.get(length) == Some(&b'_')
                && tail.get(length + 1).is_some_and(u8::is_ascii_digit))
        {
            length += 1;
        }
        length
    };
    let whole = digits(0);
    let mut length = whole;
    // After a dot, digits are an index: `list.0.1` must not be read as the float 0.1.
    if may_be_float {
        let bytes = rest.as_bytes();
        // Jinja2's floats need digits after the dot, unlike Python's (`1.`).
        if bytes.get(length) == Some(&b'.') && digits(length + 1) > 0 {
            length += 1 + digits(length + 1);
        }
        if matches!(bytes.get(length), Some(b'e' | b'E')) {
            let signed = usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
            let exponent = digits(length + 1 + signed);
            if exponent > 0 {
                length += 1 + signed + exponent;
            }
        }
    }
    if length > whole {
        // `parse` itself returns infinity for 1e999; the fallback is not reached by digits matched
        // above.
        let value = rest[..length].replace('_', "").parse().unwrap_or(f64::INFINITY);
        return Ok((TokenKind::Float(value), length));
    }
    if let Some((radix, name)) = radix(rest) {
        let tail = &rest[2..];
        let digits = tail.find(|c: char| c != '_' && !c.is_digit(radix)).unwrap_or(tail.len());
        if digits > 0 {
            return integer(&tail[..digits], radix, name).map(|n| (n, digits + 2));
        }
    }
    integer(&rest[..whole], 10, "decimal").map(|n| (n, whole))
}

fn radix(rest: &str) -> Option<(u32, &'static str)> {
    let prefix = rest.get(..2)?.to_ascii_lowercase();
    [("0x", 16, "hexadecimal"), ("0o", 8, "octal"), ("0b", 2, "binary")]
        .iter()
        .find(|(text, ..)| *text == prefix)
        .map(|(_, radix, name)| (*radix, *name))
}

fn integer(digits: &str, radix: u32, name: &str) -> Result<TokenKind> {
    i128::from_str_radix(&digits.replace('_', ""), radix)
        .map(TokenKind::Int)
        .map_err(|_| Error::syntax(0, format!("a {name} number is larger than 127 bits")))
}

/// Reads a string literal and returns its unescaped text with its length, quotes included.
pub(super) fn string(rest: &str) -> Result<(TokenKind, usize)> {
    let quote = rest.as_bytes()[0] as char;
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c == quote {
            return Ok((TokenKind::Str(text.into_boxed_str()), at + 1));
        }
        if c != '\\' {
            text.push(c);
            continue;
        }
        let Some((at, escape)) = chars.next() else { break };
        let skip = match escape {
            'n' => simple(&mut text, '\n'),
            't' => simple(&mut text, '\t'),
            'r' => simple(&mut text, '\r'),
            'a' => simple(&mut text, '\u{7}'),
            'b' => simple(&mut text, '\u{8}'),
            'f' => simple(&mut text, '\u{c}'),
            'v' => simple(&mut text, '\u{b}'),
            '\\' | '\'' | '"' => simple(&mut text, escape),
            // A backslash before a line end continues the line.
            '\n' => 0,
            'x' => hex(&rest[at + 1..], 2, &mut text)?,
            'u' => hex(&rest[at + 1..], 4, &mut text)?,
            'U' => hex(&rest[at + 1..], 8, &mut text)?,
            // The loop has consumed the first digit already.
            '0'..='7' => octal(&rest[at..], &mut text) - 1,
            other => {
                // Python keeps the backslash of an unknown escape: '\d' is two characters.
                text.push('\\');
                simple(&mut text, other)
            }
        };
        for _ in 0..skip {
            chars.next();
        }
    }
    Err(Error::syntax(0, "a string is not closed"))
}

fn simple(text: &mut String, c: char) -> usize {
    text.push(c);
    0
}

/// Code point of an escape with a fixed number of hexadecimal digits.
fn code(rest: &str, digits: usize) -> Result<u32> {
    let wrong = || Error::syntax(0, "a \\x, \\u or \\U in a string needs its hexadecimal digits");
    let text = rest.get(..digits).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
    u32::from_str_radix(text.ok_or_else(wrong)?, 16).map_err(|_| wrong())
}

/// Appends an escaped character and returns the number of characters after the backslash and its
/// letter that belong to the escape.
fn hex(rest: &str, digits: usize, text: &mut String) -> Result<usize> {
    let first = code(rest, digits)?;
    // JSON writes characters above U+FFFF as two escapes. A Rust string cannot hold a lone
    // surrogate (Python's can), so two halves are joined and a single half is an error.
    if (0xd800..0xdc00).contains(&first)
        && let Some(tail) = rest[digits..].strip_prefix("\\u")
    {
        let second = code(tail, 4)?;
        if (0xdc00..0xe000).contains(&second) {
            let joined = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
            text.extend(char::from_u32(joined));
            return Ok(digits + 6);
        }
    }
    match char::from_u32(first) {
        Some(c) => text.push(c),
        None => return Err(Error::syntax(0, format!("\\u{first:04x} in a string is not a valid character"))),
    }
    Ok(digits)
}

fn octal(rest: &str, text: &mut String) -> usize {
    let length = rest.bytes().take(3).take_while(|b| (b'0'..=b'7').contains(b)).count();
    let code = rest[..length].bytes().fold(0, |n, b| n * 8 + u32::from(b - b'0'));
    text.extend(char::from_u32(code));
    length
}
