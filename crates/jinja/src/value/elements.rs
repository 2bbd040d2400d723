//! Iteration, length and `in`.

use super::{Seq, SeqBuilder, SeqKind, Value, equal};
use crate::error::{Error, Result};
use crate::meter::Meter;
use std::rc::Rc;

impl Value {
    /// The elements that a `for` loop visits.
    pub(crate) fn iterate(&self, meter: &Rc<Meter>) -> Result<Rc<Seq>> {
        match self {
            Value::Seq(seq) => take(seq, meter),
            Value::Dict(dict) => {
                let mut items = SeqBuilder::with_capacity(meter, dict.entries().len())?;
                for (key, _) in dict.entries() {
                    items.push(key.clone())?;
                }
                items.finish(SeqKind::List)
            }
            Value::Str(text) => {
                let mut items = SeqBuilder::new(meter)?;
                // One slice per character, so that each keeps its origin.
                for c in text.as_str().char_indices() {
                    items.push(Value::Str(text.slice(c.0..c.0 + c.1.len_utf8())))?;
                }
                items.finish(SeqKind::List)
            }
            // Jinja2's Undefined is an empty iterable of length 0: `for x in nothing` runs no
            // iteration.
            Value::Undefined(_) => SeqBuilder::new(meter)?.finish(SeqKind::List),
            other => Err(Error::value(format!("a value of type {} cannot be iterated", other.type_name()))),
        }
    }

    /// The number of elements, as `len` counts them.
    pub(crate) fn len(&self, meter: &Meter) -> Result<usize> {
        match self {
            Value::Seq(seq) => Ok(seq.items().len()),
            Value::Dict(dict) => Ok(dict.entries().len()),
            Value::Str(text) => text.char_count(meter),
            Value::Undefined(_) => Ok(0),
            other => Err(Error::value(format!("a value of type {} has no length", other.type_name()))),
        }
    }
}

/// Returns the elements and exhausts a generator.
fn take(seq: &Rc<Seq>, meter: &Rc<Meter>) -> Result<Rc<Seq>> {
    if seq.kind != SeqKind::Generator {
        return Ok(Rc::clone(seq));
    }
    let mut items = SeqBuilder::with_capacity(meter, seq.items().len())?;
    for item in seq.items() {
        items.push(item.clone())?;
    }
    seq.exhaust();
    items.finish(SeqKind::List)
}

/// `item in container`.
pub(crate) fn contains(meter: &Rc<Meter>, container: &Value, item: &Value) -> Result<bool> {
    match container {
        Value::Str(text) => {
            let Some(part) = item.as_str() else {
                let name = item.type_name();
                return Err(Error::value(format!(
                    "'in' a string needs a string on its left side, not {name}"
                )));
            };
            meter.touch(text.len() + part.len())?;
            Ok(text.as_str().contains(part))
        }
        Value::Dict(dict) => Ok(dict.get(meter, item)?.is_some()),
        // As in Python, `in` takes the elements of a generator up to the one that it looks for.
        Value::Seq(seq) if seq.kind == SeqKind::Generator => {
            while let Some(value) = seq.take_next() {
                if equal(meter, &value, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Seq(_) | Value::Undefined(_) => {
            for value in container.iterate(meter)?.items() {
                if equal(meter, value, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => Err(Error::value(format!("'in' does not support a value of type {}", other.type_name()))),
    }
}
