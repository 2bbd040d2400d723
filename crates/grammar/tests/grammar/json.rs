//! JSON schemas: random choices within the masks produce instances, and unsupported schemas are
//! refused.

use crate::support::{Random, Walk, admits, compile, compile_after, small};
use latent_grammar::{GrammarError, GrammarSource, Reasoning};
use serde_json::{Map, Value, json};

fn schema(schema: Value) -> GrammarSource {
    GrammarSource::JsonSchema(schema)
}

#[track_caller]
fn check(given: Value, good: &[&str], bad: &[&str]) {
    let compiled = compile(&schema(given.clone())).unwrap_or_else(|error| panic!("{given}: {error}"));
    good.iter().for_each(|text| assert!(admits(&compiled, text), "{given} refuses {text}"));
    bad.iter().for_each(|text| assert!(!admits(&compiled, text), "{given} admits {text}"));
}

#[test]
fn schemas_admit_their_instances() {
    let person = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 3}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name"],
    });
    check(
        person,
        &[r#"{"name":"é日\n"}"#, r#"{ "name": "", "age": 150 }"#, "{\n  \"name\": \"a\"\n}"],
        // Refuses properties that the schema does not name.
        &[
            r#"{}"#,
            r#"{"name":"abcd"}"#,
            r#"{"name":"a","age":151}"#,
            r#"{"name":"a","b":1}"#,
            "{   \"name\":\"\"}",
        ],
    );
    check(json!({"enum": ["a", 1, null, true]}), &["\"a\"", "1", "null", "true"], &["a", "2", "false"]);
    check(json!({"const": {"a": [1]}}), &[r#"{"a":[1]}"#], &["{}", r#"{"a":[]}"#]);
    check(json!({"type": "string", "pattern": "^[a-c]{2}$"}), &["\"ab\""], &["\"abc\"", "\"xy\""]);
    check(json!({"type": "string", "format": "date"}), &["\"2026-11-23\""], &["\"2026-13-23\"", "\"x\""]);
    check(
        json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}),
        &["[]", "[true, false]"],
        &["[1]", "[true,true,true]"],
    );
    check(json!({"anyOf": [{"type": "null"}, {"type": "number"}]}), &["null", "-1.5e3"], &["\"\"", "01"]);
    check(json!({"type": ["integer", "string"]}), &["5", "\"5\""], &["5.5", "null"]);
    // An unknown format is ignored.
    check(json!({"type": "string", "format": "password", "maxLength": 2}), &["\"ab\""], &["\"abc\""]);
    check(json!({"type": "array", "uniqueItems": false, "maxItems": 1}), &["[1]"], &["[1,2]"]);
    let tree = json!({
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": []}},
        "$ref": "#/$defs/node",
    });
    check(tree, &["{}", r#"{"next":{"next":{}}}"#], &[r#"{"next":1}"#, r#"{"last":{}}"#]);
    let all = json!({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "null"}}, "required": ["b"]}], "type": "object"});
    check(all, &[r#"{"a":1,"b":null}"#], &[r#"{"a":1}"#, r#"{"a":1,"b":2}"#]);
    let open = json!({"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"type": "null"}});
    check(open, &[r#"{"a":1,"c":null}"#, r#"{"c":null}"#], &[r#"{"c":1}"#]);
    let compiled = compile(&GrammarSource::JsonObject).unwrap();
    assert!(
        admits(&compiled, r#"{"a": [1, {"b": "}"}]}"#) && !admits(&compiled, "[1]") && !admits(&compiled, "")
    );
    assert!(admits(&compile(&schema(json!(true))).unwrap(), "[1, \"a\"]"));
}

#[test]
fn unsupported_keywords_are_refused_by_name() {
    for (given, message) in [
        (json!({"not": {"type": "null"}}), "the keyword `not` at # is not supported"),
        (
            json!({"properties": {"a": {"type": "array", "uniqueItems": true}}}),
            "the keyword `uniqueItems` at #/properties/a is not supported",
        ),
        (json!({"if": {}, "then": {}}), "`if`"),
        (json!({"type": "strin"}), "Invalid type: strin"),
        (json!({"type": "string", "pattern": "*a"}), "repetition operator missing expression"),
        (json!({"type": "string", "pattern": "(?=a)"}), "look"),
        (json!({"$ref": "#/$defs/none"}), "none"),
        (json!({"type": "integer", "minimum": 3, "maximum": 2}), "minimum"),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf"),
        (json!(false), "a schema must be an object, found false"),
        (json!([1]), "a schema must be an object"),
        (json!({"enum": []}), "empty"),
    ] {
        let error = compile(&schema(given.clone())).err().unwrap_or_else(|| panic!("{given} compiles"));
        assert!(error.is_of_request());
        assert!(error.to_string().contains(message), "{given}: {error}");
    }
    // llguidance's `x-guidance` option would turn errors into warnings. A request must not be able
    // to set it.
    let lenient = json!({"x-guidance": {"lenient": true}, "not": {}});
    assert!(compile(&schema(lenient)).is_err());
    // zod 4 writes `propertyNames` for records: {"type": "string"} in general, and a list of names
    // for records over an enumeration.
    let record = json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "boolean"}});
    check(record, &[r#"{"a":true}"#, "{}"], &[r#"{"a":1}"#]);
    let names = json!({"type": "string", "enum": ["a", "b"]});
    let record = json!({"type": "object", "propertyNames": names, "additionalProperties": {"type": "boolean"}, "required": ["a", "b"]});
    check(record, &[r#"{"a":true,"b":false}"#], &[r#"{"a":true}"#, r#"{"a":true,"b":false,"c":true}"#]);
    // A property may have the name of a keyword.
    let named = json!({"type": "object", "properties": {"not": {"type": "null"}, "if": {"type": "null"}}});
    check(named, &[r#"{"not":null,"if":null}"#], &[r#"{"not":1}"#]);
}

#[test]
fn regular_expressions_and_choices() {
    let compiled = compile(&GrammarSource::Regex(r"\d{3}-[a-z/]+(é|日)?".into())).unwrap();
    assert!(admits(&compiled, "123-a/b日") && !admits(&compiled, "12-a") && !admits(&compiled, "123-a日日"));
    for bad in ["*", "(", "a{2", "[z-a]", r"\1", "(?=a)", r"(a)\1"] {
        let error =
            compile(&GrammarSource::Regex(bad.into())).err().unwrap_or_else(|| panic!("{bad} compiles"));
        assert!(error.is_of_request(), "{bad}: {error}");
    }
    let compiled = compile(&GrammarSource::Choice(vec![
        "a".into(),
        "ab".into(),
        "a\"\\\n\u{7f}".into(),
        "<end>".into(),
    ]))
    .unwrap();
    for text in ["a", "ab", "a\"\\\n\u{7f}"] {
        assert!(admits(&compiled, text), "{text:?}");
    }
    assert!(!admits(&compiled, "") && !admits(&compiled, "abc"));
    // A choice with the name of a control token is text.
    let mut walk = Walk::new(&compiled);
    assert!(!walk.allowed().contains(&small().token_id("<end>").unwrap()));
    assert!("<end>".bytes().all(|byte| walk.push(u32::from(byte))) && walk.may_end());
    assert!(compile(&GrammarSource::Choice(vec![])).is_err());
}

#[test]
fn lark_grammars_and_their_errors() {
    let compiled =
        compile(&GrammarSource::Lark("start: \"a\" item+ <think>\nitem: /[0-9]/ | \"(\" item \")\"".into()))
            .unwrap();
    assert!(
        admits(&compiled, "a1((2))<think>") && !admits(&compiled, "a<think>") && !admits(&compiled, "a1")
    );
    let error = compile(&GrammarSource::Lark("start: \"a\"\n  b".into())).err().unwrap();
    assert!(matches!(&error, GrammarError::Syntax { place, .. } if place.line == 2), "{error:?}");
    let error = compile(&GrammarSource::Lark("start: nothing".into())).err().unwrap();
    assert!(error.to_string().contains("line 1, column"), "{error}");
    assert_eq!(GrammarSource::grammar("root ::= \"a\""), GrammarSource::Gbnf("root ::= \"a\"".into()));
    assert_eq!(
        GrammarSource::grammar("start: \"a\" # ::="),
        GrammarSource::Lark("start: \"a\" # ::=".into())
    );
}

#[test]
fn reasoning_is_free_and_comes_first() {
    let object = schema(json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}));
    let thinks = |open| Reasoning { begin: "<think>".into(), end: "</think>".into(), open };
    let compiled = compile_after(&object, &thinks(false)).unwrap();
    for text in
        [r#"{"a":1}"#, "<think>{\"b\" <tool_call> 日</think>\n\n{\"a\":1}", "<think></think>{\"a\":1}"]
    {
        assert!(admits(&compiled, text), "{text}");
    }
    for text in ["x{\"a\":1}", "<think>{\"a\":1}", "<think>a</think>", "<think>a</think>b"] {
        assert!(!admits(&compiled, text), "{text}");
    }
    let compiled = compile_after(&object, &thinks(true)).unwrap();
    assert!(admits(&compiled, "why</think>{\"a\":1}") && !admits(&compiled, "{\"a\":1}"));
    // A marker that is plain text ends reasoning, too.
    let thinks = Reasoning { begin: "<r>".into(), end: "</r>".into(), open: true };
    let compiled = compile_after(&GrammarSource::Choice(vec!["yes".into()]), &thinks).unwrap();
    assert!(admits(&compiled, "a</b</r>yes") && !admits(&compiled, "yes") && !admits(&compiled, "a</r>no"));
}

#[test]
fn only_ends_remain_once_a_grammar_is_complete() {
    let compiled = compile(&GrammarSource::Choice(vec!["ab".into()])).unwrap();
    let mut walk = Walk::new(&compiled);
    let ends = ["<end>", "<stop>"].map(|name| small().token_id(name).unwrap());
    assert_eq!(walk.text("ab"), Ok(()));
    assert_eq!(walk.allowed(), ends);
    assert!(walk.push(ends[1]));
    // Also before the first token.
    let empty = compile(&GrammarSource::Regex(String::new())).unwrap();
    assert_eq!(Walk::new(&empty).allowed(), ends);
    // If the caller accepts a token that the mask forbids, the constraint fails and then allows no
    // token.
    let mut walk = Walk::new(&compiled);
    walk.tokens.push(u32::from(b'x'));
    walk.constraint.accepted(&walk.tokens);
    assert_eq!(walk.allowed(), [0; 0]);
    let problem = walk.constraint.problem().unwrap().clone();
    assert!(matches!(problem, GrammarError::Step { .. }) && problem.is_of_request(), "{problem}");
}

#[test]
fn two_responses_use_one_grammar_independently() {
    let compiled = compile(&schema(json!({"type": "integer"}))).unwrap();
    let (mut a, mut b) = (Walk::new(&compiled), Walk::new(&compiled));
    assert_eq!((a.text("12"), b.text("-")), (Ok(()), Ok(())));
    assert!(a.may_end() && !b.may_end());
    assert_eq!((a.text("3"), b.text("4")), (Ok(()), Ok(())));
    assert!(b.may_end());
}

/// A random schema of keywords that the validator below supports.
fn random_schema(random: &mut Random, level: usize) -> Value {
    match if level == 0 { random.next(6) } else { random.next(10) } {
        0 => json!({"type": "boolean"}),
        1 => json!({"type": "null"}),
        2 => {
            let low = random.next(2000) as i64 - 1000;
            json!({"type": "integer", "minimum": low, "maximum": low + random.next(300) as i64})
        }
        3 => {
            let low = random.next(5);
            json!({"type": "string", "minLength": low, "maxLength": low + random.next(6)})
        }
        4 => json!({"type": "string", "pattern": "^[a-z]{1,4}(-[0-9]{2})?$"}),
        5 => json!({"enum": ["one", "two \"quoted\"", 3, -4.5, null]}),
        6 => {
            let low = random.next(3);
            json!({"type": "array", "items": random_schema(random, level - 1), "minItems": low, "maxItems": low + random.next(3)})
        }
        7 => json!({"anyOf": [random_schema(random, level - 1), random_schema(random, level - 1)]}),
        _ => {
            let names = ["a", "b b", "ü", "d\"", "e"];
            let (mut properties, mut required) = (Map::new(), Vec::new());
            for name in &names[..random.next(5) + 1] {
                properties.insert((*name).into(), random_schema(random, level - 1));
                if random.next(2) == 0 {
                    required.push(*name);
                }
            }
            json!({"type": "object", "properties": properties, "required": required})
        }
    }
}

/// Whether a value is an instance of a schema of [`random_schema`].
fn valid(schema: &Value, value: &Value) -> bool {
    if let Some(options) = schema.get("anyOf").and_then(Value::as_array) {
        return options.iter().any(|option| valid(option, value));
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values.iter().any(|of| of == value || of.as_f64().is_some() && of.as_f64() == value.as_f64());
    }
    let bound = |key: &str| schema.get(key).and_then(Value::as_i64);
    let within = |count: usize, low: &str, high: &str| {
        bound(low).is_none_or(|low| count as i64 >= low)
            && bound(high).is_none_or(|high| count as i64 <= high)
    };
    match (schema["type"].as_str().unwrap(), value) {
        ("boolean", Value::Bool(_)) | ("null", Value::Null) => true,
        ("integer", Value::Number(number)) => {
            number.as_i64().is_some_and(|n| bound("minimum").unwrap() <= n && n <= bound("maximum").unwrap())
        }
        ("string", Value::String(text)) if schema.get("pattern").is_some() => {
            let letters = text.split('-').next().unwrap();
            let digits = text.strip_prefix(letters).unwrap();
            let digits =
                digits.is_empty() || digits.len() == 3 && digits[1..].bytes().all(|b| b.is_ascii_digit());
            (1..=4).contains(&letters.len()) && letters.bytes().all(|b| b.is_ascii_lowercase()) && digits
        }
        ("string", Value::String(text)) => within(text.chars().count(), "minLength", "maxLength"),
        ("array", Value::Array(items)) => {
            within(items.len(), "minItems", "maxItems")
                && items.iter().all(|item| valid(&schema["items"], item))
        }
        ("object", Value::Object(object)) => {
            let properties = schema["properties"].as_object().unwrap();
            let required = schema["required"].as_array().unwrap();
            required.iter().all(|name| object.contains_key(name.as_str().unwrap()))
                && object.iter().all(|(name, value)| properties.get(name).is_some_and(|of| valid(of, value)))
        }
        _ => false,
    }
}

/// A text made by random choices. It ends as soon as it may end.
fn sample(source: &GrammarSource, random: &mut Random) -> String {
    let compiled = compile(source).unwrap();
    let mut walk = Walk::new(&compiled);
    let start = walk.tokens.len();
    for _ in 0..3000 {
        let allowed = walk.allowed();
        assert!(!allowed.is_empty(), "{:?}", walk.constraint.problem());
        let token = allowed[random.next(allowed.len())];
        if small().end_of_generation().contains(&token) {
            break;
        }
        assert!(!small().is_control(token));
        assert!(walk.push(token));
        if walk.constraint.may_end() && random.next(3) == 0 {
            break;
        }
    }
    let bytes: Vec<u8> =
        walk.tokens[start..].iter().flat_map(|id| small().piece(*id).unwrap().to_vec()).collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn random_choices_produce_instances_of_random_schemas() {
    let mut kinds = [0; 3];
    for seed in 0..300 {
        let mut random = Random(seed);
        let given = random_schema(&mut random, 3);
        let text = sample(&schema(given.clone()), &mut random);
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{given}\n{text}\n{error}"));
        assert!(valid(&given, &value), "{given}\n{text}");
        kinds[0] += usize::from(value.is_object());
        kinds[1] += usize::from(value.is_array());
        kinds[2] += usize::from(value.is_string());
    }
    assert!(kinds.iter().all(|count| *count > 5), "{kinds:?}");
}

/// The mask of a state must equal the result of trying every token of the vocabulary.
#[test]
fn masks_equal_a_brute_force_check() {
    let given = schema(
        json!({"type": "object", "properties": {"a": {"type": "number"}, "ab": {"type": "string", "maxLength": 2}}, "required": ["a"]}),
    );
    let compiled = compile(&given).unwrap();
    for prefix in [
        "",
        "{",
        "{\"a",
        "{\"a\": 1",
        "{\"a\":0.",
        "{\"a\":-0,\"",
        "{\"a\":1,\"ab\":\"é",
        "{\"a\":1,\"ab\":\"\\u0",
        "{\"a\":1}",
    ] {
        let mut walk = Walk::new(&compiled);
        assert_eq!(walk.text(prefix), Ok(()), "{prefix}");
        let allowed = walk.allowed();
        for id in 0..small().vocab_size() as u32 {
            if small().is_control(id) {
                let ends = small().end_of_generation().contains(&id);
                assert_eq!(allowed.contains(&id), ends && walk.may_end(), "{prefix} {id}");
                continue;
            }
            // Byte by byte: every byte is a token.
            let mut other = Walk::new(&compiled);
            other.text(prefix).unwrap();
            let possible = small().piece(id).unwrap().iter().all(|byte| other.push(u32::from(*byte)));
            assert_eq!(allowed.contains(&id), possible, "{prefix:?} {:?}", small().token_text(id));
        }
    }
}

#[test]
fn the_lowest_integers_of_64_bits_are_bounds_but_no_constants() {
    let lowest = json!(i64::MIN);
    for bound in [lowest.clone(), json!(-1e300), json!(i64::MIN + 1)] {
        let long = json!({"type": "integer", "minimum": bound, "maximum": i64::MAX});
        check(
            long,
            &["0", "-9223372036854774784", "9223372036854775807"],
            &["-1.5", "\"\"", "-92233720368547758080"],
        );
        check(
            json!({"type": "integer", "exclusiveMinimum": bound}),
            &["0", "-1", "99999999999999999999"],
            &["\"\""],
        );
    }
    for wrong in [
        json!({"const": lowest}),
        json!({"const": -1e300}),
        json!({"enum": [false, [11, lowest]]}),
        json!({"type": "integer", "maximum": lowest}),
        // Places that references may lead to.
        json!({"$ref": "#/x", "x": {"const": {"minimum": lowest}}}),
    ] {
        let problem = compile(&schema(wrong.clone())).err().unwrap_or_else(|| panic!("{wrong} compiles"));
        assert!(
            problem.is_of_request() && problem.to_string().contains("-9223372036854774784"),
            "{wrong}: {problem}"
        );
    }
}
