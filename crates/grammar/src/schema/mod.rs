//! JSON schemas: checked before the library sees them, and brought into the form that models do well with.

mod check;
mod close;
mod numbers;
mod walk;

use crate::error::GrammarError;
use crate::limits::GrammarLimits;
use serde_json::{Value, json};

/// White space between the parts of a JSON text: none, a blank, or a line end with an indentation. Without a bound a model may emit white space
/// until its tokens have run out.
const WHITE_SPACE: &str = r" |\r?\n[ \t]{0,32}";

/// Checks a schema and prepares it for the library.
///
/// # Errors
/// What is larger than allowed, and keywords that cannot be followed.
pub(crate) fn prepare(schema: &Value, limits: &GrammarLimits) -> Result<Value, GrammarError> {
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
    schema["x-guidance"] = json!({"whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE});
    Ok(schema)
}
