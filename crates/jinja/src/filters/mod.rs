//! Filters.

mod numbers;
mod order;
mod select;
mod sequence;
mod text;

use crate::error::{Error, Result};
use crate::runtime::{Args, Runtime};
use crate::text::Text;
use crate::value::Value;

/// A filter: the value before the bar, and the arguments.
pub(crate) type Filter = fn(&mut Runtime<'_>, Value, Args) -> Result<Value>;

/// The filter of a name.
pub(crate) fn find(name: &str) -> Option<Filter> {
    Some(match name {
        "abs" => numbers::abs,
        "attr" => sequence::attr,
        "batch" => sequence::batch,
        "capitalize" => text::capitalize,
        "center" => text::center,
        "count" | "length" => sequence::length,
        "d" | "default" => sequence::default,
        "dictsort" => order::dictsort,
        "e" | "escape" | "forceescape" => text::escape,
        "first" => sequence::first,
        "float" => numbers::float,
        "format" => text::format,
        "groupby" => order::groupby,
        "indent" => text::indent,
        "int" => numbers::int,
        "items" => sequence::items,
        "join" => sequence::join,
        "last" => sequence::last,
        "list" => sequence::list,
        "lower" => text::lower,
        "map" => select::map,
        "max" => order::max,
        "min" => order::min,
        "pprint" => text::pprint,
        "reject" => select::reject,
        "rejectattr" => select::rejectattr,
        "replace" => text::replace,
        "reverse" => sequence::reverse,
        "round" => numbers::round,
        "safe" | "string" => text::string,
        "select" => select::select,
        "selectattr" => select::selectattr,
        "slice" => sequence::slice,
        "sort" => order::sort,
        "sum" => numbers::sum,
        "title" => text::title,
        "tojson" => text::tojson,
        "trim" => text::trim,
        "truncate" => text::truncate,
        "unique" => order::unique,
        "upper" => text::upper,
        "urlencode" => text::urlencode,
        "wordcount" => text::wordcount,
        _ => return None,
    })
}

/// A path such as `function.name` into each element of a list.
pub(crate) enum Path {
    /// A key that is no text: a position.
    Key(Value),
    Names(Vec<Value>),
}

impl Path {
    pub(crate) fn new(runtime: &Runtime<'_>, attribute: &Value) -> Result<Path> {
        let Value::Str(text) = attribute else { return Ok(Path::Key(attribute.clone())) };
        let mut names = Vec::new();
        for part in text.as_str().split('.') {
            if names.len() == 64 {
                return Err(Error::limit("an attribute has more than 64 parts"));
            }
            names.push(match part.parse::<i128>() {
                Ok(n) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(n),
                _ => Value::Str(Text::trusted(&runtime.meter, part)?),
            });
        }
        Ok(Path::Names(names))
    }

    pub(crate) fn follow(&self, runtime: &mut Runtime<'_>, item: &Value) -> Result<Value> {
        match self {
            Path::Key(key) => runtime.subscript(item, key),
            Path::Names(names) => {
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
fn integer(runtime: &Runtime<'_>, value: Option<&Value>, default: i128) -> Result<i128> {
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

/// A flag.
fn flag(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_true)
}
