//! Types of untyped values, from the tool's JSON schema. Formats such as GLM's write `5` for both
//! the number and the string.

use super::arguments::is_json;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// A JSON type that a parameter may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParameterType {
    String,
    Integer,
    Number,
    Boolean,
    Null,
    Object,
    Array,
}

/// Maximum nesting of references and unions. A schema may refer to itself.
const MAX_DEPTH: usize = 8;

/// Maximum number of schemas that are read for one parameter. Without it, 64 choices that refer to
/// a schema of 64 such choices are 64⁴ schemas within [`MAX_DEPTH`]: seconds of CPU time.
const MAX_PARAMETER_SCHEMAS: usize = 256;

/// Maximum number of choices, type names and values that are read of one schema.
const MAX_CHOICES: usize = 64;

/// Maximum bytes of a reference. Each use of a longer one would copy it.
const MAX_REFERENCE: usize = 1024;

/// Maximum number of schemas that are read for all tools of a request. Parameters after the limit
/// have no declared type.
const MAX_SCHEMAS: usize = 1 << 16;

/// The types that tools declare for their parameters.
#[derive(Debug, Default)]
pub(crate) struct ToolTypes {
    tools: HashMap<String, HashMap<String, Vec<ParameterType>>>,
}

impl ToolTypes {
    /// Types of a request's tools: objects with `name` and `parameters` (`input_schema` in
    /// Anthropic's API), or such objects in `function`.
    pub fn new(tools: &Value) -> ToolTypes {
        let mut types = ToolTypes::default();
        let mut remaining = MAX_SCHEMAS;
        for tool in tools.as_array().into_iter().flatten() {
            let function = tool.get("function").unwrap_or(tool);
            let schema = ["parameters", "input_schema"].iter().find_map(|key| function.get(key));
            let properties = schema.and_then(|schema| schema.get("properties")).and_then(Value::as_object);
            if let (Some(name), Some(schema)) = (function.get("name").and_then(Value::as_str), schema) {
                let mut kinds_of = |value: &Value| {
                    let limit = remaining.min(MAX_PARAMETER_SCHEMAS);
                    let mut left = limit;
                    let found = kinds(value, schema, 0, &mut left);
                    remaining -= limit - left;
                    found
                };
                let of = |properties: &Map<String, Value>| {
                    properties.iter().map(|(key, value)| (key.clone(), kinds_of(value))).collect()
                };
                types.tools.insert(name.to_owned(), properties.map(of).unwrap_or_default());
            }
        }
        types
    }

    /// The declared types of a tool's parameter; empty if none is declared.
    pub fn of(&self, tool: &str, parameter: &str) -> &[ParameterType] {
        self.tools.get(tool).and_then(|tool| tool.get(parameter)).map_or(&[], Vec::as_slice)
    }
}

fn named(name: &str) -> Option<ParameterType> {
    // Some clients declare Python's names of types.
    Some(match name {
        "string" | "str" => ParameterType::String,
        "integer" | "int" => ParameterType::Integer,
        "number" | "float" => ParameterType::Number,
        "boolean" | "bool" => ParameterType::Boolean,
        "null" => ParameterType::Null,
        "object" | "dict" => ParameterType::Object,
        "array" | "list" => ParameterType::Array,
        _ => return None,
    })
}

fn of_value(value: &Value) -> ParameterType {
    match value {
        Value::Null => ParameterType::Null,
        Value::Bool(_) => ParameterType::Boolean,
        Value::Number(number) if number.is_f64() => ParameterType::Number,
        Value::Number(_) => ParameterType::Integer,
        Value::String(_) => ParameterType::String,
        Value::Array(_) => ParameterType::Array,
        Value::Object(_) => ParameterType::Object,
    }
}

/// The types that a schema accepts, in its order. Reads at most `remaining` schemas, and subtracts
/// their number.
fn kinds(schema: &Value, root: &Value, depth: usize, remaining: &mut usize) -> Vec<ParameterType> {
    if depth == MAX_DEPTH || *remaining == 0 {
        return Vec::new();
    }
    *remaining -= 1;
    let mut found: Vec<ParameterType> = match schema.get("type") {
        Some(Value::String(name)) => named(name).into_iter().collect(),
        Some(Value::Array(names)) => {
            names.iter().take(MAX_CHOICES).filter_map(Value::as_str).filter_map(named).collect()
        }
        _ => Vec::new(),
    };
    let reference = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
    let reference = reference.filter(|path| path.len() <= MAX_REFERENCE);
    if let Some(target) = reference.and_then(|path| root.pointer(path)) {
        found.extend(kinds(target, root, depth + 1, remaining));
    }
    for union in ["anyOf", "oneOf", "allOf"] {
        for choice in schema.get(union).and_then(Value::as_array).into_iter().flatten().take(MAX_CHOICES) {
            found.extend(kinds(choice, root, depth + 1, remaining));
        }
    }
    // An `enum` restricts the declared type, and stands for it only if none is declared.
    if found.is_empty() {
        let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        found.extend(values.take(MAX_CHOICES).chain(schema.get("const")).map(of_value));
    }
    // OpenAPI 3.0's form of a union with null.
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        found.push(ParameterType::Null);
    }
    // `typed` takes the first type that fits, so the order stays and only repetitions are removed.
    let mut seen = Vec::new();
    found.retain(|kind| {
        !seen.contains(kind) && {
            seen.push(*kind);
            true
        }
    });
    found
}

/// JSON text of a raw value as the first matching declared type; `None` if it stays a string.
pub(crate) fn typed(raw: &str, kinds: &[ParameterType]) -> Option<String> {
    kinds.iter().find_map(|kind| as_kind(raw.trim(), *kind))
}

/// JSON text of a raw value without a declared type: any valid JSON except strings. `"quoted"`
/// keeps its quotes, because a string is written without them.
pub(crate) fn undeclared(raw: &str) -> Option<String> {
    let raw = raw.trim();
    (!raw.starts_with('"') && is_json(raw)).then(|| raw.to_owned())
}

fn as_kind(raw: &str, kind: ParameterType) -> Option<String> {
    let keyword = raw.to_ascii_lowercase();
    match kind {
        ParameterType::String => None,
        // Models write `3.0` for integers.
        ParameterType::Integer => integer(raw).or_else(|| whole(raw)),
        ParameterType::Number => number(raw).or_else(|| integer(raw)),
        ParameterType::Boolean => match keyword.as_str() {
            "true" | "1" => Some("true".to_owned()),
            "false" | "0" => Some("false".to_owned()),
            _ => None,
        },
        // Models trained on Python write `None`, and `True` above.
        ParameterType::Null => matches!(raw, "null" | "None").then(|| "null".to_owned()),
        ParameterType::Object => (raw.starts_with('{') && is_json(raw)).then(|| raw.to_owned()),
        ParameterType::Array => (raw.starts_with('[') && is_json(raw)).then(|| raw.to_owned()),
    }
}

/// An integer in JSON's form: without `+` and leading zeros. It works on digits, so that integers
/// beyond 64 bits keep their value.
fn integer(raw: &str) -> Option<String> {
    let (sign, digits) = match raw.as_bytes().first()? {
        b'-' => ("-", raw.get(1..)?),
        b'+' => ("", raw.get(1..)?),
        _ => ("", raw),
    };
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let digits = digits.trim_start_matches('0');
    let digits = if digits.is_empty() { "0" } else { digits };
    all_digits.then(|| format!("{}{digits}", if digits == "0" { "" } else { sign }))
}

/// A float that is a whole number, such as `3.0`.
fn whole(raw: &str) -> Option<String> {
    let value = float(raw)?;
    (value.fract() == 0.0)
        .then(|| format!("{value:.0}"))
        .map(|text| if text == "-0" { "0".to_owned() } else { text })
}

fn float(raw: &str) -> Option<f64> {
    // `parse` also accepts `inf` and `NaN`, which JSON does not have.
    let plain =
        raw.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'+' | b'-' | b'e' | b'E'));
    raw.parse::<f64>().ok().filter(|value| plain && value.is_finite())
}

/// A JSON number as it is written; otherwise the JSON form of the number.
fn number(raw: &str) -> Option<String> {
    let value = float(raw)?;
    // Unchanged: `1.50` must not become `1.5`.
    if is_json(raw) {
        return Some(raw.to_owned());
    }
    integer(raw).or_else(|| serde_json::to_string(&value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_take_the_first_declared_type_that_they_fit() {
        use ParameterType::{Array, Boolean, Integer, Null, Number, Object, String};
        let cases: &[(&str, &[ParameterType], Option<&str>)] = &[
            ("5", &[Integer, Null], Some("5")),
            ("null", &[Integer, Null], Some("null")),
            ("not-a-number", &[Integer], None),
            ("007", &[Integer], Some("7")),
            ("-00", &[Integer], Some("0")),
            ("+7", &[Number], Some("7")),
            (" 3.0\n", &[Integer], Some("3")),
            ("3.5", &[Integer], None),
            ("1.50", &[Number], Some("1.50")),
            (".5", &[Number], Some("0.5")),
            ("1e400", &[Number], None),
            ("NaN", &[Number], None),
            ("inf", &[Number], None),
            ("123456789012345678901234567890", &[Integer], Some("123456789012345678901234567890")),
            ("True", &[Boolean], Some("true")),
            ("0", &[Boolean], Some("false")),
            ("maybe", &[Boolean], None),
            ("[1, 2]", &[Object], None),
            ("{\"a\": 1}", &[Array], None),
            ("{\"a\": 1}", &[String, Object], Some("{\"a\": 1}")),
            ("{\"a\": 1", &[Object], None),
            ("hello", &[String], None),
            ("5", &[String], None),
        ];
        for (raw, kinds, expected) in cases {
            assert_eq!(typed(raw, kinds).as_deref(), *expected, "{raw:?} as {kinds:?}");
        }
    }

    #[test]
    fn types_are_found_through_unions_references_and_enums() {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {
            "$defs": {"Level": {"enum": [1, 2, "max"]}, "Loop": {"$ref": "#/$defs/Loop"}},
            "properties": {
                "a": {"type": "integer"},
                "b": {"type": ["integer", "string"]},
                "c": {"anyOf": [{"type": "boolean"}, {"type": "string"}]},
                "d": {"type": "integer", "nullable": true},
                "e": {"description": "no type"},
                "f": {"$ref": "#/$defs/Level"},
                "g": {"$ref": "#/$defs/Loop"},
                "h": {"const": null}
            }
        }}}, {"name": "g", "input_schema": {"properties": {"x": {"type": "array"}}}}, 5]);
        let types = ToolTypes::new(&tools);
        use ParameterType::{Array, Boolean, Integer, Null, String};
        let expected: &[(&str, &[ParameterType])] = &[
            ("a", &[Integer]),
            ("b", &[Integer, String]),
            ("c", &[Boolean, String]),
            ("d", &[Integer, Null]),
            ("e", &[]),
            ("f", &[Integer, String]),
            ("g", &[]),
            ("h", &[Null]),
            ("none", &[]),
        ];
        for (parameter, kinds) in expected {
            assert_eq!(types.of("f", parameter), *kinds, "{parameter}");
        }
        assert_eq!(types.of("g", "x"), [Array]);
        assert_eq!(types.of("h", "x"), []);
    }

    #[test]
    fn the_schemas_read_for_a_request_are_bounded() {
        // 64⁴ schemas per parameter within the maximum nesting
        let choices = |name: &str| json!({"anyOf": vec![json!({"$ref": name}); 64]});
        let schema = json!({"$defs": {"a": choices("#/$defs/b"), "b": choices("#/$defs/a")}});
        let mut remaining = 1000;
        assert_eq!(kinds(&schema["$defs"]["a"], &schema, 0, &mut remaining), []);
        assert_eq!(remaining, 0);
        let mut tool = json!({"name": "f", "parameters": schema});
        for i in 0..1000 {
            tool["parameters"]["properties"][format!("p{i}")] = json!({"$ref": "#/$defs/a"});
        }
        let integer = json!({"name": "g", "parameters": {"properties": {"x": {"type": "integer"}}}});
        // in front of the hostile tool and behind it
        let types = ToolTypes::new(&json!([integer.clone(), tool.clone()]));
        assert_eq!(types.of("g", "x"), [ParameterType::Integer]);
        assert_eq!(types.of("f", "p999"), []);
        let types = ToolTypes::new(&json!([tool, integer]));
        assert_eq!(types.of("g", "x"), []);
    }
}
