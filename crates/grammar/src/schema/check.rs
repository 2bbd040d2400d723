//! What a schema may hold.

use super::trivial;
use super::walk::each_schema;
use crate::error::{GrammarError, shorten};
use crate::limits::GrammarLimits;
use serde_json::{Map, Value};
use std::collections::HashSet;

pub(super) const WHAT: &str = "JSON schema";

/// Keywords that say something about an instance and cannot be followed.
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

/// Formats of strings that are followed. By the standard a format is a note that a program may ignore.
const FORMATS: [&str; 11] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"];

/// Checks sizes, without recursion.
pub(super) fn size(schema: &Value, limits: &GrammarLimits) -> Result<(), GrammarError> {
    let too_large = |unit, found, limit| Err(GrammarError::TooLarge { what: WHAT, unit, found, limit });
    // a schema nests its keywords, so that a level of the data takes two of the text
    let nesting = limits.nesting * 2;
    let (mut bytes, mut choices) = (0_usize, 0_usize);
    let mut references = HashSet::new();
    let mut open = vec![(schema, 1)];
    while let Some((value, level)) = open.pop() {
        if level > nesting {
            return too_large("levels of nesting", level, nesting);
        }
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

/// Refuses keywords that cannot be followed, and removes what says nothing.
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
        trivial::remove(object);
        // the library's own switches, one of which turns errors into warnings
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
