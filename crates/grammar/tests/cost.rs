//! Grammars that are designed to be expensive take at most 2 s of CPU time and 256 MB each,
//! including work after their refusal. The bounds on CPU time leave room for slow machines; most
//! cases take a hundredth of them.
#![allow(missing_docs, clippy::print_stderr, reason = "tests")]
#![cfg(unix)]

mod meter;
mod support;

use latent_grammar::{
    CallableTool, Grammar, GrammarError, GrammarLimits, GrammarSource, Grammars, ToolCalls, ToolRequirement,
};
use latent_text::ToolGrammar;
use meter::{NOW, PEAK, cpu};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::small;

const MAX_CPU: Duration = Duration::from_secs(2);
const MAX_BYTES: usize = 256 << 20;

/// The cost of a source: compilation, masks of some tokens, and work that continues after a
/// refusal.
struct SourceCost {
    cpu: Duration,
    peak: usize,
    said: Result<String, GrammarError>,
}

fn cost(source: &GrammarSource) -> SourceCost {
    let limits = GrammarLimits { mask_threads: 0, ..GrammarLimits::default() };
    let grammars = Grammars::new(&small(), limits).unwrap();
    let (before, start) = (NOW.load(Ordering::Relaxed), cpu());
    PEAK.store(before, Ordering::Relaxed);
    let compiled = grammars.compile(source, None);
    let said = compiled.as_ref().map(|grammar| follow(grammar, 12)).map_err(Clone::clone);
    let waiting = Instant::now();
    while grammars.compiling() > 0 {
        assert!(waiting.elapsed() < Duration::from_secs(120), "a compilation does not end");
        std::thread::sleep(Duration::from_millis(2));
    }
    SourceCost { cpu: cpu() - start, peak: PEAK.load(Ordering::Relaxed) - before, said }
}

/// Generates some arbitrary tokens.
fn follow(grammar: &Arc<Grammar>, tokens: usize) -> String {
    let (mut constraint, mut chosen) = (grammar.constraint(), vec![]);
    for turn in 0..tokens {
        let mut logits = vec![0.0; small().vocab_size()];
        constraint.process(&chosen, &mut logits);
        let allowed: Vec<usize> = (0..logits.len()).filter(|id| logits[*id] == 0.0).collect();
        if allowed.is_empty() {
            break;
        }
        chosen.push(allowed[turn * 7 % allowed.len()] as u32);
        constraint.accepted(&chosen);
    }
    format!("{} bytes, {:?}", grammar.bytes(), constraint.problem())
}

fn patterns(count: usize, pattern: impl Fn(usize) -> String) -> Value {
    let all: Vec<Value> = (0..count).map(|i| json!({"type": "string", "pattern": pattern(i)})).collect();
    json!({ "allOf": all })
}

fn letter(i: usize) -> char {
    char::from(b'a' + (i % 26) as u8)
}

/// Schemas that must be refused or be cheap.
fn schemas() -> Vec<(String, Value)> {
    let mut all: Vec<(String, Value)> = Vec::new();
    let mut add = |name: &str, schema: Value| all.push((name.to_owned(), schema));
    let bomb = |count| patterns(count, |i| format!(".*{}.{{3}}.*", letter(i)));
    for count in [3, 5, 8, 12, 26, 60] {
        add(&format!("{count} patterns"), bomb(count));
        add(
            &format!("{count} patterns with a count"),
            patterns(count, |i| format!("[ab]*a[ab]{{{}}}", i + 1)),
        );
        add(&format!("{count} words"), patterns(count, |i| format!("w{i}")));
        add(&format!("{count} negated classes"), patterns(count, |i| format!("[^{}]{{2}}", letter(i))));
        add(&format!("{count} lazy words"), patterns(count, |i| format!("(?i)x{i}.*?y")));
    }
    add("untyped patterns", {
        let all: Vec<Value> = (0..26).map(|i| json!({"pattern": format!("{}.{{3}}", letter(i))})).collect();
        json!({ "allOf": all })
    });
    add("patterns in a property", json!({"type": "object", "properties": {"a": bomb(26)}}));
    add("patterns of an element", json!({"type": "array", "items": bomb(26)}));
    add("patterns of a tuple", json!({"type": "array", "prefixItems": [{"type": "null"}, bomb(26)]}));
    add("patterns of an alternative", json!({"anyOf": [{"type": "null"}, bomb(26)]}));
    add("patterns of another property", json!({"type": "object", "additionalProperties": bomb(26)}));
    add("patterns of a definition", json!({"$defs": {"a": bomb(26)}, "$ref": "#/$defs/a"}));
    add("patterns and a definition", {
        let half = |from: usize| patterns(13, move |i| format!(".*{}.{{3}}.*", letter(i + from)));
        let mut schema = half(0);
        schema["$defs"] = json!({"a": half(13)});
        schema["$ref"] = json!("#/$defs/a");
        schema
    });
    add("properties that meet", {
        let all: Vec<Value> = (0..26)
            .map(|i| json!({"type": "object", "properties": {"a": {"type": "string", "pattern": format!(".*{}.{{3}}.*", letter(i))}}}))
            .collect();
        json!({ "allOf": all })
    });
    add("elements that meet", {
        let all: Vec<Value> = (0..26)
            .map(|i| json!({"type": "array", "items": {"pattern": format!(".*{}.{{3}}.*", letter(i))}}))
            .collect();
        json!({ "allOf": all })
    });
    add("patterns that meet a property", {
        let patterns: Map<String, Value> = (0..3).map(|i| (format!("^{}$", letter(i)), bomb(26))).collect();
        json!({"type": "object", "patternProperties": patterns, "properties": {"a": {"pattern": "x"}, "b": {}}})
    });
    for primes in [
        vec![9973, 9967, 9949, 9941],
        vec![9973, 9967],
        vec![99991, 89],
        vec![65521, 65519],
        vec![7, 11, 13, 17, 19],
    ] {
        let all: Vec<Value> = primes.iter().map(|of| json!({"type": "integer", "multipleOf": of})).collect();
        add(&format!("multiples of {primes:?}"), json!({ "allOf": all }));
        let all: Vec<Value> = primes.iter().map(|of| json!({"type": "number", "multipleOf": of})).collect();
        add(
            &format!("numbers that are multiples of {primes:?}"),
            json!({"allOf": all, "minimum": 3, "maximum": 1e9}),
        );
    }
    for multiple in
        [99991.0, 9_999_991.0, 399_999_959.0, 4_294_967_291.0, 0.000_01, 0.123_456_78, 1e-9, 1e-300, 0.0]
    {
        add(&format!("a multiple of {multiple}"), json!({"type": "number", "multipleOf": multiple}));
        add(
            &format!("an integer multiple of {multiple} in a range"),
            json!({"type": "integer", "multipleOf": multiple, "minimum": 1, "maximum": 987_654_321}),
        );
        add(
            &format!("alternatives of a multiple of {multiple}"),
            json!({"anyOf": [{"const": 0}, {"type": "integer", "multipleOf": multiple, "minimum": 5}]}),
        );
    }
    for format in ["email", "uri", "ipv6", "date-time", "duration", "hostname"] {
        add(
            &format!("a long {format}"),
            json!({"type": "string", "format": format, "minLength": 900, "maxLength": 1000}),
        );
        add(
            &format!("{format} with a pattern"),
            json!({"type": "string", "format": format, "pattern": ".*a.{40}.*"}),
        );
        add(
            &format!("{format} with patterns and a length"),
            json!({"allOf": [{"type": "string", "format": format, "pattern": "[0-9].*x"}, {"type": "string", "pattern": "(a|b)*c.{9}"}], "minLength": 77, "maxLength": 99}),
        );
    }
    add("all formats", {
        let all: Vec<Value> = ["email", "uri", "ipv6", "date-time", "duration", "hostname", "uuid", "time"]
            .iter()
            .map(|format| json!({"type": "string", "format": format}))
            .collect();
        json!({ "allOf": all })
    });
    add(
        "a pattern that no length fits",
        json!({"type": "string", "pattern": "^(aaa)*$", "minLength": 1000, "maxLength": 1000}),
    );
    add(
        "a long pattern that no length fits",
        json!({"type": "string", "pattern": "^(.{7})*$", "minLength": 6000, "maxLength": 6001}),
    );
    add(
        "a far match",
        json!({"type": "string", "pattern": "(.*a.{30})+b", "minLength": 200, "maxLength": 300}),
    );
    add("constants with patterns", {
        let values: Vec<String> = (0..9000).map(|i| format!("value {i}")).collect();
        json!({"enum": values, "type": "string", "pattern": "^v.*(1|2).*$"})
    });
    add("many strings with a length", {
        let properties: Map<String, Value> = (0..900)
            .map(|i| {
                (format!("p{i}"), json!({"type": "string", "pattern": format!("^[a-z]+{i}"), "maxLength": i}))
            })
            .collect();
        json!({"type": "object", "properties": properties})
    });
    add("alternatives that multiply", {
        let options: Vec<Value> =
            (0..60).map(|i| json!({"type": "string", "pattern": format!("x{i}")})).collect();
        json!({"allOf": [{"anyOf": options.clone()}, {"anyOf": options.clone()}, {"anyOf": options}]})
    });
    add("copies of a large property", {
        let large: Map<String, Value> =
            (0..900).map(|i| (format!("q{i}"), json!({"enum": [i, "x"]}))).collect();
        let options: Vec<Value> = (0..900).map(|i| json!({"required": [format!("a{i}")]})).collect();
        json!({"type": "object", "anyOf": options, "properties": {"x": {"type": "object", "properties": large}}})
    });
    add("copies that are dropped", {
        let large: Map<String, Value> =
            (0..900).map(|i| (format!("q{i}"), json!({"type": ["null", "string"]}))).collect();
        let values: Vec<Value> = (0..9000).map(Value::from).collect();
        json!({"allOf": [{"enum": values}, {"type": "object", "properties": large}]})
    });
    add("references that double", {
        let definitions: Map<String, Value> = (0..30)
            .map(|i| {
                let next = format!("#/$defs/d{}", i + 1);
                (
                    format!("d{i}"),
                    json!({"type": "object", "properties": {"l": {"$ref": next}, "r": {"$ref": next}}}),
                )
            })
            .chain([("d30".to_owned(), json!({"type": "string"}))])
            .collect();
        json!({"$defs": definitions, "allOf": [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d0"}]})
    });
    add("objects that exclude each other", {
        let names: Vec<String> = (0..50).map(|i| format!("n{i}")).collect();
        let options: Vec<Value> = (0..300)
            .map(|i| json!({"type": "object", "properties": {"kind": {"const": i.to_string()}}, "required": names}))
            .collect();
        json!({ "oneOf": options })
    });
    add("many patterns of properties", {
        let patterns: Map<String, Value> = (0..400).map(|i| (format!("^a{i}$"), json!({}))).collect();
        json!({"type": "object", "patternProperties": patterns})
    });
    add("costly patterns of properties", {
        let patterns: Map<String, Value> =
            (0..6).map(|i| (format!("^{}.*a.{{200}}$", letter(i)), json!({"type": "null"}))).collect();
        json!({"type": "object", "patternProperties": patterns, "properties": {"a".repeat(5000): {}}, "additionalProperties": {}})
    });
    add("patterns and many names", {
        let names: Map<String, Value> = (0..900).map(|i| (format!("a{i}"), json!({}))).collect();
        json!({"type": "object", "properties": names, "patternProperties": {"^a.*[0-9]{3}": {}}, "additionalProperties": {"type": "null"}})
    });
    add("classes of Unicode", patterns(3, |_| r"\p{L}".repeat(3000)));
    add(
        "one long pattern of classes",
        json!({"type": "string", "pattern": r"(?i)[\x{0}-\x{10ffff}]".repeat(4000)}),
    );
    add("a long pattern, often", {
        let options: Vec<Value> =
            (0..200).map(|i| json!({"$ref": "#/$defs/a", "maxLength": i + 5})).collect();
        json!({"$defs": {"a": {"type": "string", "pattern": "ab?".repeat(10_000)}}, "type": "array", "prefixItems": options})
    });
    add("an empty branch that is far", {
        json!({"type": "string", "pattern": "^(x|b(.*a.{12}|q))$", "allOf": [{"pattern": "^(x|b(.*c.{11}d.*|r))$"}, {"pattern": "^(x|b[ac]*d?)$"}]})
    });
    all
}

fn larks() -> Vec<(String, String)> {
    let many = |count: usize, one: &dyn Fn(usize) -> String, between: &str| {
        (0..count).map(one).collect::<Vec<_>>().join(between)
    };
    let search = |i: usize| format!("/(?s:.*){}.{{3}}(?s:.*)/", letter(i));
    let mut all: Vec<(&str, String)> = vec![
        ("26 patterns", format!("start: T\nT: {}\n", many(26, &search, " & "))),
        ("8 patterns", format!("start: T\nT: {}\n", many(8, &search, " & "))),
        ("patterns that are not", format!("start: T\nT: /.*/ & {}\n", many(20, &|i| format!("~{}", search(i)), " & "))),
        ("a negated choice", format!("start: T\nT: /(?s:.*)/ & ~({})\n", many(20, &search, " | "))),
        ("double negation", "start: T\nT: ~(~/(?s:.*)a.{20}/ & ~/(?s:.*)b.{19}/) & /[ab]+/\n".into()),
        ("a repeated intersection", format!("start: T\nT: (/a/ | {})*\n", format_args!("({})", many(4, &search, " & ")))),
        ("a counted intersection", "start: T\nT: (/.*a.{9}/ & /.*b.{8}/){1,40} /x/\n".into()),
        ("an intersection that is empty but late", "start: T\nT: /x/ | (/b.*a.{14}/ & /b.*c.{13}d/ & /b[ac]*/)\n".into()),
        ("an intersection in a class of its own", "start: /x/ | T\nT: /a(.*a.{16})/ & /a(.*b.{15})/ & ~/a.*[ab]{2}.*/\n".into()),
        ("terminals in terminals", format!("start: T20\nT0: /.*a.{{4}}/\n{}", many(20, &|i| format!("T{}: T{i} & /.*{}.{{3}}.*/", i + 1, letter(i)), "\n"))),
        ("a schema", format!("start: %json {}\n", patterns(26, |i| format!(".*{}.{{3}}.*", letter(i))))),
        ("a schema of multiples", "start: %json {\"allOf\": [{\"type\": \"integer\", \"multipleOf\": 9973}, {\"type\": \"integer\", \"multipleOf\": 9967}]}\n".into()),
        ("a schema in a rule", format!("start: \"a\" x\nx: %json\n  {}\n", patterns(26, |i| format!(".*{}.{{3}}.*", letter(i))))),
        ("a nested grammar", format!("start: \"a\" x\nx: %lark {{ start: T\nT: {} }}\n", many(26, &search, " & "))),
        ("words of a text", format!("start: T\nT: %regex {{\"substring_words\": \"{}\"}} & /.*a.{{30}}.*/\n", many(3000, &|i| format!("w{i}"), " "))),
        ("classes", format!("start: T\nT: /{}/i\n", r"\w".repeat(4000))),
        ("a suffix", "start: a\na[suffix=/(.*x.{12})+/]: /(.*y.{11})+/\n".into()),
        ("lazy texts", format!("start: {}\n{}", many(30, &|i| format!("a{i}"), " | "), many(30, &|i| format!("a{i}[lazy]: /.*{}.{{9}}/", letter(i)), "\n"))),
        ("many terminals that overlap", format!("start: ({})*\n{}", many(60, &|i| format!("T{i}"), " | "), many(60, &|i| format!("T{i}: /(.*{}.{{{}}})+/", letter(i), i % 9 + 3), "\n"))),
    ];
    all.push((
        "many alternatives of rules",
        format!(
            "start: {}\n{}",
            many(900, &|i| format!("r{i}"), " | "),
            many(900, &|i| format!("r{i}: \"{}\" r{} | \"x{i}\"", letter(i), (i + 1) % 900), "\n")
        ),
    ));
    all.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
}

fn gbnfs() -> Vec<(String, String)> {
    let rules = |count: usize, rule: &dyn Fn(usize) -> String| (0..count).map(rule).collect::<String>();
    let mut all = vec![
        ("ambiguity", "root ::= e\ne ::= e e | e e e | .\n".to_owned()),
        ("right recursion", "root ::= [a-z] root | [a-z] root [a-z] | [a-z]\n".to_owned()),
        ("nullable recursion", "root ::= (root? root? root? root?) [a-z]?\n".to_owned()),
        (
            "counts of counts",
            "root ::= ((([a-c]{1,30} \"x\"?){1,30} \"y\"?){1,30} \"z\"?){1,30}\n".to_owned(),
        ),
        (
            "a count of overlapping choices",
            "root ::= (\"a\" | \"ab\" | \"b\" | \"ba\" | .){500,2000}\n".to_owned(),
        ),
    ];
    all.push((
        "many predictions",
        format!(
            "root ::= {}\n{}",
            (0..3000).map(|i| format!("r{i}")).collect::<Vec<_>>().join(" | "),
            rules(3000, &|i| format!("r{i} ::= [a-z] r{} | \"k{i}\"\n", (i * 7 + 1) % 3000))
        ),
    ));
    all.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
}

fn tools(schemas: Vec<Value>, strict: bool) -> GrammarSource {
    let tools = schemas.into_iter().enumerate();
    GrammarSource::Tools(Box::new(ToolCalls {
        tools: tools
            .map(|(i, parameters)| CallableTool {
                name: format!("t{i}"),
                parameters: Some(parameters),
                strict,
            })
            .collect(),
        format: ToolGrammar {
            open: "<tool_call>".into(),
            close: "</tool_call>".into(),
            ..ToolGrammar::default()
        },
        choice: ToolRequirement::Required,
        parallel: true,
        free_markers: Vec::new(),
    }))
}

fn within_bounds(name: &str, source: &GrammarSource, report: &mut String) -> Result<String, GrammarError> {
    let SourceCost { cpu, peak, said } = cost(source);
    let line = format!("{name}: {:.3} s, {} MB: {said:?}\n", cpu.as_secs_f64(), peak >> 20);
    if std::env::var_os("SHOW_COSTS").is_some() {
        eprint!("{line}");
    }
    if cpu > MAX_CPU || peak > MAX_BYTES {
        report.push_str(&line);
    }
    if let Err(error) = &said {
        assert!(error.is_of_request(), "{name}: {error}");
        assert!(!error.to_string().contains("please report this"), "{name}: {error}");
    }
    said
}

/// A single test, because CPU time is measured for all threads.
#[test]
fn hostile_grammars_stay_within_bounds_even_after_refusal() {
    let mut report = String::new();
    for (at, (name, schema)) in schemas().into_iter().enumerate() {
        within_bounds(&name, &GrammarSource::JsonSchema(schema.clone()), &mut report).ok();
        // Tools share the code after the analysis of the schema, so a third of the schemas
        // suffices.
        if at % 3 > 0 {
            continue;
        }
        let parameters = json!({"type": "object", "properties": {"a": schema}});
        within_bounds(&format!("{name}, of a tool"), &tools(vec![parameters], true), &mut report).ok();
    }
    for (name, lark) in larks() {
        within_bounds(&name, &GrammarSource::Lark(lark), &mut report).ok();
    }
    for (name, gbnf) in gbnfs() {
        within_bounds(&name, &GrammarSource::Gbnf(gbnf), &mut report).ok();
    }
    for pattern in [
        "(.*a.{20}){8}",
        "(a|b|ab)*c{1,900}.*x.{300}",
        r"(\w+\s?){1,200}",
        r"(?i)(\p{L}{1,99}x?){40}",
        ".{1000}{1000}",
    ] {
        within_bounds(pattern, &GrammarSource::Regex(pattern.into()), &mut report).ok();
    }
    let bomb = |i: usize| patterns(26, move |at| format!(".*{}.{{{}}}.*", letter(at), i % 5 + 2));
    for strict in [true, false] {
        within_bounds("many tools", &tools((0..200).map(bomb).collect(), strict), &mut report).ok();
    }
    let refused = |source: &GrammarSource| cost(source).said.unwrap_err();
    let many = refused(&GrammarSource::JsonSchema(patterns(26, |i| format!(".*{}.{{3}}.*", letter(i)))));
    assert!(many.to_string().contains("combinations"), "{many}");
    let multiples = [9973, 9967, 9949, 9941].map(|of| json!({"type": "integer", "multipleOf": of}));
    let multiples = json!({ "allOf": multiples });
    let multiples = refused(&GrammarSource::JsonSchema(multiples));
    assert!(multiples.to_string().contains("multipleOf"), "{multiples}");
    assert!(report.is_empty(), "over {MAX_CPU:?} or {MAX_BYTES} bytes:\n{report}");

    usual_schemas_compile();
    refused_grammars_do_not_block_others();
}

/// Schemas that clients send must still compile.
fn usual_schemas_compile() {
    let string = |rest: Value| {
        let mut schema = json!({"type": "string"});
        schema.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        schema
    };
    let mut all = vec![
        string(json!({"pattern": "^[a-z][a-z0-9_-]*$", "minLength": 3, "maxLength": 64})),
        string(
            json!({"pattern": r"^\+?[0-9]{1,3}[ -]?\(?[0-9]{3}\)?[ -]?[0-9]{3}[ -]?[0-9]{4}$", "maxLength": 20}),
        ),
        string(json!({"format": "email", "maxLength": 320})),
        string(json!({"format": "email", "minLength": 6, "maxLength": 254})),
        string(json!({"format": "uri", "maxLength": 2048})),
        string(json!({"format": "hostname", "maxLength": 253})),
        string(json!({"format": "date-time", "minLength": 20})),
        string(json!({"format": "email", "pattern": "@example\\.com$"})),
        // zod's pattern for email addresses.
        string(
            json!({"format": "email", "pattern": r"^(?:[A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"}),
        ),
        string(json!({"format": "uuid", "pattern": "^[0-9a-f-]*$"})),
        string(json!({"pattern": "[0-9]", "minLength": 8, "maxLength": 72})),
        json!({"allOf": [string(json!({"pattern": "[0-9]"})), string(json!({"pattern": "[A-Z]"})), string(json!({"pattern": "[a-z]"}))], "minLength": 8}),
        json!({"allOf": [string(json!({"pattern": "^https://"})), string(json!({"pattern": "\\.json$"}))]}),
        json!({"enum": ["left", "right", "both"], "type": "string", "pattern": "t$"}),
        json!({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}),
        json!({"type": "integer", "multipleOf": 1000, "minimum": 1, "maximum": 1_000_000}),
        json!({"type": "number", "multipleOf": 0.01, "minimum": 0}),
        json!({"type": "number", "multipleOf": 0.5, "exclusiveMaximum": 10}),
        json!({"allOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}]}),
        json!({"type": "object", "patternProperties": {"^x-": {"type": "string"}, "^[0-9]+$": {"type": "integer"}}, "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        json!({"$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}], "default": null}, "value": {"type": "integer"}}, "required": ["value"]}}, "$ref": "#/$defs/node", "type": "object"}),
        json!({"allOf": [{"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}, {"type": "object", "properties": {"b": {"type": "string", "pattern": "^x"}}}]}),
    ];
    let fields: Map<String, Value> = (0..60)
        .map(|i| (format!("field_{i}"), json!({"anyOf": [{"type": "string", "format": "email", "maxLength": 100 + i}, {"type": "null"}], "title": "Field", "default": null})))
        .collect();
    all.push(json!({"type": "object", "properties": fields}));
    for schema in all {
        let source = GrammarSource::JsonSchema(schema.clone());
        let mut report = String::new();
        let compiled = within_bounds(&schema.to_string(), &source, &mut report);
        assert!(compiled.is_ok() && report.is_empty(), "{schema}: {compiled:?} {report}");
        let parameters = json!({"type": "object", "properties": {"a": schema.clone()}, "$defs": schema.get("$defs").cloned().unwrap_or(json!({}))});
        let compiled = within_bounds("as a tool's", &tools(vec![parameters.clone()], true), &mut report);
        assert!(compiled.is_ok() && report.is_empty(), "{parameters}: {compiled:?} {report}");
    }
    for lark in
        ["start: T\nT: /[a-z]+/ & ~/if|else|while/\n", "start: T\nT: /(?s:.*)/ & ~/(?s:.*)<end>(?s:.*)/\n"]
    {
        let mut report = String::new();
        let compiled = within_bounds(lark, &GrammarSource::Lark(lark.into()), &mut report);
        assert!(compiled.is_ok() && report.is_empty(), "{lark}: {compiled:?} {report}");
    }
}

/// Submits more expensive grammars than may compile at a time. All of them must end.
fn refused_grammars_do_not_block_others() {
    let grammars = Grammars::new(&small(), GrammarLimits::default()).unwrap();
    let bomb = GrammarSource::JsonSchema(patterns(26, |i| format!(".*{}.{{3}}.*", letter(i))));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(grammars.compile(&bomb, None).is_err()));
        }
    });
    // The last one may still be counted for a moment.
    let waiting = Instant::now();
    while grammars.compiling() > 0 {
        assert!(waiting.elapsed() < Duration::from_secs(60), "a compilation does not end");
        std::thread::yield_now();
    }
    assert!(grammars.compile(&GrammarSource::JsonObject, None).is_ok());
}
