//! Escapes names from files and circuits for C. Files are untrusted: a name must not end a comment
//! or a string, or continue a line.

use latent_types::printable;
use std::fmt::Write;

/// Maximum characters of a name in a comment.
const MAX_SHOWN: usize = 200;

/// Escapes text for the inside of a block comment, as one line.
pub(crate) fn comment(text: &str) -> String {
    let mut safe = String::new();
    for c in printable(text).chars().take(MAX_SHOWN) {
        // Breaks up the begin and the end of a comment, and trigraphs (`??/` is a backslash in C11
        // and could continue the line).
        if matches!((safe.chars().last(), c), (Some('*'), '/') | (Some('/'), '*') | (Some('?'), '?')) {
            safe.push(' ');
        }
        safe.push(c);
    }
    safe
}

/// A string literal with these bytes.
pub(crate) fn string(text: &str) -> String {
    let mut literal = String::from("\"");
    for byte in text.bytes() {
        match byte {
            // A question mark may be part of a trigraph.
            b'"' | b'\\' | b'?' => {
                let _ = write!(literal, "\\{}", char::from(byte));
            }
            b' '..=b'~' => literal.push(char::from(byte)),
            // Always three octal digits, so that a digit after the escape is not read as part of
            // it.
            _ => {
                let _ = write!(literal, "\\{byte:03o}");
            }
        }
    }
    literal.push('"');
    literal
}

/// A double literal with the same bits; `None` for infinities and NaN, which C has no literals for.
pub(crate) fn double(x: f64) -> Option<String> {
    // Rust's `{:?}` prints the shortest decimal that reads back as the same double, and always with
    // a `.` or an exponent, so that C does not read an integer.
    x.is_finite().then(|| format!("{x:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_inside_its_comment() {
        let hostile =
            ["*/ int x; /*", "**//", "/*/*/", "a\n#define b", "??/\n", "\u{202e}*\u{200b}/", "*\u{0}/"];
        for name in hostile {
            let text = comment(name);
            for ending in ["*/", "/*", "??", "\n", "\u{202e}"] {
                assert!(!text.contains(ending), "{name:?}: {text:?}");
            }
        }
        assert_eq!(comment(&"x".repeat(9999)).len(), MAX_SHOWN);
        assert_eq!(comment("blk.0.attn_q.weight · ü"), "blk.0.attn_q.weight · ü");
    }

    #[test]
    fn a_name_stays_inside_its_string() {
        assert_eq!(string("a\"; x = \"\\"), r#""a\"; x = \"\\""#);
        assert_eq!(string("??/\n1\u{fc}"), r#""\?\?/\0121\303\274""#);
    }

    #[test]
    fn doubles_keep_their_bits() {
        for x in [1.0, 1e-6, 0.1, 1e300, -0.0, 6.103515625e-5, f64::MIN_POSITIVE] {
            let text = double(x).unwrap();
            assert_eq!(text.parse::<f64>().unwrap().to_bits(), x.to_bits());
            assert!(text.contains(['.', 'e']), "{text} is not an integer of C");
        }
        assert_eq!(double(f64::NAN), None);
    }
}
