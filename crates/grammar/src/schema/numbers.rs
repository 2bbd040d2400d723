//! Numbers so low that the library cannot count with them: it negates integers of 64 bits, and the lowest has no negative.

use super::check::WHAT;
use crate::error::GrammarError;
use serde_json::{Number, Value};

/// The lowest float of 64 bits above −2⁶³.
const LOWEST: i64 = i64::MIN + 1024;

/// Raises lower bounds that are too low, which schemas of 64-bit integers have. Other numbers that are too low cannot be followed.
pub(super) fn raise_bounds(schema: &mut Value) -> Result<(), GrammarError> {
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
