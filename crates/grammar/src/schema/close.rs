//! Closes objects: forbids properties that a schema does not name.

use super::walk::each_schema;
use serde_json::{Map, Value};
use std::convert::Infallible;

/// Keywords by which other schemas apply to the same instance.
const APPLICATORS: [&str; 4] = ["allOf", "anyOf", "oneOf", "$ref"];

/// Keywords that say which properties an object has.
const OF_OBJECTS: [&str; 6] =
    ["properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"];

/// Lets objects that name their properties, and say nothing about others, have no others. Every output is still an instance of the schema as it
/// was written; and it is what other servers do, so that schemas are written with that in mind. Where schemas are combined, one may have to
/// admit properties of the other, and all stay as they are.
pub(super) fn objects(schema: &mut Value) {
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
