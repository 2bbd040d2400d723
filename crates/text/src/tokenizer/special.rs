//! Tokens that are matched in a text as a whole, before anything else cuts it.

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
    /// Whether it takes the white space before it, and behind it.
    strips: (bool, bool),
    /// The longest other token that this one begins with.
    shorter: Option<usize>,
}

/// Bytes that all these tokens may have, for each of which an automaton keeps some forty; published vocabularies stay below 100 000.
const MAX_BYTES: usize = 4 << 20;

/// Control and user-defined tokens. At each place of a text the longest one wins; among equal texts, the lowest id.
#[derive(Default)]
pub(super) struct SpecialTokens {
    tokens: Vec<SpecialEntry>,
    control: HashSet<u32>,
    user_defined: HashSet<u32>,
    /// All tokens; the automaton's pattern numbers index `tokens`.
    all: Option<AhoCorasick>,
    /// User-defined tokens alone, with the index of each.
    user: Option<(AhoCorasick, Vec<usize>)>,
}

impl SpecialTokens {
    /// Adds a token; [`SpecialTokens::finish`] makes it count. An empty text matches nowhere.
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
        self.tokens.dedup_by(|later, earlier| later.text == earlier.text);
        // in lexical order, what a token begins with is on the stack of what the tokens before it begin with
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

    /// Cuts a text at the tokens in it; control tokens count only if `parse`.
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

    /// Cuts a text at those tokens in it that `allowed` admits: it gets the bytes that a token would take, and whether it is a control
    /// token. Where a token is not admitted, a shorter one at the same place may be, and then one that begins further on.
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
                at = start + text[start..].chars().next().map_or(1, char::len_utf8);
            }
        })
    }

    /// The fragments around what `next` finds at or after a byte: bytes of `text` and an index into `tokens`.
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

/// An automaton that finds the leftmost longest of some tokens; `None` without tokens.
fn automaton<'a>(tokens: impl Iterator<Item = &'a SpecialEntry>) -> Result<Option<AhoCorasick>, TextError> {
    let mut tokens = tokens.map(|token| token.text.as_bytes()).peekable();
    if tokens.peek().is_none() {
        return Ok(None);
    }
    let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(tokens);
    built.map(Some).map_err(|e| {
        TextError::Malformed(format!("its control and user-defined tokens are too many or too long: {e}"))
    })
}

/// Whether a token that a file does not declare special is meant as a control token all the same, as in DeepSeek's vocabularies.
pub(super) fn looks_special(text: &str) -> bool {
    let between = |start, end| text.starts_with(start) && text.ends_with(end);
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
    fn a_control_token_that_is_not_asked_for_hides_no_shorter_token() {
        let special = special(&[("ab", 1, false), ("abc", 2, true), ("bcd", 3, false)]);
        assert_eq!(special.split("abcd", false).collect::<Vec<_>>(), [Token(1), Text("cd")]);
        let by_rule: Vec<_> = special.split_where("abcd", |_, control| !control).collect();
        assert_eq!(by_rule, [Token(1), Text("cd")]);
    }

    #[test]
    fn a_rule_sees_places_and_a_refused_token_hides_none_behind_it() {
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
    fn white_space_goes_with_tokens_that_strip_it() {
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
    fn more_than_any_vocabulary_has_is_refused() {
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
