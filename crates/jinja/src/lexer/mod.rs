//! Lexer: text between tags, with whitespace trimmed as the tags require, and tokens inside tags.

mod literals;
mod tags;

use crate::chars::is_space;
use crate::error::{Error, Result};

/// A token and the line on which it begins.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) line: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenKind {
    /// Byte range of the source outside tags.
    Data(u32, u32),
    /// `{%`
    BlockStart,
    /// `%}`
    BlockEnd,
    /// `{{`
    PrintStart,
    /// `}}`
    PrintEnd,
    /// Byte range of a name.
    Name(u32, u32),
    Str(Box<str>),
    Int(i128),
    Float(f64),
    /// An operator or bracket.
    Op(&'static str),
    End,
}

/// Replaces every line end by `\n` and removes the last one.
pub(crate) fn normalize(source: &str) -> String {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    // Jinja2's default `keep_trailing_newline=False` removes one line end, not all.
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// Tokens of a normalized source.
pub(crate) fn tokens(source: &str) -> Result<Vec<Token>> {
    let mut lexer = Lexer { source, at: 0, line: 1, counted: 0, tokens: Vec::new() };
    lexer.run()?;
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    /// Byte position up to which lines were counted. Tokens come in order, so each byte is counted
    /// once.
    counted: usize,
    tokens: Vec<Token>,
}

/// The three kinds of tags.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Print,
    Block,
    Comment,
}

impl Lexer<'_> {
    fn run(&mut self) -> Result<()> {
        while let Some((start, tag)) = self.next_tag() {
            // `{%-` strips whitespace before the tag; `{%+` disables lstrip_blocks for this tag.
            let sign = self.source.as_bytes().get(start + 2).copied().filter(|b| matches!(b, b'-' | b'+'));
            self.data(start, sign, tag != Tag::Print);
            self.at = start + 2 + usize::from(sign.is_some());
            match tag {
                Tag::Comment => self.comment()?,
                Tag::Block => match self.raw_start() {
                    Some(body) => self.raw(body)?,
                    None => self.tag(TokenKind::BlockStart, TokenKind::BlockEnd, start)?,
                },
                Tag::Print => self.tag(TokenKind::PrintStart, TokenKind::PrintEnd, start)?,
            }
        }
        self.push(TokenKind::Data(self.at as u32, self.source.len() as u32), self.at);
        self.push(TokenKind::End, self.source.len());
        Ok(())
    }

    fn rest(&self) -> &str {
        &self.source[self.at..]
    }

    fn next_tag(&self) -> Option<(usize, Tag)> {
        let bytes = self.source.as_bytes();
        let mut at = self.at;
        while let Some(found) = bytes[at..].iter().position(|b| *b == b'{') {
            let start = at + found;
            match bytes.get(start + 1) {
                Some(b'{') => return Some((start, Tag::Print)),
                Some(b'%') => return Some((start, Tag::Block)),
                Some(b'#') => return Some((start, Tag::Comment)),
                _ => at = start + 1,
            }
        }
        None
    }

    fn push(&mut self, kind: TokenKind, at: usize) {
        // The parser needs no nodes for tags without text between them.
        if matches!(kind, TokenKind::Data(from, to) if from == to) {
            return;
        }
        let line = self.line_at(at);
        self.tokens.push(Token { kind, line });
    }

    fn line_at(&mut self, at: usize) -> u32 {
        if at > self.counted {
            let lines = self.source.as_bytes()[self.counted..at].iter().filter(|b| **b == b'\n').count();
            self.line += lines as u32;
            self.counted = at;
        }
        self.line
    }

    /// Emits the text before a tag, trimmed according to the tag's sign and `lstrip_blocks`.
    fn data(&mut self, end: usize, sign: Option<u8>, block: bool) {
        let start = self.at;
        let text = &self.source[start..end];
        let mut length = text.len();
        if sign == Some(b'-') {
            length = text.trim_end_matches(is_space).len();
        } else if sign.is_none() && block {
            // lstrip_blocks: if only whitespace precedes a block or comment tag on its line, remove
            // it. Print tags (`{{`) keep their indentation.
            let line_start = text.rfind('\n').map_or(0, |at| at + 1);
            // Without a line end in `text`, the tag begins a line only at the start of the source
            // or right after a line end that the previous tag consumed.
            let begins_line = line_start > 0 || start == 0 || self.source.as_bytes()[start - 1] == b'\n';
            if begins_line && text[line_start..].chars().all(is_space) {
                length = line_start;
            }
        }
        // u32 suffices: `parse` has limited the source, to 128 KiB by default.
        self.push(TokenKind::Data(start as u32, (start + length) as u32), start);
    }

    /// Skips a comment. Its opening `{#` was consumed.
    fn comment(&mut self) -> Result<()> {
        let start = self.at;
        let Some(length) = self.rest().find("#}") else {
            let line = self.line_at(start);
            return Err(Error::syntax(line, "a comment is not closed: expected \"#}\""));
        };
        let body = &self.rest()[..length];
        // `-#}` strips whitespace as `-%}` does. In `{#-#}` the only sign belongs to the opening.
        let sign = body.as_bytes().last().copied();
        self.at += length + 2;
        self.after_tag(sign.filter(|b| matches!(b, b'-' | b'+')), true);
        Ok(())
    }

    /// Skips whitespace after a tag: all of it after `-%}`, otherwise one line end (`trim_blocks`).
    fn after_tag(&mut self, sign: Option<u8>, block: bool) {
        if sign == Some(b'-') {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start_matches(is_space).len();
        } else if block && sign.is_none() && self.rest().starts_with('\n') {
            self.at += 1;
        }
    }

    /// Returns the start of the body if the current tag is `{% raw %}`.
    fn raw_start(&self) -> Option<usize> {
        let rest = self.rest().trim_start_matches(is_space).strip_prefix("raw")?;
        let rest = rest.trim_start_matches(is_space);
        let body = match rest.strip_prefix("-%}") {
            Some(body) => body.trim_start_matches(is_space),
            None => rest.strip_prefix("%}")?,
        };
        Some(self.source.len() - body.len())
    }

    /// Emits the text up to `{% endraw %}`.
    fn raw(&mut self, body: usize) -> Result<()> {
        let opened = self.at;
        self.at = body;
        let mut from = body;
        // Other tags inside a raw block are text, so search for the closing tag instead of lexing.
        while let Some(found) = self.source[from..].find("{%") {
            let start = from + found;
            from = start + 2;
            let sign = self.source.as_bytes().get(from).copied().filter(|b| matches!(b, b'-' | b'+'));
            let rest = &self.source[from + usize::from(sign.is_some())..];
            let Some(rest) = rest.trim_start_matches(is_space).strip_prefix("endraw") else { continue };
            let rest = rest.trim_start_matches(is_space);
            let end = rest.as_bytes().first().copied().filter(|b| matches!(b, b'-' | b'+'));
            let Some(rest) = rest[usize::from(end.is_some())..].strip_prefix("%}") else { continue };
            let after = self.source.len() - rest.len();
            self.data(start, sign, true);
            self.at = after;
            self.after_tag(end, true);
            return Ok(());
        }
        let line = self.line_at(opened);
        Err(Error::syntax(line, "raw is not closed: expected {% endraw %}"))
    }
}
