//! Removal of keywords that every instance satisfies, and rewriting of those that have a supported
//! form, before unsupported keywords are refused.

use serde_json::{Map, Value, json};

/// Keywords that do not restrict an instance: llguidance's `META_AND_ANNOTATIONS`.
pub(super) const NOTES: [&str; 15] = [
    "$anchor",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
];

/// Removes keywords that every instance satisfies.
pub(super) fn remove(schema: &mut Map<String, Value>) {
    // Assertions apply only to instances of their own type: `uniqueItems` does not restrict an
    // object.
    let keep = |schema: &Map<String, Value>, keyword: &str, value: &Value| match keyword {
        "propertyNames" => !of_every_name(value) && may_be(schema, "object"),
        "uniqueItems" => *value != Value::Bool(false) && may_be(schema, "array") && max_items(schema) > 1,
        "unevaluatedProperties" => !is_any(value) && may_be(schema, "object"),
        "unevaluatedItems" => !is_any(value) && may_be(schema, "array"),
        "dependentRequired" | "dependentSchemas" | "dependencies" => {
            may_be(schema, "object")
                && value.as_object().is_none_or(|dependent| !dependent.values().all(demands_nothing))
        }
        // Ignored without `contains` (2020-12 validation, sections 6.4.4 and 6.4.5).
        "minContains" | "maxContains" => schema.contains_key("contains"),
        "contains" => {
            // `minContains: 0` makes `contains` hold for every array.
            let optional =
                schema.get("minContains") == Some(&json!(0)) && !schema.contains_key("maxContains");
            !optional && may_be(schema, "array")
        }
        // `if` alone asserts nothing, and `then` and `else` are ignored without it (2020-12 core,
        // section 10.2.2).
        "if" => ["then", "else"].iter().any(|keyword| schema.contains_key(*keyword)),
        "then" | "else" => schema.contains_key("if"),
        "not" => !is_never(value),
        _ => true,
    };
    let mut superfluous = Vec::new();
    for (keyword, value) in schema.iter() {
        if !keep(schema, keyword, value) {
            superfluous.push(keyword.clone());
        }
    }
    for keyword in superfluous {
        schema.remove(&keyword);
        // `keep` was asked while `contains` was still present, but `minContains` has no effect
        // without it.
        if keyword == "contains" {
            schema.remove("minContains");
        }
    }
    enumerate_names(schema);
}

/// Rewrites `propertyNames: {enum: […]}` to `properties`: zod 4 writes records of an enumeration
/// this way.
fn enumerate_names(schema: &mut Map<String, Value>) {
    let named = ["properties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"];
    // With any of these, the properties would have to be intersected.
    if named.iter().any(|keyword| schema.contains_key(*keyword)) {
        return;
    }
    let Some(Value::Object(names)) = schema.get("propertyNames") else { return };
    let says =
        |keyword: &String| keyword != "enum" && keyword != "type" && !NOTES.contains(&keyword.as_str());
    if names.keys().any(says) || names.get("type").is_some_and(|kind| kind != "string") {
        return;
    }
    let Some(list) = names.get("enum").and_then(Value::as_array) else { return };
    let Some(list) = list.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
    else {
        return;
    };
    // The check above excludes `properties`, so `additionalProperties` applies to each of these
    // names.
    let value = schema.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let properties: Map<String, Value> = list.into_iter().map(|name| (name, value.clone())).collect();
    schema.remove("propertyNames");
    schema.insert("properties".into(), properties.into());
    schema.insert("additionalProperties".into(), false.into());
}

/// Whether a schema's `type` allows values of a type.
fn may_be(schema: &Map<String, Value>, kind: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(own)) => own == kind,
        Some(Value::Array(kinds)) => kinds.iter().any(|own| own == kind),
        _ => true,
    }
}

fn max_items(schema: &Map<String, Value>) -> u64 {
    schema.get("maxItems").and_then(Value::as_u64).unwrap_or(u64::MAX)
}

/// Whether a schema allows every value.
fn is_any(schema: &Value) -> bool {
    match schema {
        Value::Bool(any) => *any,
        Value::Object(object) => object.keys().all(|keyword| NOTES.contains(&keyword.as_str())),
        _ => false,
    }
}

/// Whether a schema allows no value.
fn is_never(schema: &Value) -> bool {
    match schema {
        Value::Bool(any) => !*any,
        Value::Object(object) => {
            object.get("not").is_some_and(is_any)
                && object.keys().all(|keyword| keyword == "not" || NOTES.contains(&keyword.as_str()))
        }
        _ => false,
    }
}

/// Whether a schema for property names allows every name.
fn of_every_name(schema: &Value) -> bool {
    let Value::Object(object) = schema else { return is_any(schema) };
    object.iter().all(|(keyword, value)| match keyword.as_str() {
        "type" => may_be(object, "string"),
        "minLength" => *value == json!(0),
        keyword => NOTES.contains(&keyword),
    })
}

/// Whether a dependency demands nothing: an empty list of names, or a schema that allows
/// everything. `dependencies` of drafts 4 to 7 has both forms.
fn demands_nothing(dependent: &Value) -> bool {
    match dependent {
        Value::Array(names) => names.is_empty(),
        schema => is_any(schema),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(schema: Value) -> Value {
        let Value::Object(mut object) = schema else { panic!("{schema}") };
        remove(&mut object);
        object.into()
    }

    #[test]
    fn keywords_that_every_instance_satisfies_are_removed() {
        let base = json!({"type": "object", "additionalProperties": {"type": "number"}});
        let with = |keyword: &str, value: Value| {
            let mut schema = base.clone();
            schema[keyword] = value;
            schema
        };
        for (keyword, value) in [
            ("propertyNames", json!({"type": "string"})),
            ("propertyNames", json!({"type": ["string", "null"], "description": "x"})),
            ("propertyNames", json!({"minLength": 0})),
            ("propertyNames", json!(true)),
            ("uniqueItems", json!(true)),
            ("unevaluatedProperties", json!({})),
            ("unevaluatedItems", json!(false)),
            ("dependentRequired", json!({"a": []})),
            ("dependentSchemas", json!({"a": true})),
            ("dependencies", json!({})),
            ("minContains", json!(3)),
            ("contains", json!({"type": "string"})),
            ("if", json!({"required": ["a"]})),
            ("then", json!({"required": ["a"]})),
            ("not", json!(false)),
            ("not", json!({"not": {}})),
        ] {
            assert_eq!(removed(with(keyword, value.clone())), base, "{keyword}: {value}");
        }
        for (keyword, value) in [
            ("propertyNames", json!({"type": "string", "pattern": "^a"})),
            ("propertyNames", json!({"type": "string", "minLength": 1})),
            ("propertyNames", json!({"type": "number"})),
            ("propertyNames", json!(false)),
            ("unevaluatedProperties", json!(false)),
            ("dependentRequired", json!({"a": ["b"]})),
            ("not", json!({"required": ["a"]})),
        ] {
            let schema = with(keyword, value);
            assert_eq!(removed(schema.clone()), schema);
        }
        let list = json!({"contains": {"type": "string"}, "minContains": 0});
        assert_eq!(removed(list), json!({}));
        let few = json!({"type": "array", "uniqueItems": true, "maxItems": 1});
        assert_eq!(removed(few), json!({"type": "array", "maxItems": 1}));
    }

    #[test]
    fn enumerated_property_names_become_properties() {
        let record = json!({"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]},
            "additionalProperties": {"type": "number"}, "required": ["a", "b"]});
        assert_eq!(
            removed(record),
            json!({"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "additionalProperties": false, "required": ["a", "b"]})
        );
    }
}
