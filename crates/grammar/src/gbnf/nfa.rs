//! Which characters can prolong a match: automata of lexemes, by position (Glushkov), and walked in pairs.

use super::expr::{CharRange, Expr};
use super::flow::ByteSet;
use std::collections::HashSet;

/// An automaton: its states are the places of the expression's classes, and a first one before all of them. A repetition with bounds counts as
/// one without, which only makes the language larger.
#[derive(Debug)]
pub(super) struct Nfa {
    /// The class that is read on entering each state; none for the first.
    classes: Vec<Vec<CharRange>>,
    next: Vec<Vec<u32>>,
    accepts: Vec<bool>,
    /// First bytes of what can be read from each state.
    leads: Vec<ByteSet>,
}

/// The places of an expression with which a match can begin and end, and whether it can be empty.
struct Ends {
    first: Vec<u32>,
    last: Vec<u32>,
    nullable: bool,
}

/// Most transitions of an automaton.
const MAX_TRANSITIONS: usize = 200_000;

impl Nfa {
    /// None where it would be too large.
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

    /// First bytes of what it matches.
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
                if *high != Some(1) {
                    self.join(&inner.last, &inner.first, budget)?;
                }
                inner.nullable |= *low == 0;
                Some(inner)
            }
            // lexemes have neither
            Expr::Rule(_) | Expr::Token(_) => None,
        }
    }

    fn join(&mut self, from: &[u32], to: &[u32], budget: &mut usize) -> Option<()> {
        *budget = budget.checked_sub(from.len() * to.len())?;
        from.iter().for_each(|state| self.next[*state as usize].extend(to));
        Some(())
    }

    /// First bytes of what can follow a match of this automaton, so that the whole still begins a match of the other. None where the walk takes
    /// more than the budget.
    pub(super) fn prolonged_by(&self, other: &Nfa, budget: &mut usize) -> Option<ByteSet> {
        let mut found = ByteSet::default();
        if self.first().is_apart(other.first()) {
            return Some(found);
        }
        let mut seen = HashSet::from([(0, 0)]);
        let mut open = vec![(0_u32, 0_u32)];
        while let Some((own, theirs)) = open.pop() {
            for to in &self.next[own as usize] {
                for their_to in &other.next[theirs as usize] {
                    *budget = budget.checked_sub(1)?;
                    if !overlap(&self.classes[*to as usize], &other.classes[*their_to as usize]) {
                        continue;
                    }
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

/// Whether two sorted lists of ranges have a character in common.
fn overlap(a: &[CharRange], b: &[CharRange]) -> bool {
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        if a[i].0 <= b[j].1 && b[j].0 <= a[i].1 {
            return true;
        }
        if a[i].1 < b[j].1 { i += 1 } else { j += 1 }
    }
    false
}
