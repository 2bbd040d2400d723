//! FOLLOW sets: the first bytes of what can follow each lexeme.

use super::expr::CharRange;
use super::node::{LexemeGrammar, Node};
use crate::error::GrammarError;
use crate::limits::CompileDeadline;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ByteSet([u64; 4]);

impl ByteSet {
    /// First UTF-8 bytes of the characters in `ranges`.
    pub(super) fn leads(ranges: &[CharRange]) -> ByteSet {
        let lead = |c: char| c.encode_utf8(&mut [0; 4]).as_bytes()[0];
        let mut bytes = ByteSet::default();
        for (low, high) in ranges {
            // First bytes grow with the code point, so the range of bytes covers the range of
            // characters.
            (lead(*low)..=lead(*high)).for_each(|byte| bytes.0[usize::from(byte / 64)] |= 1 << (byte % 64));
        }
        bytes
    }

    pub(super) fn or(self, other: ByteSet) -> ByteSet {
        ByteSet(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    pub(super) fn is_disjoint(self, other: ByteSet) -> bool {
        self.0.iter().zip(other.0).all(|(a, b)| a & b == 0)
    }
}

impl FromIterator<ByteSet> for ByteSet {
    fn from_iter<I: IntoIterator<Item = ByteSet>>(all: I) -> ByteSet {
        all.into_iter().fold(ByteSet::default(), ByteSet::or)
    }
}

/// FIRST set of a node, and whether it matches the empty text.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct NodeStart {
    pub(super) first: ByteSet,
    pub(super) nullable: bool,
}

impl NodeStart {
    const EMPTY: NodeStart = NodeStart { first: ByteSet([0; 4]), nullable: true };

    fn then(self, next: NodeStart) -> NodeStart {
        if !self.nullable {
            return self;
        }
        NodeStart { first: self.first.or(next.first), nullable: next.nullable }
    }
}

/// Computes what can follow each lexeme. `lexemes` gives the FIRST set of each lexeme that is not
/// split.
pub(super) fn follows(
    grammar: &LexemeGrammar,
    lexemes: &[NodeStart],
    deadline: &CompileDeadline,
) -> Result<Vec<ByteSet>, GrammarError> {
    let mut flow = ByteFlow {
        grammar,
        lexemes,
        starts: vec![NodeStart::default(); grammar.rules.len()],
        after_rules: vec![ByteSet::default(); grammar.rules.len()],
        after: vec![ByteSet::default(); grammar.lexemes.len()],
        changed: true,
    };
    // Fixed point: rules refer to each other recursively. The sets only grow, so it ends.
    while std::mem::take(&mut flow.changed) {
        deadline.check()?;
        // Rules mostly refer to later ones, so the reverse order needs fewer rounds.
        for rule in (0..grammar.rules.len()).rev() {
            let start = flow.start(&grammar.rules[rule]);
            flow.changed |= start != flow.starts[rule];
            flow.starts[rule] = start;
        }
    }
    flow.changed = true;
    while std::mem::take(&mut flow.changed) {
        deadline.check()?;
        for rule in 0..grammar.rules.len() {
            let after = flow.after_rules[rule];
            flow.walk(&grammar.rules[rule], after);
        }
    }
    Ok(flow.after)
}

struct ByteFlow<'a> {
    grammar: &'a LexemeGrammar,
    lexemes: &'a [NodeStart],
    starts: Vec<NodeStart>,
    after_rules: Vec<ByteSet>,
    after: Vec<ByteSet>,
    changed: bool,
}

impl ByteFlow<'_> {
    fn start(&self, node: &Node) -> NodeStart {
        match node {
            Node::Lexeme(lexeme) => match &self.grammar.lexemes[*lexeme].parts {
                Some(parts) => self.start(parts),
                None => self.lexemes[*lexeme],
            },
            // llguidance matches vocabulary tokens by id. They cannot continue a lexeme's text.
            Node::Token(_) => NodeStart::default(),
            Node::Rule(rule) => self.starts[*rule],
            Node::Sequence(parts) => {
                parts.iter().fold(NodeStart::EMPTY, |start, part| start.then(self.start(part)))
            }
            Node::Choice(parts) => parts.iter().fold(NodeStart::default(), |all, part| {
                let start = self.start(part);
                NodeStart { first: all.first.or(start.first), nullable: all.nullable || start.nullable }
            }),
            Node::Repeat(inner, low, _) => {
                let start = self.start(inner);
                NodeStart { nullable: start.nullable || *low == 0, ..start }
            }
        }
    }

    /// Adds `after` to what can follow a node.
    fn walk(&mut self, node: &Node, after: ByteSet) {
        let grammar = self.grammar;
        match node {
            Node::Lexeme(lexeme) => {
                let known = self.after[*lexeme].or(after);
                if known != self.after[*lexeme] {
                    self.after[*lexeme] = known;
                    self.changed = true;
                }
                if let Some(parts) = &grammar.lexemes[*lexeme].parts {
                    self.walk(parts, after);
                }
            }
            Node::Token(_) => {}
            Node::Rule(rule) => {
                let known = self.after_rules[*rule].or(after);
                self.changed |= known != self.after_rules[*rule];
                self.after_rules[*rule] = known;
            }
            Node::Sequence(parts) => {
                let mut after = NodeStart { first: after, nullable: true };
                for part in parts.iter().rev() {
                    self.walk(part, after.first);
                    after = self.start(part).then(after);
                }
            }
            Node::Choice(parts) => parts.iter().for_each(|part| self.walk(part, after)),
            Node::Repeat(inner, _, high) => {
                // A repeated node can be followed by itself.
                let again = if *high == Some(1) { ByteSet::default() } else { self.start(inner).first };
                self.walk(inner, after.or(again));
            }
        }
    }
}
