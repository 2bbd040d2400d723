//! Arguments that several filters share.

use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::text::TemplateString;
use crate::value::Value;

/// The `attribute` argument: a path such as `function.name` into each element (Jinja2's
/// `make_attrgetter`).
pub(super) enum AttributePath {
    /// A key that is not a string, such as an index.
    Key(Value),
    Names(Vec<Value>),
}

impl AttributePath {
    pub(super) fn new(runtime: &Runtime<'_>, attribute: &Value) -> Result<AttributePath> {
        let Value::Str(text) = attribute else { return Ok(AttributePath::Key(attribute.clone())) };
        let mut names = Vec::new();
        for part in text.as_str().split('.') {
            // A path is followed once per element, so its length multiplies the work.
            if names.len() == 64 {
                return Err(Error::limit("an attribute has more than 64 parts"));
            }
            names.push(match part.parse::<i128>() {
                // `parse` accepts a sign; Jinja2 treats only digits as an index.
                Ok(n) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(n),
                _ => Value::Str(TemplateString::trusted(&runtime.meter, part)?),
            });
        }
        Ok(AttributePath::Names(names))
    }

    pub(super) fn follow(&self, runtime: &mut Runtime<'_>, item: &Value) -> Result<Value> {
        match self {
            AttributePath::Key(key) => runtime.subscript(item, key),
            AttributePath::Names(names) => {
                let mut value = item.clone();
                for name in names {
                    value = runtime.subscript(&value, name)?;
                }
                Ok(value)
            }
        }
    }
}

/// An integer argument, or its default.
pub(super) fn integer(runtime: &Runtime<'_>, value: Option<&Value>, default: i128) -> Result<i128> {
    match value {
        None => Ok(default),
        Some(value) => {
            runtime.defined(value)?;
            value.as_int().ok_or_else(|| {
                Error::value(format!("an integer is needed, not a value of type {}", value.type_name()))
            })
        }
    }
}

pub(super) fn flag(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_true)
}
