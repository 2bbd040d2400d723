//! Tokens that are matched in a text as a whole, before anything else cuts it.

use std::collections::HashSet;
use std::ops::Range;

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    Text(&'a str),
    Token(u32),
}

/// Text, id, and whether it is a control token.
type Special = (String, u32, bool);

/// Control and user-defined tokens.
#[derive(Default)]
pub(super) struct SpecialTokens {
    /// Texts by first byte, the longest first.
    by_first: Vec<(u8, Vec<Special>)>,
    control: HashSet<u32>,
}

impl SpecialTokens {
    pub(super) fn add(&mut self, text: &str, id: u32, control: bool) {
        if control {
            self.control.insert(id);
        }
        let Some(first) = text.bytes().next() else { return };
        let entry = (text.to_owned(), id, control);
        match self.by_first.iter_mut().find(|(byte, _)| *byte == first) {
            Some((_, list)) => list.push(entry),
            None => self.by_first.push((first, vec![entry])),
        }
    }

    pub(super) fn finish(&mut self) {
        for (_, list) in &mut self.by_first {
            list.sort_by_key(|(text, id, _)| (std::cmp::Reverse(text.len()), *id));
        }
    }

    pub(super) fn is_control(&self, id: u32) -> bool {
        self.control.contains(&id)
    }

    /// Cuts a text at the tokens in it; control tokens count only if `parse`.
    pub(super) fn split<'a>(&self, text: &'a str, parse: bool) -> Vec<Fragment<'a>> {
        self.split_where(text, |_, control| parse || !control)
    }

    /// Cuts a text at those tokens in it that `allowed` admits: it gets the bytes that a token would take, and whether it
    /// is a control token.
    pub(super) fn split_where<'a>(
        &self,
        text: &'a str,
        mut allowed: impl FnMut(Range<usize>, bool) -> bool,
    ) -> Vec<Fragment<'a>> {
        let mut fragments = Vec::new();
        let mut start = 0;
        let mut at = 0;
        while at < text.len() {
            let first = text.as_bytes()[at];
            let list =
                self.by_first.iter().find(|(byte, _)| *byte == first).map_or(&[][..], |(_, list)| list);
            let found = list.iter().find(|(token, _, control)| {
                text[at..].starts_with(token.as_str()) && allowed(at..at + token.len(), *control)
            });
            if let Some((token, id, _)) = found {
                if start < at {
                    fragments.push(Fragment::Text(&text[start..at]));
                }
                fragments.push(Fragment::Token(*id));
                at += token.len();
                start = at;
            } else {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
            }
        }
        if start < text.len() {
            fragments.push(Fragment::Text(&text[start..]));
        }
        fragments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_token_wins_and_control_tokens_only_count_when_asked() {
        let mut special = SpecialTokens::default();
        special.add("<a>", 1, true);
        special.add("<a><b>", 2, true);
        special.add("<t>", 3, false);
        special.finish();
        use Fragment::{Text, Token};
        let split = |text, parse| special.split(text, parse);
        assert_eq!(split("é<a><b><a>x<t>", true), [Text("é"), Token(2), Token(1), Text("x"), Token(3)]);
        assert_eq!(split("<a>x<t>y", false), [Text("<a>x"), Token(3), Text("y")]);
        assert_eq!(split("", true), []);
        // a shorter token may stand where the longest one may not
        let early = |range: Range<usize>, _| range.end <= 3;
        assert_eq!(special.split_where("<a><b><a>", early), [Token(1), Text("<b><a>")]);
    }
}
