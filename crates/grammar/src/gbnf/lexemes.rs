//! Splits a grammar into lexemes whose longest match is their only possible match.

use super::expr::GbnfRules;
use super::flow::{ByteSet, NodeStart, follows};
use super::nfa::Nfa;
use super::node::LexemeGrammar;
use crate::error::GrammarError;
use crate::limits::CompileDeadline;

/// Maximum number of steps for comparing lexemes per round. Beyond it, all lexemes are split
/// further without comparison: the result is correct but slower.
const STEPS: usize = 3_000_000;

/// Starts with the largest regular parts as lexemes. Splits them until no match can be extended by
/// a byte that may also begin what follows it. llguidance's lexer is greedy: it would extend the
/// match and then refuse outputs that the grammar allows.
pub(super) fn cut(rules: &GbnfRules, deadline: &CompileDeadline) -> Result<LexemeGrammar, GrammarError> {
    let mut grammar = LexemeGrammar::new(rules);
    let mut automata: Vec<Option<Nfa>> = Vec::new();
    loop {
        // `split` appends lexemes, so only the new ones need an automaton.
        for lexeme in automata.len()..grammar.lexemes.len() {
            deadline.check()?;
            automata.push(Nfa::new(&grammar.lexemes[lexeme].expr));
        }
        // Lexemes without an automaton are too large to compare, so split them first.
        let mut again: Vec<usize> = live(&grammar).filter(|lexeme| automata[*lexeme].is_none()).collect();
        if again.is_empty() {
            again = conflicts(&grammar, &automata, deadline)?;
        }
        // Single characters cannot be split and cannot be extended, so the loop ends.
        let mut any = false;
        for lexeme in again {
            any |= grammar.lexemes[lexeme].parts.is_none() && grammar.split(lexeme);
        }
        if !any {
            return Ok(grammar);
        }
    }
}

/// Lexemes that are not split.
fn live(grammar: &LexemeGrammar) -> impl Iterator<Item = usize> {
    (0..grammar.lexemes.len()).filter(|lexeme| grammar.lexemes[*lexeme].parts.is_none())
}

/// Lexemes that must be split.
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
        // Nothing follows this lexeme, so greedy matching refuses nothing.
        if follows[lexeme] == ByteSet::default() {
            continue;
        }
        // Includes the lexeme itself: a further repetition of `a+` extends its own match.
        for other in live(grammar) {
            let (Some(own), Some(theirs)) = (&automata[lexeme], &automata[other]) else { continue };
            match own.prolonged_by(theirs, &mut budget) {
                Some(bytes) if bytes.is_disjoint(follows[lexeme]) => {}
                // Split both: the other lexeme is what extends the match.
                Some(_) => found.extend([lexeme, other]),
                None => return Ok(live(grammar).collect()),
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
