//! Traversal of all subschemas.

use serde_json::{Map, Value};

/// Where a keyword's value contains schemas.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SubschemaLayout {
    Schema,
    /// A map of schemas, by names of properties, patterns or definitions.
    Named,
    /// A list of schemas.
    List,
    /// A schema, or a list of schemas (`items` up to draft 2019-09).
    Either,
}

/// Where the value of a keyword contains schemas, if it does.
fn place(keyword: &str) -> Option<SubschemaLayout> {
    Some(match keyword {
        "properties" | "patternProperties" | "$defs" | "definitions" => SubschemaLayout::Named,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => SubschemaLayout::List,
        "additionalProperties" | "additionalItems" => SubschemaLayout::Schema,
        "items" => SubschemaLayout::Either,
        _ => return None,
    })
}

/// Callback for each subschema, with its path.
pub(super) type SchemaVisitor<'v, E> = dyn FnMut(&mut Map<String, Value>, &str) -> Result<(), E> + 'v;

/// Calls `visit` for a schema and all its subschemas, outer ones first. Recursive: the nesting must
/// have been checked.
pub(super) fn each_schema<E>(
    schema: &mut Value,
    path: &str,
    visit: &mut SchemaVisitor<'_, E>,
) -> Result<(), E> {
    let Value::Object(object) = schema else { return Ok(()) };
    visit(object, path)?;
    for (keyword, value) in object {
        let Some(place) = place(keyword) else { continue };
        let path = format!("{path}/{keyword}");
        match (place, value) {
            (SubschemaLayout::Schema | SubschemaLayout::Either, value @ Value::Object(_)) => {
                each_schema(value, &path, visit)?
            }
            (SubschemaLayout::Named, Value::Object(named)) => {
                for (name, schema) in named {
                    each_schema(schema, &format!("{path}/{name}"), visit)?;
                }
            }
            (SubschemaLayout::List | SubschemaLayout::Either, Value::Array(list)) => {
                for (index, schema) in list.iter_mut().enumerate() {
                    each_schema(schema, &format!("{path}/{index}"), visit)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}
