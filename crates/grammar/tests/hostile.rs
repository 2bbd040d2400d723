//! Grammars that try to break a server. Each ends with success or a typed error within 256 MB and 2
//! s of CPU time, or 10 s with work after its deadline, on a stack of 2 MB.
#![allow(missing_docs, reason = "tests")]
#![cfg(unix)]

mod meter;
mod support;

use latent_grammar::{GrammarLimits, GrammarSource, Grammars};
use meter::{NOW, PEAK, cpu};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::small;

fn cases() -> Vec<(String, GrammarSource)> {
    let gbnf = |text: String| GrammarSource::Gbnf(text);
    let schema = GrammarSource::JsonSchema;
    let (parens, many) = (60_000, 100_000);
    let mut cases: Vec<(&str, GrammarSource)> = vec![
        ("60 000 parentheses", gbnf(format!("root ::= {}\"a\"{}", "(".repeat(parens), ")".repeat(parens)))),
        ("60 000 open parentheses", gbnf(format!("root ::= {}", "(".repeat(parens)))),
        ("repetitions of repetitions", gbnf(format!("root ::= \"a\"{}", "{2000}".repeat(30)))),
        ("stars", gbnf(format!("root ::= \"a\"{}", "*".repeat(60)))),
        (
            "a chain of rules",
            gbnf(
                (0..4000).fold("root ::= r0\n".into(), |t: String, i| format!("{t}r{i} ::= r{}\n", i + 1))
                    + "r4000 ::= \"a\"",
            ),
        ),
        (
            "doubling rules",
            gbnf(
                (0..200)
                    .fold("root ::= r0\n".into(), |t: String, i| format!("{t}r{i} ::= r{0} r{0}\n", i + 1))
                    + "r200 ::= \"a\"",
            ),
        ),
        ("recursion everywhere", gbnf("root ::= root root | root \"a\" root | \"\" | \"a\"".into())),
        ("an empty loop", gbnf("root ::= (root?)* (\"a\"*)*".into())),
        ("endless", gbnf("root ::= root".into())),
        ("a long literal", gbnf(format!("root ::= \"{}\"", "ab".repeat(100_000)))),
        (
            "many alternatives",
            gbnf(format!(
                "root ::= {}",
                (0..20_000).map(|i| format!("\"x{i}\"")).collect::<Vec<_>>().join(" | ")
            )),
        ),
        (
            "many alternatives in a loop",
            gbnf(format!(
                "root ::= ({} | \"(\" root \")\")*",
                (0..10_000).map(|i| format!("\"x{i}\"")).collect::<Vec<_>>().join(" | ")
            )),
        ),
        (
            "many rules",
            gbnf((0..10_000).fold(String::new(), |t: String, i| t + &format!("r{i} ::= \"a\"\n"))),
        ),
        ("many classes", gbnf(format!("root ::= {} root", "[^a]".repeat(50_000)))),
        (
            "parentheses of Lark",
            GrammarSource::Lark(format!("start: {}\"a\"{}", "(".repeat(parens), ")".repeat(parens))),
        ),
        (
            "rules of Lark",
            GrammarSource::Lark(
                (0..20_000).fold("start: r0\n".into(), |t: String, i| t + &format!("r{i}: r{}\n", i + 1))
                    + "r20000: \"a\"",
            ),
        ),
        (
            "1000 terminals of Lark",
            GrammarSource::Lark(
                (0..990).fold("start: T0\n".into(), |t: String, i| t + &format!("T{i}: T{0} T{0}\n", i + 1))
                    + "T990: \"a\"",
            ),
        ),
        (
            "terminals of Lark",
            GrammarSource::Lark(
                (0..10_000)
                    .fold("start: T0\n".into(), |t: String, i| t + &format!("T{i}: T{0} T{0}\n", i + 1))
                    + "T10000: \"a\"",
            ),
        ),
        (
            "a schema in Lark",
            GrammarSource::Lark(format!("start: %json {}1{}", "[".repeat(parens), "]".repeat(parens))),
        ),
        (
            "nested groups of a pattern",
            GrammarSource::Regex(format!("{}a{}", "(".repeat(parens), ")".repeat(parens))),
        ),
        (
            "nested repetitions of a pattern",
            GrammarSource::Regex("(((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000})".into()),
        ),
        ("backtracking", GrammarSource::Regex("(a+)+(a+)+(a+)+$".into())),
        ("many states", GrammarSource::Regex("(.*a.{20}){8}".into())),
        (
            "an intersection",
            GrammarSource::Lark("start: T\nT: /(.*a.{30})+/ & /(.*b.{29})+/ & ~/.*ab.*/".into()),
        ),
        ("a quantifier without atom", schema(json!({"type": "string", "pattern": "*"}))),
        ("many values", schema(json!({"enum": (0..many).map(|i| format!("value {i}")).collect::<Vec<_>>()}))),
        (
            "10 000 values",
            schema(json!({"enum": (0..10_000).map(|i| format!("value {i}")).collect::<Vec<_>>()})),
        ),
        ("10 000 numbers", schema(json!({"enum": (0..10_000).collect::<Vec<_>>()}))),
        (
            "exponential anyOf",
            schema(
                json!({"allOf": (0..30).map(|i| json!({"anyOf": (0..10).map(|k| json!({"properties": {format!("p{i}"): {"const": k}}})).collect::<Vec<_>>()})).collect::<Vec<_>>()}),
            ),
        ),
        ("a reference to itself", schema(json!({"$ref": "#"}))),
        (
            "references in a circle",
            schema(
                json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
            ),
        ),
        (
            "references in a circle, combined",
            schema(
                json!({"$defs": {"a": {"$ref": "#/$defs/b", "type": "object"}, "b": {"allOf": [{"$ref": "#/$defs/a"}, {"minProperties": 1}]}}, "$ref": "#/$defs/a"}),
            ),
        ),
        (
            "a long string",
            schema(json!({"type": "string", "minLength": 1_000_000_000_u64, "maxLength": 2_000_000_000_u64})),
        ),
        ("a long array", schema(json!({"type": "array", "minItems": 100_000_000}))),
        (
            "a long tuple",
            schema(
                json!({"type": "array", "items": {"type": "array", "minItems": 3000, "items": {"type": "array", "minItems": 3000}}}),
            ),
        ),
        (
            "a long multiple",
            schema(json!({"type": "number", "multipleOf": 1e-300, "minimum": 1e-308, "maximum": 1e308})),
        ),
        (
            "large bounds",
            schema(json!({"type": "integer", "minimum": -9e300, "maximum": 9e300, "multipleOf": 7919})),
        ),
        (
            "patterns of properties",
            schema(
                json!({"type": "object", "patternProperties": (0..200).map(|i| (format!("^(a|b)*{i}(.*c){{9}}$"), json!({}))).collect::<serde_json::Map<_, _>>()}),
            ),
        ),
        ("long quoted text", schema(json!({"type": "日".repeat(200)}))),
        (
            "many properties",
            schema(
                json!({"type": "object", "properties": (0..5000).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect::<serde_json::Map<_, _>>()}),
            ),
        ),
        (
            "1000 properties",
            schema(
                json!({"type": "object", "properties": (0..1000).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect::<serde_json::Map<_, _>>()}),
            ),
        ),
        ("many choices", GrammarSource::Choice((0..10_000).map(|i| format!("choice {i}")).collect())),
    ];
    let mut deep = json!({"type": "null"});
    for _ in 0..60 {
        deep = json!({"items": deep, "type": "array"});
    }
    cases.push(("60 arrays", schema(deep.clone())));
    for _ in 0..100 {
        deep = json!({"properties": {"a": deep}});
    }
    cases.push(("220 levels", schema(deep)));
    let chain: serde_json::Map<String, Value> = (0..499)
        .map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1), "description": "x"})))
        .collect();
    let mut chain = json!({"$defs": chain, "$ref": "#/$defs/d0"});
    chain["$defs"]["d499"] = json!({"type": "object", "minProperties": 1});
    cases.push(("a chain of references", schema(chain.clone())));
    for definition in chain["$defs"].as_object_mut().unwrap().values_mut() {
        definition["minProperties"] = json!(1);
    }
    cases.push(("a chain of combined references", schema(chain)));
    cases.into_iter().map(|(name, source)| (name.to_owned(), source)).collect()
}

#[test]
fn hostile_grammars_end_within_time_and_memory() {
    let work = || {
        let tokenizer = small();
        let mut report = String::new();
        let mut worst = (Duration::ZERO, 0, Duration::ZERO);
        for (name, source) in cases() {
            let grammars =
                Grammars::new(&tokenizer, GrammarLimits { compiling: 64, ..GrammarLimits::default() })
                    .unwrap();
            let before = NOW.load(Ordering::Relaxed);
            PEAK.store(before, Ordering::Relaxed);
            let (start, deadline) = (cpu(), Instant::now() + Duration::from_secs(120));
            let compiled = grammars.compile(&source, None);
            let took = cpu() - start;
            let said = match &compiled {
                Ok(grammar) => {
                    // A few arbitrary tokens.
                    let (mut constraint, mut tokens) = (grammar.constraint(), vec![]);
                    for _ in 0..8 {
                        let mut logits = vec![0.0; tokenizer.vocab_size()];
                        constraint.process(&tokens, &mut logits);
                        let Some(next) = logits.iter().position(|logit| *logit == 0.0) else { break };
                        tokens.push(next as u32);
                        constraint.accepted(&tokens);
                    }
                    format!("{} bytes, {:?}", grammar.bytes(), constraint.problem())
                }
                Err(error) => {
                    assert!(error.is_of_request(), "{name}: {error}");
                    error.to_string()
                }
            };
            // A compilation that continues after its deadline ends by limits of its own.
            while grammars.compiling() > 0 {
                assert!(Instant::now() < deadline, "{name}: it never ends");
                std::thread::sleep(Duration::from_millis(20));
            }
            let (peak, whole) = (PEAK.load(Ordering::Relaxed) - before, cpu() - start);
            let _ = writeln!(report, "{name}: {took:.2?} of {whole:.2?}, {} MB: {said}", peak >> 20);
            worst = (worst.0.max(took), worst.1.max(peak), worst.2.max(whole));
        }
        std::fs::write(std::env::temp_dir().join("latent-hostile-grammars.txt"), &report).unwrap();
        assert!(
            worst.0 < Duration::from_secs(2) && worst.2 < Duration::from_secs(10) && worst.1 < 256 << 20,
            "{worst:?}\n{report}"
        );
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap().join().unwrap();
}
