//! Syntax tree of a GBNF grammar.

/// The rules of a grammar, and the index of the start rule `root`.
#[derive(Debug)]
pub(super) struct GbnfRules {
    pub(super) rules: Vec<GbnfRule>,
    pub(super) root: usize,
}

#[derive(Debug)]
pub(super) struct GbnfRule {
    pub(super) body: Expr,
}

/// An inclusive range of characters.
pub(super) type CharRange = (char, char);

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Expr {
    /// One character of these ranges, which are sorted and not adjacent. An empty class never
    /// matches.
    Class(Vec<CharRange>),
    /// A concatenation. An empty one matches the empty text.
    Sequence(Vec<Expr>),
    /// Alternatives.
    Choice(Vec<Expr>),
    /// Minimum and maximum number of repetitions; `None` is unbounded.
    Repeat(Box<Expr>, u32, Option<u32>),
    Rule(usize),
    /// A token of the vocabulary: `<name>` or `<[id]>`, as written.
    Token(String),
}

impl Expr {
    pub(super) fn empty() -> Expr {
        Expr::Sequence(Vec::new())
    }

    pub(super) fn char(c: char) -> Expr {
        Expr::Class(vec![(c, c)])
    }
}

/// Sorts ranges and merges adjacent ones; returns the complement if `negated`.
pub(super) fn class(mut ranges: Vec<CharRange>, negated: bool) -> Vec<CharRange> {
    ranges.sort_unstable();
    let mut joined: Vec<CharRange> = Vec::new();
    for (low, high) in ranges {
        match joined.last_mut() {
            Some(last) if low <= last.1 || after(last.1) == Some(low) => last.1 = last.1.max(high),
            _ => joined.push((low, high)),
        }
    }
    if !negated {
        return joined;
    }
    let (mut rest, mut next) = (Vec::new(), Some('\0'));
    for (low, high) in joined {
        if let (Some(start), Some(end)) = (next, before(low))
            && start <= end
        {
            rest.push((start, end));
        }
        next = after(high);
    }
    rest.extend(next.map(|start| (start, char::MAX)));
    rest
}

fn after(c: char) -> Option<char> {
    match c {
        char::MAX => None,
        // `char` excludes the surrogates in between.
        '\u{d7ff}' => Some('\u{e000}'),
        _ => char::from_u32(u32::from(c) + 1),
    }
}

fn before(c: char) -> Option<char> {
    match c {
        '\0' => None,
        '\u{e000}' => Some('\u{d7ff}'),
        _ => char::from_u32(u32::from(c) - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_joined_and_complemented() {
        assert_eq!(
            class(vec![('c', 'd'), ('a', 'b'), ('x', 'x'), ('b', 'c')], false),
            [('a', 'd'), ('x', 'x')]
        );
        assert_eq!(
            class(vec![('b', '\u{d7ff}'), ('\u{e001}', char::MAX)], true),
            [('\0', 'a'), ('\u{e000}', '\u{e000}')]
        );
        assert_eq!(class(vec![], true), [('\0', char::MAX)]);
        assert_eq!(class(vec![('\0', char::MAX)], true), []);
    }
}
