//! JSON schemas: checked before the library sees them, and brought into the form that models do well with.

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

/// White space between the parts of a JSON text: none, a blank, or a line end with an indentation. Without a bound a model may emit white space
/// until its tokens have run out.
const WHITE_SPACE: &str = r" |\r?\n[ \t]{0,32}";

/// Checks a schema and prepares it for the library.
///
/// # Errors
/// What is larger than allowed or costs more than the budget, and keywords that cannot be followed.
pub(crate) fn prepare(
    schema: &Value,
    limits: &GrammarLimits,
    budget: &Budget,
) -> Result<Value, GrammarError> {
    check::size(schema, limits)?;
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Object(_) => schema.clone(),
        other => {
            let problem =
                format!("a schema is an object, found {}", crate::error::shorten(&other.to_string()));
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

/// Checks the schemas within a Lark grammar, which the library reads by itself.
pub(crate) fn check_embedded(
    lark: &str,
    limits: &GrammarLimits,
    budget: &Budget,
) -> Result<(), GrammarError> {
    for (at, keyword) in lark.match_indices("%json") {
        budget.spend(1)?;
        // in a text or a comment, what follows it need not be a schema
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

/// Keywords by which other schemas apply to the same instance.
const APPLICATORS: [&str; 4] = ["allOf", "anyOf", "oneOf", "$ref"];

/// Keywords that say which properties an object has.
const OF_OBJECTS: [&str; 6] =
    ["properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"];

/// Lets objects that name their properties, and say nothing about others, have no others. Every output is still an instance of the schema as it
/// was written; and it is what other servers do, so that schemas are written with that in mind. Where schemas are combined, one may have to
/// admit properties of the other, and all stay as they are.
fn close_objects(schema: &mut Value) {
    let mut combined = false;
    let _ = each_schema(schema, "", &mut |object: &mut Map<String, Value>, _: &str| {
        let has = |keys: &[&str]| keys.iter().any(|key| object.contains_key(*key));
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

/// The lowest float of 64 bits above −2⁶³.
const LOWEST: i64 = i64::MIN + 1024;

/// Raises lower bounds that are too low, which schemas of 64-bit integers have: llguidance negates integers, and the lowest has no negative. Other numbers that are too low cannot be followed.
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
