//! Time limits of masks, and the threads that compute them.

use crate::support::small;
use latent_grammar::{Constraint, Grammar, GrammarLimits, GrammarSource, Grammars};
use std::sync::Arc;
use std::time::Duration;

const AMBIGUOUS: &str = "root ::= e\ne ::= e e | e e e | .\n";

fn compile(limits: GrammarLimits, gbnf: &str) -> (Grammars, Arc<Grammar>) {
    let compile_time = Duration::from_secs(20);
    let grammars = Grammars::new(&small(), GrammarLimits { compile_time, ..limits }).unwrap();
    let grammar = grammars.compile(&GrammarSource::Gbnf(gbnf.into()), None).unwrap();
    (grammars, grammar)
}

/// Chooses the letter `a` up to this number of times. Returns how often it was allowed.
fn letters(constraint: &mut Constraint, count: usize) -> usize {
    let mut tokens = Vec::new();
    for chosen in 0..count {
        let mut logits = vec![0.0; small().vocab_size()];
        constraint.process(&tokens, &mut logits);
        if constraint.problem().is_some() {
            assert!(logits.iter().all(|logit| *logit == f32::NEG_INFINITY));
            return chosen;
        }
        tokens.push(u32::from(b'a'));
        constraint.accepted(&tokens);
    }
    count
}

#[test]
fn masks_of_an_answer_have_a_budget_of_cpu_time() {
    for mask_threads in [0, 1] {
        let limits = GrammarLimits {
            mask_threads,
            answer_time: Duration::ZERO,
            token_time: Duration::ZERO,
            ..GrammarLimits::default()
        };
        let (_grammars, grammar) = compile(limits, "root ::= [a-z]+ \" \"");
        let mut constraint = grammar.constraint();
        assert_eq!(letters(&mut constraint, 9), 2);
        let problem = constraint.problem().unwrap();
        assert!(problem.to_string().contains("of CPU time") && problem.is_of_request(), "{problem}");
        // The default leaves room for any usual response.
        let (_grammars, grammar) =
            compile(GrammarLimits { mask_threads, ..GrammarLimits::default() }, "root ::= [a-z]+ \" \"");
        assert_eq!(letters(&mut grammar.constraint(), 500), 500);
    }
}

#[test]
fn a_mask_that_takes_too_long_is_stopped() {
    for mask_threads in [0, 1] {
        let mask_time = Duration::from_millis(10);
        let limits = GrammarLimits { mask_threads, mask_time, ..GrammarLimits::default() };
        let (grammars, grammar) = compile(limits, AMBIGUOUS);
        let mut constraint = grammar.constraint();
        let chosen = letters(&mut constraint, 600);
        assert!((1..600).contains(&chosen), "{chosen}");
        let problem = constraint.problem().unwrap();
        assert!(problem.to_string().contains("ambiguous") && problem.is_of_request(), "{problem}");
        // The failed mask must not affect another response with the same grammar.
        let again = grammars.compile(&GrammarSource::Gbnf(AMBIGUOUS.into()), None).unwrap();
        assert!(!Arc::ptr_eq(&again, &grammar));
        assert_eq!(letters(&mut again.constraint(), 2), 2);
    }
}

#[test]
fn expensive_masks_do_not_delay_others() {
    let (grammars, costly) = compile(GrammarLimits::default(), AMBIGUOUS);
    let plain = grammars.compile(&GrammarSource::Gbnf("root ::= [a-z]+ \" \"".into()), None).unwrap();
    let tokens = vec![u32::from(b'a'); 25];
    // Several masks at a time, whose results are not fetched.
    let mut ahead: Vec<Constraint> = (0..3).map(|_| costly.constraint()).collect();
    for constraint in &mut ahead {
        constraint.process(&[], &mut vec![0.0; small().vocab_size()]);
        constraint.accepted(&tokens);
    }
    assert_eq!(letters(&mut plain.constraint(), 30), 30);
    let mut waits = 0;
    let ready = ahead.pop().unwrap();
    while !ready.is_ready(Duration::from_millis(50)) {
        waits += 1;
        assert!(waits < 1000, "never ready");
    }
    // The masks of a cancelled response are abandoned.
    drop(ahead);
    let mut next = plain.constraint();
    assert_eq!(letters(&mut next, 3), 3);
}
