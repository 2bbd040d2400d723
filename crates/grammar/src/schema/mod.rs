//! JSON schemas: checked before the library sees them, and brought into the form that models do well with.

mod check;
mod close;
mod numbers;
mod shape;
mod trivial;
mod walk;

use crate::error::GrammarError;
use crate::limits::{Budget, GrammarLimits};
use serde_json::{Value, json};

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
    numbers::raise_bounds(&mut schema)?;
    close::objects(&mut schema);
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
