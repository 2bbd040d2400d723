//! Checks of a schema's size and keywords.

use super::trivial;
use super::walk::each_schema;
use crate::error::{GrammarError, shorten};
use crate::limits::GrammarLimits;
use serde_json::{Map, Value};
use std::collections::HashSet;

pub(super) const WHAT: &str = "JSON schema";

/// Keywords of drafts 4 to 2020-12 that restrict an instance and are not supported. Ignoring one
/// would silently allow outputs that are not valid.
const UNSUPPORTED: [&str; 16] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Supported string formats: those of llguidance. By default, `format` is an annotation that a
/// validator may ignore (draft 2020-12, validation, section 7.2.1), so unknown formats are not an
/// error.
const FORMATS: [&str; 11] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"];

/// Checks sizes. Not recursive, because the nesting is not checked yet.
pub(super) fn size(schema: &Value, limits: &GrammarLimits) -> Result<(), GrammarError> {
    let too_large = |unit, found, limit| Err(GrammarError::TooLarge { what: WHAT, unit, found, limit });
    // One level of data takes two levels of the schema: `properties`, and the property's schema.
    let nesting = limits.nesting * 2;
    let (mut bytes, mut choices) = (0_usize, 0_usize);
    let mut references = HashSet::new();
    let mut open = vec![(schema, 1)];
    while let Some((value, level)) = open.pop() {
        if level > nesting {
            return too_large("levels of nesting", level, nesting);
        }
        // Counts the bytes of compact JSON approximately: brackets, quotes and separators.
        bytes += 2;
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(list) => open.extend(list.iter().map(|value| (value, level + 1))),
            Value::Object(object) => {
                for (key, value) in object {
                    bytes += key.len() + 3;
                    match (key.as_str(), value) {
                        ("enum", Value::Array(values)) => choices += values.len(),
                        ("$ref", Value::String(target)) => _ = references.insert(target.as_str()),
                        _ => {}
                    }
                    open.push((value, level + 1));
                }
            }
            _ => bytes += 4,
        }
    }
    if bytes > limits.source_bytes {
        return too_large("bytes", bytes, limits.source_bytes);
    }
    if choices > limits.choices {
        return too_large("values in its enumerations", choices, limits.choices);
    }
    if references.len() > limits.references {
        return too_large("references", references.len(), limits.references);
    }
    Ok(())
}

/// Refuses unsupported keywords and removes those without effect.
pub(super) fn keywords(schema: &mut Value, limits: &GrammarLimits) -> Result<(), GrammarError> {
    let limit = limits.properties;
    each_schema(schema, "#", &mut |object: &mut Map<String, Value>, path: &str| {
        let found = object.get("properties").and_then(Value::as_object).map_or(0, Map::len);
        if found > limit {
            return Err(GrammarError::TooLarge {
                what: WHAT,
                unit: "properties in one object",
                found,
                limit,
            });
        }
        // First: generators write `propertyNames: {type: string}` (zod 4) and the like, which every
        // instance satisfies.
        trivial::remove(object);
        // llguidance's own options. A client must not set `lenient`, which turns errors into
        // warnings.
        object.remove("x-guidance");
        let unknown = |format: &Value| format.as_str().is_some_and(|name| !FORMATS.contains(&name));
        if object.get("format").is_some_and(unknown) {
            object.remove("format");
        }
        match object.keys().find(|key| UNSUPPORTED.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => {
                let problem = format!("the keyword `{key}` at {} is not supported", shorten(path));
                Err(GrammarError::Invalid { what: WHAT, problem })
            }
        }
    })
}
