//! Generates schemas and grammars from pieces that are expensive in combination, and follows them
//! within bounds of CPU time and memory.

use crate::grammar::follow;
use crate::source::FuzzSource;
use latent_grammar::GrammarSource as Constraint;
use serde_json::{Map, Value, json};

/// Pieces of patterns that match overlapping texts.
const PIECES: [&str; 24] = [
    "a",
    "b",
    "[ab]",
    ".",
    ".*",
    "(?s:.*)",
    "[^a]",
    "(a|b)*",
    "a.{3}",
    ".*a.{9}",
    "(.*a.{20}){3}",
    "[a-z]{2,60}",
    "\\d+",
    "\\w",
    "\\s*",
    "(ab?){9}",
    "x?x?x?x?x?x?",
    "(a|aa)+",
    "[0-9a-f]{8}",
    "^",
    "$",
    "é",
    "\\.",
    "(x|y.{200})",
];

const FORMATS: [&str; 9] =
    ["email", "uri", "ipv4", "ipv6", "date", "date-time", "duration", "hostname", "uuid"];

const MULTIPLES: [f64; 16] = [
    0.0,
    1.0,
    2.0,
    3.0,
    5.0,
    7.0,
    97.0,
    9973.0,
    9967.0,
    65_521.0,
    99_991.0,
    9_999_991.0,
    4_294_967_291.0,
    0.1,
    0.01,
    0.000_3,
];

const LENGTHS: [u64; 10] = [0, 1, 2, 7, 40, 64, 255, 1000, 4000, 100_000];

const NAMES: [&str; 6] = ["a", "b", "ab", "aa", "x1", "a long name"];

/// Generates a schema from the choices in an input and follows it. A first byte of 1, 2 or 3 makes
/// it a Lark grammar, a GBNF grammar or a pattern instead.
///
/// # Panics
/// As for [`grammar`](crate::grammar()).
pub fn hostile_grammar(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let kind = source.byte();
    let mut levels = 5;
    let constraint = match kind {
        1 => Constraint::Lark(lark(&mut source)),
        2 => Constraint::Gbnf(gbnf(&mut source)),
        3 => Constraint::Regex(pattern(&mut source)),
        _ => {
            let mut schema = schema(&mut source, &mut levels);
            if let Value::Object(object) = &mut schema {
                let definitions: Map<String, Value> =
                    // The names that `$ref` in `keyword` picks, so that schemas refer to each
                    // other, also in cycles.
                    (0..3).map(|at| (format!("d{at}"), self::schema(&mut source, &mut 3))).collect();
                object.insert("$defs".into(), Value::Object(definitions));
            }
            Constraint::JsonSchema(schema)
        }
    };
    follow(&constraint, bytes);
}

fn pattern(source: &mut FuzzSource<'_>) -> String {
    let mut pattern: String = (0..=source.below(5)).map(|_| *source.pick(&PIECES)).collect();
    if source.once_in(6) {
        pattern = format!("({pattern}){{{},{}}}", source.below(9), 9 + source.below(200));
    }
    if source.once_in(9) {
        pattern = format!("(?i){pattern}");
    }
    pattern
}

fn schema(source: &mut FuzzSource<'_>, levels: &mut usize) -> Value {
    let mut object = Map::new();
    for _ in 0..=source.below(3) {
        keyword(source, &mut object, levels);
    }
    Value::Object(object)
}

/// A list of schemas. Some lists hold schemas that differ only in a number.
fn list(source: &mut FuzzSource<'_>, levels: &mut usize) -> Value {
    let one = |source: &mut FuzzSource<'_>, levels: &mut usize| {
        *levels = levels.saturating_sub(1);
        let schema = if *levels == 0 { leaf(source) } else { schema(source, levels) };
        *levels += 1;
        schema
    };
    match source.below(4) {
        0 => {
            let (count, piece) = (2 + source.below(40), source.below(8));
            let letter = |i: usize| char::from(b'a' + (i % 26) as u8);
            let of = |i: usize| match piece {
                0 => json!({"pattern": format!(".*{}.{{3}}.*", letter(i))}),
                1 => json!({"type": "string", "pattern": format!("[ab]*a[ab]{{{i}}}")}),
                2 => json!({"type": "integer", "multipleOf": 2 * i + 1}),
                3 => json!({"required": [format!("a{i}")]}),
                4 => json!({"properties": {"a": {"pattern": format!("{}.*", letter(i))}}}),
                5 => json!({"type": "string", "minLength": i, "maxLength": 9 * i + 7}),
                6 => json!({"patternProperties": {format!("^{}", letter(i)): {"maxLength": i}}}),
                _ => json!({"const": i}),
            };
            (0..count).map(of).collect()
        }
        1 => {
            let (count, schema) = (2 + source.below(20), one(source, levels));
            (0..count).map(|_| schema.clone()).collect()
        }
        _ => (0..=source.below(5)).map(|_| one(source, levels)).collect(),
    }
}

fn leaf(source: &mut FuzzSource<'_>) -> Value {
    let mut object = Map::new();
    keyword(source, &mut object, &mut 0);
    Value::Object(object)
}

fn named(source: &mut FuzzSource<'_>, levels: &mut usize, patterns: bool) -> Value {
    *levels = levels.saturating_sub(1);
    let mut all = Map::new();
    for _ in 0..=source.below(4) {
        let name = if patterns { pattern(source) } else { (*source.pick(&NAMES)).to_owned() };
        let inner = if *levels == 0 { leaf(source) } else { schema(source, levels) };
        all.insert(name, inner);
    }
    if source.once_in(12) {
        let inner = leaf(source);
        all.extend((0..source.below(256)).map(|i| (format!("p{i}"), inner.clone())));
    }
    *levels += 1;
    Value::Object(all)
}

fn keyword(source: &mut FuzzSource<'_>, object: &mut Map<String, Value>, levels: &mut usize) {
    let deep = *levels > 0;
    // The first twelve keywords contain no schemas.
    let (name, value) = match source.below(if deep { 26 } else { 12 }) {
        0 | 1 => ("pattern", json!(pattern(source))),
        2 => ("format", json!(source.pick(&FORMATS))),
        3 => ("minLength", json!(source.pick(&LENGTHS))),
        4 => ("maxLength", json!(source.pick(&LENGTHS))),
        5 => ("multipleOf", json!(source.pick(&MULTIPLES))),
        6 => ("minimum", json!(source.number())),
        7 => ("maximum", json!(source.number())),
        8 => ("type", json!(source.pick(&["string", "integer", "number", "object", "array", "null"]))),
        9 => ("enum", (0..=source.below(30)).map(|i| json!(format!("a{i}b"))).collect()),
        10 => ("const", json!(source.number())),
        11 => ("$ref", json!(source.pick(&["#/$defs/d0", "#/$defs/d1", "#/$defs/d2", "#"]))),
        12..=15 => ("allOf", list(source, levels)),
        16 | 17 => ("anyOf", list(source, levels)),
        18 => ("oneOf", list(source, levels)),
        19 => ("properties", named(source, levels, false)),
        20 => ("patternProperties", named(source, levels, true)),
        21 => ("additionalProperties", leaf(source)),
        22 => ("items", leaf(source)),
        23 => ("prefixItems", list(source, levels)),
        24 => ("required", json!([source.pick(&NAMES)])),
        _ => ("minItems", json!(source.pick(&LENGTHS))),
    };
    object.insert(name.to_owned(), value);
}

/// A Lark grammar whose terminals combine patterns and each other.
fn lark(source: &mut FuzzSource<'_>) -> String {
    let count = 1 + source.below(5);
    let mut text = String::from("start: T0\n");
    for at in 0..count {
        let operands: Vec<String> = (0..=source.below(12))
            .map(|_| {
                let not = if source.once_in(3) { "~" } else { "" };
                let of = match source.below(4) {
                    0 if at + 1 < count => format!("T{}", at + 1),
                    1 => format!("(/{}/ | /{}/)", slashed(source), slashed(source)),
                    2 => format!(
                        "(/{}/ & ~/{}/){{1,{}}}",
                        slashed(source),
                        slashed(source),
                        1 + source.below(40)
                    ),
                    _ => format!("/{}/", slashed(source)),
                };
                format!("{not}{of}")
            })
            .collect();
        text += &format!("T{at}: {}\n", operands.join(" & "));
    }
    text
}

fn slashed(source: &mut FuzzSource<'_>) -> String {
    pattern(source).replace(['^', '$'], "")
}

/// A GBNF grammar with ambiguous, nullable and recursive rules.
fn gbnf(source: &mut FuzzSource<'_>) -> String {
    let count = 1 + source.below(6);
    let mut text = String::new();
    for at in 0..count {
        let alternatives: Vec<String> = (0..=source.below(4))
            .map(|_| {
                let parts: Vec<String> = (0..=source.below(4))
                    .map(|_| {
                        let part = match source.below(6) {
                            0 | 1 => format!("r{}", source.below(count)),
                            2 => "[a-z]".to_owned(),
                            3 => ".".to_owned(),
                            4 => "\"ab\"".to_owned(),
                            _ => format!("(r{} | \"a\")", source.below(count)),
                        };
                        let times = *source.pick(&["", "", "", "?", "*", "+", "{3,90}", "{500}"]);
                        format!("{part}{times}")
                    })
                    .collect();
                parts.join(" ")
            })
            .collect();
        text += &format!("r{at} ::= {}\n", alternatives.join(" | "));
    }
    format!("root ::= r0\n{text}")
}
