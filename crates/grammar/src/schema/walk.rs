//! All schemas within a schema.

use serde_json::{Map, Value};

/// What a value of a schema holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Schema,
    /// Schemas by the names of properties, patterns or definitions.
    Named,
    /// Schemas in a list.
    List,
    /// A schema, or a list of some.
    Either,
}

/// The schemas that a keyword's value holds, if any.
fn place(keyword: &str) -> Option<Place> {
    Some(match keyword {
        "properties" | "patternProperties" | "$defs" | "definitions" => Place::Named,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Place::List,
        "additionalProperties" | "additionalItems" => Place::Schema,
        "items" => Place::Either,
        _ => return None,
    })
}

/// What is done with each schema, whose path it gets.
pub(super) type Visit<'v, E> = dyn FnMut(&mut Map<String, Value>, &str) -> Result<(), E> + 'v;

/// Calls `visit` with every schema in a schema, itself included, and with the path of each. Nesting is checked before.
pub(super) fn each_schema<E>(schema: &mut Value, path: &str, visit: &mut Visit<'_, E>) -> Result<(), E> {
    let Value::Object(object) = schema else { return Ok(()) };
    visit(object, path)?;
    for (keyword, value) in object {
        let Some(place) = place(keyword) else { continue };
        let path = format!("{path}/{keyword}");
        match (place, value) {
            (Place::Schema | Place::Either, value @ Value::Object(_)) => each_schema(value, &path, visit)?,
            (Place::Named, Value::Object(named)) => {
                for (name, schema) in named {
                    each_schema(schema, &format!("{path}/{name}"), visit)?;
                }
            }
            (Place::List | Place::Either, Value::Array(list)) => {
                for (index, schema) in list.iter_mut().enumerate() {
                    each_schema(schema, &format!("{path}/{index}"), visit)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}
