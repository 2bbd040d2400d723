//! The cache of compiled grammars, refusals under load, and equal masks with and without threads.

use crate::support::{limits, small};
use latent_grammar::{GrammarError, GrammarLimits, GrammarSource, Grammars};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

fn numbered(number: usize) -> GrammarSource {
    GrammarSource::JsonSchema(
        json!({"type": "object", "properties": {format!("p{number}"): {"type": "integer"}}}),
    )
}

#[test]
fn equal_grammars_are_compiled_once_and_the_least_recent_is_evicted() {
    let one = Grammars::new(&small(), limits()).unwrap().compile(&numbered(0), None).unwrap().bytes();
    let grammars = Grammars::new(&small(), GrammarLimits { cache_bytes: one * 4, ..limits() }).unwrap();
    let first = grammars.compile(&numbered(0), None).unwrap();
    assert!(Arc::ptr_eq(&first, &grammars.compile(&numbered(0), None).unwrap()));
    for number in 1..20 {
        grammars.compile(&numbered(number), None).unwrap();
        // This grammar is used repeatedly, so it is never the least recently used one.
        assert!(Arc::ptr_eq(&first, &grammars.compile(&numbered(0), None).unwrap()));
        let (count, bytes) = grammars.cached();
        assert!((1..=4).contains(&count) && bytes <= one * 4, "{count} {bytes}");
    }
    // A grammar that does not fit into the cache is compiled but not cached.
    let grammars = Grammars::new(&small(), GrammarLimits { cache_bytes: 1, ..limits() }).unwrap();
    grammars.compile(&numbered(0), None).unwrap();
    assert_eq!(grammars.cached(), (0, 0));
}

#[test]
fn a_grammar_that_a_request_abandoned_is_compiled_again() {
    let grammars = Grammars::new(&small(), limits()).unwrap();
    let first = grammars.compile(&numbered(0), None).unwrap();
    let mut constraint = first.constraint();
    constraint.accepted(&[u32::from(b'x')]);
    let mut logits = vec![0.0; 8];
    constraint.process(&[u32::from(b'x')], &mut logits);
    assert!(constraint.problem().is_some() && logits.iter().all(|logit| *logit == f32::NEG_INFINITY));
    assert!(!Arc::ptr_eq(&first, &grammars.compile(&numbered(0), None).unwrap()));
}

#[test]
fn load_and_deadlines_have_their_own_errors() {
    let compile = |limits: GrammarLimits, source: &GrammarSource| {
        Grammars::new(&small(), limits).unwrap().compile(source, None).err().unwrap()
    };
    let busy = compile(GrammarLimits { compiling: 0, ..limits() }, &numbered(0));
    assert!(matches!(busy, GrammarError::Busy(0)) && !busy.is_of_request());
    // Far more work than the time limit allows.
    let words: Vec<String> = (0..3000).map(|i| format!("\"x{i}\"")).collect();
    let slow = GrammarSource::Gbnf(format!("root ::= ({} | \"(\" root \")\")*", words.join(" | ")));
    let late = compile(GrammarLimits { compile_time: Duration::from_millis(1), ..limits() }, &slow);
    assert!(matches!(late, GrammarError::Timeout { .. }) && late.is_of_request(), "{late}");
}

#[test]
fn masks_do_not_depend_on_threads() {
    let masks = |threads: usize| -> Vec<Vec<f32>> {
        let grammars = Grammars::new(&small(), GrammarLimits { mask_threads: threads, ..limits() }).unwrap();
        let source = GrammarSource::Gbnf("root ::= \"(\" root \")\" | [a-z]+".into());
        let grammar = grammars.compile(&source, None).unwrap();
        let mut answers: Vec<_> = (0..6).map(|_| (grammar.constraint(), Vec::new())).collect();
        let mut masks = Vec::new();
        for round in 0..12 {
            for (constraint, tokens) in &mut answers {
                let mut logits = vec![0.0; small().vocab_size()];
                constraint.process(tokens, &mut logits);
                masks.push(logits);
                tokens.push(u32::from(b"(((abc)))"[round.min(8)]));
                if round < 9 {
                    constraint.accepted(tokens);
                } else {
                    tokens.pop();
                }
            }
        }
        masks
    };
    let alone = masks(0);
    assert!(masks(1) == alone && masks(3) == alone);
}
