//! Cutting a grammar into lexemes whose longest match is the right one.

use super::expr::GbnfRules;
use super::flow::{ByteSet, NodeStart, follows};
use super::nfa::Nfa;
use super::node::LexemeGrammar;
use crate::error::GrammarError;
use crate::limits::CompileDeadline;

/// Steps of comparing lexemes in one round; a grammar that needs more is cut further without looking.
const STEPS: usize = 3_000_000;

/// Cuts the largest regular parts further until no match can be prolonged by a byte with which something else may follow it: until then the
/// lexer, which prolongs it, would refuse outputs that the grammar allows.
pub(super) fn cut(rules: &GbnfRules, deadline: &CompileDeadline) -> Result<LexemeGrammar, GrammarError> {
    let mut grammar = LexemeGrammar::new(rules);
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
fn live(grammar: &LexemeGrammar) -> impl Iterator<Item = usize> {
    (0..grammar.lexemes.len()).filter(|lexeme| grammar.lexemes[*lexeme].parts.is_none())
}

/// Lexemes that have to be cut.
fn conflicts(
    grammar: &LexemeGrammar,
    automata: &[Option<Nfa>],
    deadline: &CompileDeadline,
) -> Result<Vec<usize>, GrammarError> {
    let start = |nfa: &Option<Nfa>| {
        nfa.as_ref()
            .map_or(NodeStart::default(), |nfa| NodeStart { first: nfa.first(), nullable: nfa.nullable() })
    };
    let starts: Vec<NodeStart> = automata.iter().map(start).collect();
    let follows = follows(grammar, &starts, deadline)?;
    let (mut found, mut budget) = (Vec::new(), STEPS);
    for lexeme in live(grammar) {
        deadline.check()?;
        // a final lexeme may match any length
        if follows[lexeme] == ByteSet::default() {
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
