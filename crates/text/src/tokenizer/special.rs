//! Control and user-defined tokens, which are matched in a text as a whole before it is split.

use crate::error::TextError;
use aho_corasick::{AhoCorasick, Input, MatchKind};
use std::collections::HashSet;
use std::ops::Range;

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    Text(&'a str),
    Token(u32),
}

/// A control or user-defined token.
struct SpecialEntry {
    text: Box<str>,
    id: u32,
    control: bool,
    /// Whether the token includes white space before and after it (`lstrip`, `rstrip`).
    strips: (bool, bool),
    /// The longest other token that is a prefix of this one.
    shorter: Option<usize>,
}

/// Maximum bytes of all tokens. An automaton needs about 40 bytes for each of them. Published
/// vocabularies have less than 100 000.
const MAX_BYTES: usize = 4 << 20;

/// Control and user-defined tokens. At each position of a text the longest token matches; of equal
/// texts, the lowest id.
#[derive(Default)]
pub(super) struct SpecialTokens {
    tokens: Vec<SpecialEntry>,
    control: HashSet<u32>,
    user_defined: HashSet<u32>,
    // Automata, because files may list 20 000 tokens with the same first character: comparing each
    // of them at each position of a text took seconds.
    /// All tokens; the automaton's pattern numbers index `tokens`.
    all: Option<AhoCorasick>,
    // A second automaton: in `all`, a longer control token would hide a user-defined token.
    /// User-defined tokens, with the index of each.
    user: Option<(AhoCorasick, Vec<usize>)>,
}

impl SpecialTokens {
    /// Adds a token. It is matched after [`SpecialTokens::finish`]. An empty text matches nowhere.
    pub(super) fn add(&mut self, text: &str, id: u32, control: bool, strips: (bool, bool)) {
        if control {
            self.control.insert(id);
        } else {
            self.user_defined.insert(id);
        }
        if !text.is_empty() {
            self.tokens.push(SpecialEntry { text: text.into(), id, control, strips, shorter: None });
        }
    }

    /// Builds the automata.
    pub(super) fn finish(&mut self) -> Result<(), TextError> {
        let bytes: usize = self.tokens.iter().map(|token| token.text.len()).sum();
        if bytes > MAX_BYTES {
            let problem =
                format!("its control and user-defined tokens have {bytes} bytes; the limit is {MAX_BYTES}");
            return Err(TextError::Malformed(problem));
        }
        self.tokens.sort_by(|a, b| a.text.cmp(&b.text).then(a.id.cmp(&b.id)));
        // Keeps the first of equal texts, which has the lowest id.
        self.tokens.dedup_by(|later, earlier| later.text == earlier.text);
        // In lexical order, the prefixes of a token precede it. The stack holds the tokens that are
        // prefixes of the last one, the longest on top.
        let mut open: Vec<usize> = Vec::new();
        for i in 0..self.tokens.len() {
            while open.last().is_some_and(|&j| !self.tokens[i].text.starts_with(&*self.tokens[j].text)) {
                open.pop();
            }
            self.tokens[i].shorter = open.last().copied();
            open.push(i);
        }
        let user: Vec<usize> = (0..self.tokens.len()).filter(|&i| !self.tokens[i].control).collect();
        self.all = automaton(self.tokens.iter())?;
        self.user = automaton(user.iter().map(|&i| &self.tokens[i]))?.map(|found| (found, user));
        Ok(())
    }

    pub(super) fn is_control(&self, id: u32) -> bool {
        self.control.contains(&id)
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.is_control(id) || self.user_defined.contains(&id)
    }

    /// Splits a text at its special tokens. Control tokens are matched only if `parse`.
    pub(super) fn split<'a>(
        &'a self,
        text: &'a str,
        parse: bool,
    ) -> Box<dyn Iterator<Item = Fragment<'a>> + 'a> {
        if parse {
            return Box::new(self.split_where(text, |_, _| true));
        }
        Box::new(self.fragments(text, move |at| {
            let (automaton, indices) = self.user.as_ref()?;
            let found = automaton.find(Input::new(text).range(at..))?;
            Some((found.range(), indices[found.pattern().as_usize()]))
        }))
    }

    /// Splits a text at the special tokens that `allowed` accepts. `allowed` is called with the
    /// range of a token, and whether it is a control token. If it rejects a token, shorter tokens
    /// at the same position are tried, then tokens at later positions.
    pub(super) fn split_where<'a>(
        &'a self,
        text: &'a str,
        mut allowed: impl FnMut(Range<usize>, bool) -> bool + 'a,
    ) -> impl Iterator<Item = Fragment<'a>> + 'a {
        self.fragments(text, move |mut at| {
            loop {
                let found = self.all.as_ref()?.find(Input::new(text).range(at..))?;
                let start = found.start();
                let mut candidate = Some(found.pattern().as_usize());
                while let Some(index) = candidate {
                    let token = &self.tokens[index];
                    let range = start..start + token.text.len();
                    if allowed(range.clone(), token.control) {
                        return Some((range, index));
                    }
                    candidate = token.shorter;
                }
                // One character further, so that a rejected token does not hide one that begins
                // inside it.
                at = start + text[start..].chars().next().map_or(1, char::len_utf8);
            }
        })
    }

    /// The fragments of a text. `next` finds the first token at or after a position: its range and
    /// its index in `tokens`.
    fn fragments<'a>(
        &'a self,
        text: &'a str,
        mut next: impl FnMut(usize) -> Option<(Range<usize>, usize)> + 'a,
    ) -> impl Iterator<Item = Fragment<'a>> + 'a {
        let mut start = 0;
        let mut token = None;
        std::iter::from_fn(move || {
            if let Some(id) = token.take() {
                return Some(Fragment::Token(id));
            }
            match next(start) {
                Some((range, index)) => {
                    let SpecialEntry { id, strips, .. } = self.tokens[index];
                    let before = &text[start..range.start];
                    let before = if strips.0 { before.trim_end() } else { before };
                    let behind = &text[range.end..];
                    start = range.end + if strips.1 { behind.len() - behind.trim_start().len() } else { 0 };
                    if before.is_empty() {
                        return Some(Fragment::Token(id));
                    }
                    token = Some(id);
                    Some(Fragment::Text(before))
                }
                None => {
                    let rest = &text[start..];
                    start = text.len();
                    (!rest.is_empty()).then_some(Fragment::Text(rest))
                }
            }
        })
    }
}

/// An automaton that finds the leftmost-longest token; `None` without tokens.
fn automaton<'a>(tokens: impl Iterator<Item = &'a SpecialEntry>) -> Result<Option<AhoCorasick>, TextError> {
    let mut tokens = tokens.map(|token| token.text.as_bytes()).peekable();
    if tokens.peek().is_none() {
        return Ok(None);
    }
    // The match kind of the `tokenizers` library.
    let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(tokens);
    built.map(Some).map_err(|e| {
        TextError::Malformed(format!("its control and user-defined tokens are too many or too long: {e}"))
    })
}

/// Whether a token is a control token by its name, although its file does not declare it special.
///
/// DeepSeek's files say `"special": false` for `<｜User｜>`, and Kimi's for `<|tool_call_begin|>`.
/// Without this rule, users could write turns of their own.
pub(super) fn looks_special(text: &str) -> bool {
    let between = |start, end| text.starts_with(start) && text.ends_with(end);
    // The names of llama.cpp's converter, so that a folder and its GGUF file agree.
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || between("<|", "|>")
        || between("<｜", "｜>")
        || between("<unused", ">")
}

#[cfg(test)]
mod tests {
    use super::Fragment::{Text, Token};
    use super::*;

    fn special(tokens: &[(&str, u32, bool)]) -> SpecialTokens {
        let mut special = SpecialTokens::default();
        for (text, id, control) in tokens {
            special.add(text, *id, *control, (false, false));
        }
        special.finish().unwrap();
        special
    }

    #[test]
    fn the_longest_token_wins_and_control_tokens_only_count_when_asked() {
        let special = special(&[("<a>", 1, true), ("<a><b>", 2, true), ("<t>", 3, false), ("", 4, false)]);
        let split = |text, parse| special.split(text, parse).collect::<Vec<_>>();
        assert_eq!(split("é<a><b><a>x<t>", true), [Text("é"), Token(2), Token(1), Text("x"), Token(3)]);
        assert_eq!(split("<a>x<t>y", false), [Text("<a>x"), Token(3), Text("y")]);
        assert_eq!(split("", true), []);
        assert_eq!(SpecialTokens::default().split("x", true).collect::<Vec<_>>(), [Text("x")]);
    }

    #[test]
    fn a_rejected_control_token_does_not_hide_a_shorter_token() {
        let special = special(&[("ab", 1, false), ("abc", 2, true), ("bcd", 3, false)]);
        assert_eq!(special.split("abcd", false).collect::<Vec<_>>(), [Token(1), Text("cd")]);
        let by_rule: Vec<_> = special.split_where("abcd", |_, control| !control).collect();
        assert_eq!(by_rule, [Token(1), Text("cd")]);
    }

    #[test]
    fn a_rejected_token_does_not_hide_one_that_begins_inside_it() {
        let special = special(&[("<a>", 1, true), ("<a><b>", 2, true), ("><", 3, false)]);
        let split = |allowed: std::ops::Range<usize>| {
            let within = move |r: std::ops::Range<usize>, _| allowed.start <= r.start && r.end <= allowed.end;
            special.split_where("<a><b>.<a>", within).collect::<Vec<_>>()
        };
        assert_eq!(split(0..10), [Token(2), Text("."), Token(1)]);
        assert_eq!(split(0..5), [Token(1), Text("<b>.<a>")]);
        assert_eq!(split(1..5), [Text("<a"), Token(3), Text("b>.<a>")]);
        assert_eq!(split(3..10), [Text("<a><b>."), Token(1)]);
    }

    #[test]
    fn tokens_with_lstrip_and_rstrip_include_white_space() {
        let mut special = SpecialTokens::default();
        special.add("<l>", 1, true, (true, false));
        special.add("<r>", 2, true, (false, true));
        special.add(" x", 3, false, (false, false));
        special.finish().unwrap();
        let split = |text| special.split(text, true).collect::<Vec<_>>();
        assert_eq!(
            split("a \n<l> b<r>\u{3000} x <r>"),
            [Text("a"), Token(1), Text(" b"), Token(2), Text("x "), Token(2)]
        );
        assert_eq!(split(" <l>"), [Token(1)]);
    }

    #[test]
    fn too_many_bytes_of_special_tokens_are_rejected() {
        let mut special = SpecialTokens::default();
        special.add(&"x".repeat(MAX_BYTES + 1), 1, true, (false, false));
        assert!(special.finish().unwrap_err().to_string().contains("limit"));
    }

    #[test]
    fn equal_texts_give_the_lowest_id() {
        let special = special(&[("<a>", 7, false), ("<a>", 5, true)]);
        assert_eq!(special.split("<a>", true).collect::<Vec<_>>(), [Token(5)]);
    }
}
