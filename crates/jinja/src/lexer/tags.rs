//! Tokens inside `{{ }}` and `{% %}`.

use super::literals::{number, string};
use super::{Lexer, TokenKind};
use crate::chars::is_space;
use crate::error::{Error, Result};

/// Operators and brackets. Longer ones first, because the first prefix match wins.
const OPERATORS: [&str; 27] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";", "!",
];

impl Lexer<'_> {
    /// Reads a tag up to and including its end. Its opening was consumed.
    pub(super) fn tag(&mut self, start: TokenKind, end: TokenKind, at: usize) -> Result<()> {
        self.push(start, at);
        let block = end == TokenKind::BlockEnd;
        let closer = if block { "%}" } else { "}}" };
        let mut open: Vec<u8> = Vec::new();
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start_matches(is_space).len();
            let line = self.line_at(self.at);
            let Some(first) = self.rest().chars().next() else {
                return Err(Error::syntax(line, format!("a tag is not closed: expected \"{closer}\"")));
            };
            if open.is_empty()
                && let Some(sign) = self.tag_end(closer, block)
            {
                let at = self.at;
                self.push(end, at);
                self.at += closer.len() + usize::from(sign.is_some());
                self.after_tag(sign, block);
                return Ok(());
            }
            self.token(first, &mut open)?;
        }
    }

    /// If the tag ends here: the sign of its end, if any.
    fn tag_end(&self, closer: &str, block: bool) -> Option<Option<u8>> {
        let rest = self.rest();
        if rest.starts_with(closer) {
            return Some(None);
        }
        let sign = rest.as_bytes()[0];
        // `+%}` disables trim_blocks, which never applies to `}}`.
        // The slice below is taken only after an ASCII sign, so it begins at a character boundary.
        let signed = sign == b'-' || (block && sign == b'+');
        (signed && rest[1..].starts_with(closer)).then_some(Some(sign))
    }

    fn token(&mut self, first: char, open: &mut Vec<u8>) -> Result<()> {
        let at = self.at;
        let line = self.line_at(at);
        let rest = &self.source[at..];
        let (kind, length) = match first {
            '"' | '\'' => string(rest).map_err(|e| e.at(line))?,
            '0'..='9' => {
                // In `list.0.1` the lexer sees "0.1" after the first dot.
                let after_dot = self.source[..at].ends_with('.');
                number(rest, !after_dot).map_err(|e| e.at(line))?
            }
            c if c == '_' || c.is_alphanumeric() => {
                let length = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
                (TokenKind::Name(at as u32, (at + length) as u32), length)
            }
            _ => {
                let Some(op) = OPERATORS.iter().find(|op| rest.starts_with(**op)) else {
                    return Err(Error::syntax(line, format!("unexpected character {first:?}")));
                };
                balance(op, open).map_err(|e| e.at(line))?;
                (TokenKind::Op(op), op.len())
            }
        };
        self.push(kind, at);
        self.at += length;
        Ok(())
    }
}

/// Tracks open brackets, so that `}}` inside a tag can close two nested dictionaries.
fn balance(op: &str, open: &mut Vec<u8>) -> Result<()> {
    match op {
        "(" => open.push(b')'),
        "[" => open.push(b']'),
        "{" => open.push(b'}'),
        ")" | "]" | "}" if open.pop() != Some(op.as_bytes()[0]) => {
            // The caller sets the line.
            return Err(Error::syntax(0, format!("unexpected \"{op}\"")));
        }
        _ => {}
    }
    Ok(())
}
