//! Python's `==`, and lookup of dictionary keys by it.

use super::{Dict, SeqKind, Value};
use crate::error::{Error, Result};
use crate::meter::Meter;
use std::rc::Rc;

/// Whether two values are equal. The only possible error is running out of fuel.
pub(crate) fn equal(meter: &Meter, a: &Value, b: &Value) -> Result<bool> {
    meter.spend(1)?;
    Ok(match (a, b) {
        // Jinja2's `Undefined` compares by type, so two missing names are equal.
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(a), Value::Str(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            meter.touch(a.len())?;
            a.as_str() == b.as_str()
        }
        (Value::Seq(a), Value::Seq(b)) => {
            // Ends the comparison of a value with itself, which Python also decides by identity.
            if Rc::ptr_eq(a, b) {
                return Ok(true);
            }
            // A list never equals a tuple. Generators are compared by identity.
            if group(a.kind) != group(b.kind) || a.kind == SeqKind::Generator {
                return Ok(false);
            }
            if a.items().len() != b.items().len() {
                return Ok(false);
            }
            for (a, b) in a.items().iter().zip(b.items()) {
                if !equal(meter, a, b)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if Rc::ptr_eq(a, b) {
                return Ok(true);
            }
            if a.entries().len() != b.entries().len() {
                return Ok(false);
            }
            for (key, value) in a.entries() {
                let Some(other) = b.get(meter, key)? else { return Ok(false) };
                if !equal(meter, value, other)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Namespace(a), Value::Namespace(b)) => a == b,
        (Value::Function(a), Value::Function(b)) => a == b,
        (Value::Macro(a), Value::Macro(b)) => a == b,
        (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
        (Value::Method(a), Value::Method(b)) => Rc::ptr_eq(a, b),
        // True == 1 and 1 == 1.0, as in Python.
        _ => match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => a == b,
            _ => matches!((a.as_float(), b.as_float()), (Some(a), Some(b)) if a == b),
        },
    })
}

/// Kinds that can be equal. The pairs of `groupby` are named tuples in Jinja2.
fn group(kind: SeqKind) -> SeqKind {
    if kind == SeqKind::Group { SeqKind::Tuple } else { kind }
}

/// Refuses keys that Python cannot hash: lists and dictionaries.
pub(super) fn check_key(key: &Value) -> Result<()> {
    match key {
        Value::Dict(_) => Err(Error::value("a dict cannot be a key of a dict")),
        Value::Seq(seq) if seq.kind == SeqKind::List => Err(Error::value("a list cannot be a key of a dict")),
        _ => Ok(()),
    }
}

pub(super) fn position(entries: &[(Value, Value)], meter: &Meter, key: &Value) -> Result<Option<usize>> {
    for (at, (name, _)) in entries.iter().enumerate() {
        if equal(meter, name, key)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

impl Dict {
    pub(crate) fn get(&self, meter: &Meter, key: &Value) -> Result<Option<&Value>> {
        if let Some(text) = key.as_str() {
            return self.get_str(meter, text);
        }
        check_key(key)?;
        Ok(position(self.entries(), meter, key)?.map(|at| &self.entries()[at].1))
    }
}
