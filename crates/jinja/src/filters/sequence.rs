//! Sequence filters.

use super::arguments::{AttributePath, flag, integer};
use crate::error::{Error, Result};
use crate::methods;
use crate::runtime::{Args, Runtime};
use crate::text::Builder;
use crate::value::{SeqBuilder, SeqKind, UndefinedOrigin, Value};

/// `attr(name)`: an attribute, never an element.
pub(super) fn attr(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [name] = args.bind("attr", ["name"])?;
    runtime.defined(&value)?;
    let name = match &name {
        Some(name) => runtime.to_text(name)?,
        None => return Err(Error::value("attr needs a name")),
    };
    let found = runtime.own_attribute(&value, name.as_str())?;
    Ok(found.unwrap_or(Value::Undefined(UndefinedOrigin::Element)))
}

/// `batch(linecount, fill_with)`: chunks of `linecount` elements, the last one padded.
pub(super) fn batch(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [count, fill] = args.bind("batch", ["linecount", "fill_with"])?;
    let count = integer(runtime, count.as_ref(), 0)?;
    let Some(count) = usize::try_from(count).ok().filter(|count| *count > 0) else {
        return Err(Error::value("batch needs a number of elements above 0"));
    };
    let mut batches = SeqBuilder::new(&runtime.meter)?;
    let items = value.iterate(&runtime.meter)?;
    for chunk in items.items().chunks(count) {
        let mut batch = SeqBuilder::with_capacity(&runtime.meter, chunk.len())?;
        for item in chunk {
            batch.push(item.clone())?;
        }
        // Only the last chunk can be short.
        if let Some(fill) = fill.as_ref().filter(|fill| !matches!(fill, Value::None)) {
            // `count` may be any number. `push` charges every element, so the loop ends at a limit.
            for _ in chunk.len()..count {
                batch.push(fill.clone())?;
            }
        }
        batches.push(batch.list()?)?;
    }
    batches.of_kind(SeqKind::Generator)
}

/// `slice(slices, fill_with)`: `slices` lists of nearly equal length.
pub(super) fn slice(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [count, fill] = args.bind("slice", ["slices", "fill_with"])?;
    let count = integer(runtime, count.as_ref(), 0)?;
    let Some(count) = usize::try_from(count).ok().filter(|count| *count > 0) else {
        return Err(Error::value("slice needs a number of lists above 0"));
    };
    let items = value.iterate(&runtime.meter)?;
    let (each, extra) = (items.items().len() / count, items.items().len() % count);
    let mut rest = items.items();
    let mut slices = SeqBuilder::new(&runtime.meter)?;
    for number in 0..count {
        let (part, after) = rest.split_at((each + usize::from(number < extra)).min(rest.len()));
        rest = after;
        let mut slice = SeqBuilder::with_capacity(&runtime.meter, part.len())?;
        for item in part {
            slice.push(item.clone())?;
        }
        if let Some(fill) = fill.as_ref().filter(|fill| !matches!(fill, Value::None))
            // Jinja2 pads every list after the longer ones, even if all lists have the same length.
            && number >= extra
        {
            slice.push(fill.clone())?;
        }
        slices.push(slice.list()?)?;
    }
    slices.of_kind(SeqKind::Generator)
}

/// `length`.
pub(super) fn length(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("length", [])?;
    Ok(Value::Int(value.len(&runtime.meter)? as i128))
}

/// `default(default_value, boolean)`.
pub(super) fn default(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [default, boolean] = args.bind("default", ["default_value", "boolean"])?;
    // With `boolean`, all false values are replaced, not only undefined ones.
    if value.is_undefined() || (flag(boolean.as_ref()) && !value.is_true()) {
        return match default {
            Some(default) => Ok(default),
            None => Value::string(&runtime.meter, ""),
        };
    }
    Ok(value)
}

/// `first`.
pub(super) fn first(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("first", [])?;
    // Python's `next(iter(value))` leaves the other elements in a generator.
    if let Value::Seq(seq) = &value
        && seq.kind == SeqKind::Generator
    {
        return Ok(seq.take_next().unwrap_or(Value::Undefined(UndefinedOrigin::Element)));
    }
    let items = value.iterate(&runtime.meter)?;
    Ok(items.items().first().cloned().unwrap_or(Value::Undefined(UndefinedOrigin::Element)))
}

/// `last`.
pub(super) fn last(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("last", [])?;
    let items = value.iterate(&runtime.meter)?;
    Ok(items.items().last().cloned().unwrap_or(Value::Undefined(UndefinedOrigin::Element)))
}

/// `items`: key-value pairs of a dictionary.
pub(super) fn items(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("items", [])?;
    match &value {
        Value::Dict(dict) => methods::pairs(runtime, dict, SeqKind::Generator),
        // Jinja2's `items` yields nothing for an undefined value.
        Value::Undefined(_) => SeqBuilder::new(&runtime.meter)?.of_kind(SeqKind::Generator),
        other => Err(Error::value(format!("items needs a dict, not a value of type {}", other.type_name()))),
    }
}

/// `join(d, attribute)`.
pub(super) fn join(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
    let separator = match &separator {
        Some(separator) => Some(runtime.to_text(separator)?),
        None => None,
    };
    let path = match attribute {
        None | Some(Value::None) => None,
        Some(attribute) => Some(AttributePath::new(runtime, &attribute)?),
    };
    let mut builder = Builder::new(&runtime.meter)?;
    for (at, item) in value.iterate(&runtime.meter)?.items().iter().enumerate() {
        if at > 0
            && let Some(separator) = &separator
        {
            builder.text(separator)?;
        }
        let text = match &path {
            Some(path) => {
                let found = path.follow(runtime, item)?;
                runtime.to_text(&found)?
            }
            None => runtime.to_text(item)?,
        };
        builder.text(&text)?;
    }
    Ok(Value::Str(builder.finish()))
}

/// `list`.
pub(super) fn list(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("list", [])?;
    let found = value.iterate(&runtime.meter)?;
    let mut items = SeqBuilder::with_capacity(&runtime.meter, found.items().len())?;
    for item in found.items() {
        items.push(item.clone())?;
    }
    items.list()
}

/// `reverse` of a list or a string.
pub(super) fn reverse(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("reverse", [])?;
    if let Value::Str(text) = &value {
        let mut builder = Builder::with_capacity(&runtime.meter, text.len())?;
        for (at, c) in text.as_str().char_indices().rev() {
            // By slices instead of characters, so that each keeps its origin.
            builder.text(&text.slice(at..at + c.len_utf8()))?;
        }
        return Ok(Value::Str(builder.finish()));
    }
    let found = value.iterate(&runtime.meter)?;
    let mut items = SeqBuilder::with_capacity(&runtime.meter, found.items().len())?;
    for item in found.items().iter().rev() {
        items.push(item.clone())?;
    }
    // Jinja2 returns the iterator of `reversed()`, not a list.
    items.of_kind(SeqKind::Generator)
}
