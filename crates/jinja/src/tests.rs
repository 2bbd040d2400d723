//! Jinja tests: the names after `is`.

use crate::ast::{ArithmeticOperator, ComparisonOperator};
use crate::error::{Error, Result};
use crate::methods;
use crate::runtime::{Args, Runtime, TestFn};
use crate::value::{SeqKind, Value, equal};

pub(crate) fn find(name: &str) -> Option<TestFn> {
    Some(match name {
        "defined" => |_, v, _| Ok(!v.is_undefined()),
        "undefined" => |_, v, _| Ok(v.is_undefined()),
        "none" => |_, v, _| Ok(matches!(v, Value::None)),
        "boolean" => |_, v, _| Ok(matches!(v, Value::Bool(_))),
        "true" => |_, v, _| Ok(matches!(v, Value::Bool(true))),
        "false" => |_, v, _| Ok(matches!(v, Value::Bool(false))),
        // Jinja2's `integer` excludes booleans, `number` includes them.
        "integer" => |_, v, _| Ok(matches!(v, Value::Int(_))),
        "float" => |_, v, _| Ok(matches!(v, Value::Float(_))),
        "number" => |_, v, _| Ok(matches!(v, Value::Bool(_) | Value::Int(_) | Value::Float(_))),
        "string" => |_, v, _| Ok(matches!(v, Value::Str(_))),
        "mapping" => |_, v, _| Ok(matches!(v, Value::Dict(_))),
        "iterable" => |_, v, _| {
            Ok(matches!(
                v,
                // Undefined defines `__iter__`, `__len__` and `__call__` in Jinja2, so it passes
                // the next three tests.
                Value::Str(_) | Value::Seq(_) | Value::Dict(_) | Value::Loop(_) | Value::Undefined(_)
            ))
        },
        "sequence" => |_, v, _| {
            Ok(match v {
                Value::Seq(seq) => seq.kind.has_positions(),
                other => matches!(other, Value::Str(_) | Value::Dict(_) | Value::Undefined(_)),
            })
        },
        "callable" => |_, v, _| {
            Ok(matches!(
                v,
                Value::Function(_)
                    | Value::Macro(_)
                    | Value::Method(_)
                    | Value::Loop(_)
                    | Value::Undefined(_)
            ))
        },
        // Rendering has no autoescape, so no text is marked as escaped.
        "escaped" => |_, _, _| Ok(false),
        "lower" => |r, v, _| methods::is_cased(&r.meter, &r.to_text(v)?, false),
        "upper" => |r, v, _| methods::is_cased(&r.meter, &r.to_text(v)?, true),
        "odd" => |r, v, _| leaves(r, v, &Value::Int(2), 1),
        "even" => |r, v, _| leaves(r, v, &Value::Int(2), 0),
        "divisibleby" => |r, v, args| leaves(r, v, only(args)?, 0),
        "sameas" => |r, v, args| same(r, v, only(args)?),
        "eq" | "==" | "equalto" => |r, v, args| equal(&r.meter, v, only(args)?),
        "ne" | "!=" => |r, v, args| Ok(!equal(&r.meter, v, only(args)?)?),
        "lt" | "<" | "lessthan" => |r, v, args| r.compares(ComparisonOperator::Lt, v, only(args)?),
        "le" | "<=" => |r, v, args| r.compares(ComparisonOperator::Le, v, only(args)?),
        "gt" | ">" | "greaterthan" => |r, v, args| r.compares(ComparisonOperator::Gt, v, only(args)?),
        "ge" | ">=" => |r, v, args| r.compares(ComparisonOperator::Ge, v, only(args)?),
        "in" => |r, v, args| r.compares(ComparisonOperator::In, v, only(args)?),
        "filter" => |r, v, _| Ok(v.as_str().is_some_and(|name| (r.find.filter)(name).is_some())),
        "test" => |_, v, _| Ok(v.as_str().is_some_and(|name| find(name).is_some())),
        _ => return None,
    })
}

/// The single argument of a test.
fn only(args: &Args) -> Result<&Value> {
    match args.positional.as_slice() {
        [value] => Ok(value),
        _ => Err(Error::value("a test needs one argument")),
    }
}

/// Whether `value % by` equals `rest`.
fn leaves(runtime: &mut Runtime<'_>, value: &Value, by: &Value, rest: i128) -> Result<bool> {
    let found = runtime.operate(ArithmeticOperator::Rem, value, by)?;
    equal(&runtime.meter, &found, &Value::Int(rest))
}

/// `sameas`. Containers are compared by identity; other values of the same type by equality,
/// because strings and numbers have no identity here.
fn same(runtime: &Runtime<'_>, a: &Value, b: &Value) -> Result<bool> {
    let comparable = match (a, b) {
        (Value::Seq(a), Value::Seq(b)) => {
            return Ok(std::rc::Rc::ptr_eq(a, b) && a.kind != SeqKind::Generator);
        }
        (Value::Dict(a), Value::Dict(b)) => return Ok(std::rc::Rc::ptr_eq(a, b)),
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    };
    Ok(comparable && equal(&runtime.meter, a, b)?)
}
