//! Position automata (Glushkov) of lexemes, and a product walk that finds the bytes that can extend
//! a match.

use super::expr::{CharRange, Expr};
use super::flow::ByteSet;
use std::collections::HashSet;

/// Glushkov automaton. Its states are the positions of the classes in the expression, plus a start
/// state. A bounded repetition is treated as unbounded. This enlarges the language, so it can only
/// report more conflicts.
#[derive(Debug)]
pub(super) struct Nfa {
    /// The class consumed on entering each state; empty for the start state.
    classes: Vec<Vec<CharRange>>,
    next: Vec<Vec<u32>>,
    accepts: Vec<bool>,
    /// First bytes that can be read from each state.
    leads: Vec<ByteSet>,
}

/// First and last positions of an expression, and whether it matches the empty text.
struct Ends {
    first: Vec<u32>,
    last: Vec<u32>,
    nullable: bool,
}

/// Maximum number of transitions of an automaton.
const MAX_TRANSITIONS: usize = 200_000;

impl Nfa {
    /// Builds the automaton. `None` if it would be too large.
    pub(super) fn new(expr: &Expr) -> Option<Nfa> {
        let mut nfa = Nfa {
            classes: vec![Vec::new()],
            next: vec![Vec::new()],
            accepts: vec![false],
            leads: Vec::new(),
        };
        let mut budget = MAX_TRANSITIONS;
        let ends = nfa.add(expr, &mut budget)?;
        nfa.next[0] = ends.first;
        nfa.accepts = vec![false; nfa.classes.len()];
        ends.last.iter().for_each(|state| nfa.accepts[*state as usize] = true);
        // State 0 is the start. It accepts if the empty text matches.
        nfa.accepts[0] = ends.nullable;
        for next in &mut nfa.next {
            next.sort_unstable();
            next.dedup();
        }
        let lead = |state: &u32| ByteSet::leads(&nfa.classes[*state as usize]);
        nfa.leads = nfa.next.iter().map(|next| next.iter().map(lead).collect()).collect();
        Some(nfa)
    }

    pub(super) fn nullable(&self) -> bool {
        self.accepts[0]
    }

    /// First bytes of all matches.
    pub(super) fn first(&self) -> ByteSet {
        self.leads[0]
    }

    fn add(&mut self, expr: &Expr, budget: &mut usize) -> Option<Ends> {
        match expr {
            Expr::Class(ranges) => {
                let state = self.classes.len() as u32;
                self.classes.push(ranges.clone());
                self.next.push(Vec::new());
                *budget = budget.checked_sub(1)?;
                Some(Ends { first: vec![state], last: vec![state], nullable: false })
            }
            Expr::Sequence(parts) => {
                let mut all = Ends { first: Vec::new(), last: Vec::new(), nullable: true };
                for part in parts {
                    let part = self.add(part, budget)?;
                    self.join(&all.last, &part.first, budget)?;
                    if all.nullable {
                        all.first.extend(&part.first);
                    }
                    // A part that can be empty leaves the previous positions as possible ends.
                    if !part.nullable {
                        all.last.clear();
                    }
                    all.last.extend(part.last);
                    all.nullable &= part.nullable;
                }
                Some(all)
            }
            Expr::Choice(parts) => {
                let mut all = Ends { first: Vec::new(), last: Vec::new(), nullable: false };
                for part in parts {
                    let part = self.add(part, budget)?;
                    all.first.extend(part.first);
                    all.last.extend(part.last);
                    all.nullable |= part.nullable;
                }
                Some(all)
            }
            Expr::Repeat(inner, low, high) => {
                let mut inner = self.add(inner, budget)?;
                // The last positions lead back to the first ones, which makes every repetition
                // unbounded.
                if *high != Some(1) {
                    self.join(&inner.last, &inner.first, budget)?;
                }
                inner.nullable |= *low == 0;
                Some(inner)
            }
            // Lexemes contain no rules or tokens.
            Expr::Rule(_) | Expr::Token(_) => None,
        }
    }

    fn join(&mut self, from: &[u32], to: &[u32], budget: &mut usize) -> Option<()> {
        *budget = budget.checked_sub(from.len() * to.len())?;
        from.iter().for_each(|state| self.next[*state as usize].extend(to));
        Some(())
    }

    /// First bytes that can follow a match of this automaton such that the whole is still a prefix
    /// of a match of `other`. `None` if the walk exceeds the budget.
    pub(super) fn prolonged_by(&self, other: &Nfa, budget: &mut usize) -> Option<ByteSet> {
        let mut found = ByteSet::default();
        // Most pairs of lexemes differ in their first byte, and need no walk.
        if self.first().is_disjoint(other.first()) {
            return Some(found);
        }
        // Each pair of states is visited once, so the walk ends although both automata have cycles.
        let mut seen = HashSet::from([(0, 0)]);
        let mut open = vec![(0_u32, 0_u32)];
        while let Some((own, theirs)) = open.pop() {
            for to in &self.next[own as usize] {
                for their_to in &other.next[theirs as usize] {
                    *budget = budget.checked_sub(1)?;
                    if !overlap(&self.classes[*to as usize], &other.classes[*their_to as usize]) {
                        continue;
                    }
                    // A whole match of this automaton is a proper prefix of a match of the other
                    // one: bytes that may come next prolong it.
                    if self.accepts[*to as usize] {
                        found = found.or(other.leads[*their_to as usize]);
                    }
                    if seen.insert((*to, *their_to)) {
                        open.push((*to, *their_to));
                    }
                }
            }
        }
        Some(found)
    }
}

/// Whether two sorted lists of ranges have a common character.
fn overlap(a: &[CharRange], b: &[CharRange]) -> bool {
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        if a[i].0 <= b[j].1 && b[j].0 <= a[i].1 {
            return true;
        }
        // The range that ends first cannot overlap any later range.
        if a[i].1 < b[j].1 { i += 1 } else { j += 1 }
    }
    false
}
