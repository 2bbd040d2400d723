//! Number filters.

use super::arguments::{AttributePath, integer};
use crate::ast::ArithmeticOperator;
use crate::error::{Error, Result};
use crate::python::{parse_float, parse_integer};
use crate::runtime::{Args, Runtime};
use crate::value::Value;

/// `abs`.
pub(super) fn abs(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("abs", [])?;
    runtime.defined(&value)?;
    match (&value, value.as_int()) {
        (Value::Float(f), _) => Ok(Value::Float(f.abs())),
        (_, Some(n)) => n.checked_abs().map(Value::Int).ok_or_else(|| Error::value("too large for abs")),
        _ => Err(Error::value(format!("abs needs a number, not a value of type {}", value.type_name()))),
    }
}

/// `int(default, base)`: the default if the value is not a number.
pub(super) fn int(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [default, base] = args.bind("int", ["default", "base"])?;
    runtime.defined(&value)?;
    let base = integer(runtime, base.as_ref(), 10)?;
    let default = default.unwrap_or(Value::Int(0));
    let float = match &value {
        Value::Float(f) => Some(*f),
        Value::Str(text) => {
            runtime.meter.touch(text.len())?;
            // parse_integer copies its text several times without the meter. CPython's int() has a
            // limit too: 4300 digits.
            if text.len() > 4096 {
                return Err(Error::limit("a number has more than 4096 digits"));
            }
            let base = u32::try_from(base).ok().filter(|base| *base == 0 || (2..=36).contains(base));
            let base = base.ok_or_else(|| Error::value("the base of int must be 0 or from 2 to 36"))?;
            match parse_integer(text.as_str(), base) {
                Some(Ok(n)) => return Ok(Value::Int(n)),
                Some(Err(())) => return Err(Error::value("an integer is larger than 127 bits")),
                None => parse_float(text.as_str()),
            }
        }
        other => return Ok(other.as_int().map_or(default, Value::Int)),
    };
    match float.filter(|f| f.is_finite()) {
        // i128::MAX is 1.7e38; a larger float would saturate silently.
        Some(f) if f.abs() < 1e38 => Ok(Value::Int(f.trunc() as i128)),
        Some(_) => Err(Error::value("an integer is larger than 127 bits")),
        None => Ok(default),
    }
}

/// `float(default)`.
pub(super) fn float(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [default] = args.bind("float", ["default"])?;
    runtime.defined(&value)?;
    let number = match &value {
        Value::Str(text) => {
            runtime.meter.touch(text.len())?;
            if text.len() > 4096 {
                return Err(Error::limit("a number has more than 4096 digits"));
            }
            parse_float(text.as_str())
        }
        other => other.as_float(),
    };
    Ok(number.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
}

/// `round(precision, method)`.
pub(super) fn round(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    runtime.defined(&value)?;
    // Beyond the exponent range of f64 more digits change nothing, and i32 must hold the value.
    let precision = integer(runtime, precision.as_ref(), 0)?.clamp(-400, 400) as i32;
    let method = method.as_ref().and_then(Value::as_str).unwrap_or("common").to_owned();
    let Some(f) = value.as_float() else {
        return Err(Error::value(format!("round needs a number, not a value of type {}", value.type_name())));
    };
    let factor = 10f64.powi(precision);
    match method.as_str() {
        "common" => match value.as_int() {
            // `round` of an integer is an integer in Python.
            Some(n) if precision >= 0 => Ok(Value::Int(n)),
            // Python rounds halves to even.
            Some(_) => Ok(Value::Int(((f * factor).round_ties_even() / factor) as i128)),
            None if !f.is_finite() => Ok(value),
            None if precision >= 0 => {
                // Python rounds the exact decimal value. `(f * factor).round() / factor` would give
                // 2.68 for 2.675, which is stored as 2.67499….
                let text = format!("{f:.*}", precision.unsigned_abs() as usize);
                Ok(Value::Float(text.parse().unwrap_or(f)))
            }
            None => Ok(Value::Float((f * factor).round_ties_even() / factor)),
        },
        "ceil" => Ok(Value::Float((f * factor).ceil() / factor)),
        "floor" => Ok(Value::Float((f * factor).floor() / factor)),
        _ => Err(Error::value("unknown method of round: expected common, ceil or floor")),
    }
}

/// `sum(attribute, start)`.
pub(super) fn sum(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
    let path = match attribute {
        None | Some(Value::None) => None,
        Some(attribute) => Some(AttributePath::new(runtime, &attribute)?),
    };
    let mut total = start.unwrap_or(Value::Int(0));
    for item in value.iterate(&runtime.meter)?.items() {
        let item = match &path {
            Some(path) => path.follow(runtime, item)?,
            None => item.clone(),
        };
        // Python's `sum` refuses a string as start, because it would copy the text once per
        // element.
        if matches!(total, Value::Str(_)) {
            return Err(Error::value("sum does not support strings; use join"));
        }
        total = runtime.operate(ArithmeticOperator::Add, &total, &item)?;
    }
    Ok(total)
}
