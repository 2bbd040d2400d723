//! Converter from GBNF, llama.cpp's grammar dialect, to the Lark dialect of llguidance.
//!
//! GBNF is a grammar over characters. llguidance has a lexer in front of its parser, and the lexer
//! takes the longest match. A regular part of the grammar therefore becomes one lexeme only if its
//! longest match is its only match (`lexemes.rs`). Otherwise it is split further, down to single
//! characters, which cost milliseconds per mask instead of microseconds.

mod emit;
mod expr;
mod flow;
mod lexemes;
mod nfa;
mod node;
mod parse;

use crate::error::GrammarError;
use crate::limits::{CompileDeadline, GrammarLimits};

/// Converts a GBNF grammar to an equivalent Lark grammar.
pub(crate) fn to_lark(text: &str, limits: &GrammarLimits) -> Result<String, GrammarError> {
    let deadline = CompileDeadline::new("GBNF grammar", limits);
    let rules = parse::parse(text, limits)?;
    let grammar = lexemes::cut(&rules, &deadline)?;
    Ok(emit::lark(&grammar))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lark(text: &str) -> String {
        to_lark(text, &GrammarLimits::default()).unwrap()
    }

    #[test]
    fn a_regular_grammar_is_one_lexeme() {
        let text = lark("root ::= (\"a\" b)+ \"/\"?\nb ::= [0-9x]{2,3} | \"\\n\"");
        assert_eq!(
            text,
            "start: r0\nr0: T0\nr1: T1\nT0: /(?:a(?:[0-9x]{2,3}|\\x{a}))+\\x{2f}?/\nT1: /[0-9x]{2,3}|\\x{a}/\n"
        );
    }

    #[test]
    fn lexemes_are_split_if_their_longest_match_is_not_the_only_one() {
        // A line end is part of `ws`, or ends the line: `)` must not absorb it.
        let text =
            lark("root ::= (w \"=\" ws w \"\\n\")+\nw ::= [a-z]+ ws | \"(\" ws w \")\" ws\nws ::= [ \\n]*");
        assert!(text.contains(": /\\x{28}[\\x{a}\\x{20}]*/"), "{text}");
        assert!(text.contains(": /\\x{29}/") && !text.contains("\\x{29}["), "{text}");
        // Here nothing that follows begins with a letter or a blank.
        let text = lark("root ::= w \".\" | \"(\" root \")\"\nw ::= [a-z]+ \" \"*");
        assert!(text.contains("T0: /[a-z]+\\x{20}*\\x{2e}/"), "{text}");
    }
}
