//! JSON Schema: validation before llguidance compiles a schema, and adjustments for models.

mod check;
mod shape;
mod trivial;
mod walk;

use crate::error::GrammarError;
use crate::limits::{Budget, GrammarLimits};
use check::WHAT;
use serde_json::{Map, Number, Value, json};
use std::convert::Infallible;
use walk::each_schema;

/// Whitespace between JSON tokens: none, a blank, or a line end with an indentation, as in
/// llama.cpp's grammars. Without a bound, a model may emit whitespace until it reaches its token
/// limit.
const WHITE_SPACE: &str = r" |\r?\n[ \t]{0,32}";

/// Checks a schema and prepares it for llguidance.
///
/// # Errors
/// The schema is too large, costs more than the budget, or uses an unsupported keyword.
pub(crate) fn prepare(
    schema: &Value,
    limits: &GrammarLimits,
    budget: &Budget,
) -> Result<Value, GrammarError> {
    check::size(schema, limits)?;
    let mut schema = match schema {
        // Since draft 6, `true` is the schema that allows everything.
        Value::Bool(true) => json!({}),
        Value::Object(_) => schema.clone(),
        other => {
            let problem =
                format!("a schema must be an object, found {}", crate::error::shorten(&other.to_string()));
            return Err(GrammarError::Invalid { what: check::WHAT, problem });
        }
    };
    check::keywords(&mut schema, limits)?;
    raise_bounds(&mut schema)?;
    close_objects(&mut schema);
    shape::check(&schema, budget)?;
    schema["x-guidance"] = json!({"whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE});
    Ok(schema)
}

/// Checks the schemas embedded in a Lark grammar (`%json { … }`), which llguidance parses by
/// itself.
pub(crate) fn check_embedded(
    lark: &str,
    limits: &GrammarLimits,
    budget: &Budget,
) -> Result<(), GrammarError> {
    for (at, keyword) in lark.match_indices("%json") {
        budget.spend(1)?;
        // Within a string or a comment, `%json` need not be followed by JSON.
        let rest = &lark[at + keyword.len()..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        if let Some(Ok(schema)) = values.next() {
            budget.spend(values.byte_offset() as u64 / 16)?;
            check::size(&schema, limits)?;
            shape::check(&schema, budget)?;
        }
    }
    Ok(())
}

/// Keywords that apply other schemas to the same instance.
const APPLICATORS: [&str; 4] = ["allOf", "anyOf", "oneOf", "$ref"];

/// Keywords that restrict an object's properties.
const OF_OBJECTS: [&str; 6] =
    ["properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"];

/// Sets `additionalProperties: false` in objects that list `properties` and say nothing about
/// others. JSON Schema's default is `true`, but llama.cpp's converter also defaults to `false`, and
/// schemas are written with that in mind. Every output is still valid against the original schema.
/// Combined schemas stay unchanged, because one may have to allow the properties of the other.
fn close_objects(schema: &mut Value) {
    let mut combined = false;
    let _ = each_schema(schema, "", &mut |object: &mut Map<String, Value>, _: &str| {
        let has = |keys: &[&str]| keys.iter().any(|key| object.contains_key(*key));
        // An applicator alone is safe: it has no sibling that it would have to agree with.
        combined |= object.contains_key("allOf") || has(&APPLICATORS) && has(&OF_OBJECTS);
        Ok::<_, Infallible>(())
    });
    if combined {
        return;
    }
    let _ = each_schema(schema, "", &mut |object: &mut Map<String, Value>, _: &str| {
        let named =
            object.get("properties").and_then(Value::as_object).is_some_and(|named| !named.is_empty());
        let says = ["patternProperties", "additionalProperties", "minProperties"];
        if named && !says.iter().any(|key| object.contains_key(*key)) {
            object.insert("additionalProperties".into(), Value::Bool(false));
        }
        Ok::<_, Infallible>(())
    });
}

/// The lowest f64 above −2⁶³: the spacing of f64 is 1024 there.
const LOWEST: i64 = i64::MIN + 1024;

/// Raises lower bounds of −2⁶³ and less, which generators write for 64-bit integers. llguidance
/// negates bounds as i64; −2⁶³ has no negation, and it recursed until the stack overflowed.
/// Constants and upper bounds that low are refused.
fn raise_bounds(schema: &mut Value) -> Result<(), GrammarError> {
    let mut open = vec![(schema, false)];
    while let Some((value, followed)) = open.pop() {
        match value {
            Value::Number(number) if followed && is_too_low(number) => {
                let problem = format!("the number {number} is less than {LOWEST}");
                return Err(GrammarError::Invalid { what: WHAT, problem });
            }
            Value::Array(list) => open.extend(list.iter_mut().map(|value| (value, followed))),
            Value::Object(object) => {
                for (key, value) in object.iter_mut() {
                    match (key.as_str(), value) {
                        ("minimum" | "exclusiveMinimum", Value::Number(bound))
                            if !followed && is_too_low(bound) =>
                        {
                            *bound = LOWEST.into();
                        }
                        // Raising these would change which values are allowed.
                        ("const" | "enum" | "maximum" | "exclusiveMaximum", value) => {
                            open.push((value, true))
                        }
                        (_, value) => open.push((value, followed)),
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_too_low(number: &Number) -> bool {
    number.as_f64().is_some_and(|number| number <= i64::MIN as f64)
}
