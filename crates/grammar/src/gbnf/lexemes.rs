//! Cutting a grammar into lexemes whose longest match is the right one.

use super::expr::Rules;
use super::flow::{Bytes, Start, follows};
use super::nfa::Nfa;
use super::node::Grammar;
use crate::error::GrammarError;
use crate::limits::Deadline;

/// Steps of comparing lexemes in one round; a grammar that needs more is cut further without looking.
const STEPS: usize = 3_000_000;

/// Cuts the largest regular parts further until no match can be prolonged by a byte with which something else may follow it: until then the
/// lexer, which prolongs it, would refuse outputs that the grammar allows.
pub(super) fn cut(rules: &Rules, deadline: &Deadline) -> Result<Grammar, GrammarError> {
    let mut grammar = Grammar::new(rules);
    let mut automata: Vec<Option<Nfa>> = Vec::new();
    loop {
        for lexeme in automata.len()..grammar.lexemes.len() {
            deadline.check()?;
            automata.push(Nfa::new(&grammar.lexemes[lexeme].expr));
        }
        let mut again: Vec<usize> = live(&grammar).filter(|lexeme| automata[*lexeme].is_none()).collect();
        if again.is_empty() {
            again = conflicts(&grammar, &automata, deadline)?;
        }
        // of characters there are only those that cannot be prolonged
        let mut any = false;
        for lexeme in again {
            any |= grammar.lexemes[lexeme].parts.is_none() && grammar.split(lexeme);
        }
        if !any {
            return Ok(grammar);
        }
    }
}

/// Lexemes that are not cut.
fn live(grammar: &Grammar) -> impl Iterator<Item = usize> {
    (0..grammar.lexemes.len()).filter(|lexeme| grammar.lexemes[*lexeme].parts.is_none())
}

/// Lexemes that have to be cut.
fn conflicts(
    grammar: &Grammar,
    automata: &[Option<Nfa>],
    deadline: &Deadline,
) -> Result<Vec<usize>, GrammarError> {
    let start = |nfa: &Option<Nfa>| {
        nfa.as_ref().map_or(Start::default(), |nfa| Start { first: nfa.first(), nullable: nfa.nullable() })
    };
    let starts: Vec<Start> = automata.iter().map(start).collect();
    let follows = follows(grammar, &starts, deadline)?;
    let (mut found, mut budget) = (Vec::new(), STEPS);
    for lexeme in live(grammar) {
        deadline.check()?;
        // a final lexeme may match any length
        if follows[lexeme] == Bytes::default() {
            continue;
        }
        for other in live(grammar) {
            let (Some(own), Some(theirs)) = (&automata[lexeme], &automata[other]) else { continue };
            match own.prolonged_by(theirs, &mut budget) {
                Some(bytes) if bytes.is_apart(follows[lexeme]) => {}
                Some(_) => found.extend([lexeme, other]),
                None => return Ok(live(grammar).collect()),
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
