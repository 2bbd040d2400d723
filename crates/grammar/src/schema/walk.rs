//! All schemas within a schema.

use serde_json::{Map, Value};

/// What a value of a schema holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SubschemaLayout {
    Schema,
    /// Schemas by the names of properties, patterns or definitions.
    Named,
    /// Schemas in a list.
    List,
    /// A schema, or a list of some.
    Either,
}

/// The schemas that a keyword's value holds, if any.
fn place(keyword: &str) -> Option<SubschemaLayout> {
    Some(match keyword {
        "properties" | "patternProperties" | "$defs" | "definitions" => SubschemaLayout::Named,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => SubschemaLayout::List,
        "additionalProperties" | "additionalItems" => SubschemaLayout::Schema,
        "items" => SubschemaLayout::Either,
        _ => return None,
    })
}

/// What is done with each schema, whose path it gets.
pub(super) type SchemaVisitor<'v, E> = dyn FnMut(&mut Map<String, Value>, &str) -> Result<(), E> + 'v;

/// Calls `visit` with every schema in a schema, itself included, and with the path of each. Nesting is checked before.
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
