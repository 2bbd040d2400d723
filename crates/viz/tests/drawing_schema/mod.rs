//! As much of JSON Schema as `docs/graph.schema.json` uses.

use serde_json::Value;

/// What of `value` is not as `schema` says: a line each, with the place.
pub fn problems(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, schema, value, "$", &mut found);
    found
}

/// The words of the schema language that this check knows.
const KNOWN: [&str; 15] = [
    "$schema",
    "title",
    "description",
    "$ref",
    "$defs",
    "type",
    "additionalProperties",
    "required",
    "properties",
    "items",
    "const",
    "enum",
    "minimum",
    "minItems",
    "maxItems",
];

fn check(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    for key in schema.as_object().into_iter().flat_map(|object| object.keys()) {
        assert!(KNOWN.contains(&key.as_str()), "this check does not know {key}");
    }
    if let Some(target) = schema["$ref"].as_str() {
        let pointer = target.strip_prefix('#').expect("a reference into the schema itself");
        check(root, root.pointer(pointer).expect("what is referred to"), value, at, found);
    }
    let right_type = match schema["type"].as_str() {
        None => true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some(other) => panic!("this check does not know the type {other}"),
    };
    if !right_type {
        found.push(format!("{at}: not of type {}", schema["type"]));
        return;
    }
    if schema.get("const").is_some_and(|wanted| wanted != value) {
        found.push(format!("{at}: not {}", schema["const"]));
    }
    if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
        found.push(format!("{at}: {value} is none of {}", schema["enum"]));
    }
    if let (Some(least), Some(number)) = (schema["minimum"].as_f64(), value.as_f64())
        && number < least
    {
        found.push(format!("{at}: {number} is less than {least}"));
    }
    if let Some(items) = value.as_array() {
        let count = items.len() as u64;
        if schema["minItems"].as_u64().is_some_and(|n| count < n)
            || schema["maxItems"].as_u64().is_some_and(|n| count > n)
        {
            found.push(format!("{at}: {count} items"));
        }
        if let Some(item) = schema.get("items") {
            items.iter().enumerate().for_each(|(i, v)| check(root, item, v, &format!("{at}[{i}]"), found));
        }
    }
    if let Some(object) = value.as_object() {
        check_object(root, schema, object, at, found);
    }
}

fn check_object(
    root: &Value,
    schema: &Value,
    object: &serde_json::Map<String, Value>,
    at: &str,
    found: &mut Vec<String>,
) {
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !object.contains_key(name) {
            found.push(format!("{at}: {name} is missing"));
        }
    }
    for (name, inner) in object {
        match (schema["properties"].get(name), schema.get("additionalProperties")) {
            (Some(known), _) => check(root, known, inner, &format!("{at}.{name}"), found),
            (None, Some(Value::Bool(false))) => found.push(format!("{at}: {name} is not in the schema")),
            (None, Some(rest)) => check(root, rest, inner, &format!("{at}.{name}"), found),
            (None, None) => {}
        }
    }
}
