//! Attributes, subscripts and slices.

use super::{Runtime, too_large};
use crate::error::{Error, Result};
use crate::symbols::Symbol;
use crate::text::{Builder, TemplateString};
use crate::value::{LoopState, Method, RangeBounds, SeqBuilder, SeqKind, UndefinedOrigin, Value, method_of};
use std::rc::Rc;

impl Runtime<'_> {
    /// `value.name`: an attribute or method, otherwise an element of that name (Jinja2's
    /// `getattr`).
    #[inline(never)]
    pub(crate) fn attribute(&mut self, value: &Value, symbol: Symbol) -> Result<Value> {
        let found = self.attribute_by_name(value, self.name(symbol))?;
        Ok(found.unwrap_or(Value::Undefined(UndefinedOrigin::Attribute(symbol))))
    }

    /// [`Runtime::attribute`] for a name that is not in the source.
    pub(crate) fn attribute_by_name(&mut self, value: &Value, name: &str) -> Result<Option<Value>> {
        self.defined(value)?;
        // `d.items` is the method even if the dictionary has the key "items"; `d['items']` is the
        // element.
        if let Some(found) = self.own_attribute(value, name)? {
            return Ok(Some(found));
        }
        match value {
            Value::Dict(dict) => Ok(dict.get_str(&self.meter, name)?.cloned()),
            _ => Ok(None),
        }
    }

    /// Attributes and methods that Python's `getattr` finds.
    pub(crate) fn own_attribute(&mut self, value: &Value, name: &str) -> Result<Option<Value>> {
        match value {
            Value::Namespace(space) => self.space_entry(*space, name),
            Value::Loop(state) => match loop_attribute(state, name) {
                Some(found) => Ok(Some(found)),
                None => self.method(value, name),
            },
            // The named fields of Jinja2's _GroupTuple.
            Value::Seq(seq) if seq.kind == SeqKind::Group && matches!(name, "grouper" | "list") => {
                Ok(seq.items().get(usize::from(name == "list")).cloned())
            }
            Value::Macro(macro_) if name == "name" => {
                Value::string(&self.meter, self.name(macro_.name)).map(Some)
            }
            _ => self.method(value, name),
        }
    }

    fn method(&self, value: &Value, name: &str) -> Result<Option<Value>> {
        let Some(name) = method_of(value, name) else { return Ok(None) };
        let charge = self.meter.charge(size_of::<Method>() + 16)?;
        Ok(Some(Value::Method(Rc::new(Method { receiver: value.clone(), name, _charge: charge }))))
    }

    /// An attribute of a namespace.
    fn space_entry(&self, space: u32, name: &str) -> Result<Option<Value>> {
        let entries = &self.spaces[space as usize].entries;
        self.meter.spend(entries.len() / 4 + 1)?;
        Ok(entries.iter().find(|(other, _)| other.as_str() == name).map(|(_, value)| value.clone()))
    }

    /// `namespace.name = value`.
    pub(crate) fn set_attribute(&mut self, space: u32, symbol: Symbol, value: Value) -> Result<()> {
        let name = self.name(symbol);
        let entries = &mut self.spaces[space as usize].entries;
        self.meter.spend(entries.len() / 4 + 1)?;
        match entries.iter_mut().find(|(other, _)| other.as_str() == name) {
            Some((_, old)) => *old = value,
            None => {
                let name = TemplateString::trusted(&self.meter, name)?;
                // Twice, because `Vec` doubles its capacity. Not released: namespaces live as long
                // as the rendering.
                self.meter.reserve(2 * size_of::<(TemplateString, Value)>())?;
                entries.push((name, value));
            }
        }
        Ok(())
    }

    /// `value[key]`: an element, otherwise an attribute of that name (Jinja2's `getitem`).
    #[inline(never)]
    pub(crate) fn subscript(&mut self, value: &Value, key: &Value) -> Result<Value> {
        self.defined(value)?;
        let found = match (value, key.as_int()) {
            (Value::Dict(dict), _) => match key {
                // Python raises TypeError for an unhashable key. Jinja2's getitem catches it and
                // returns undefined.
                Value::Dict(_) | Value::Seq(_) if dict.entries().is_empty() => None,
                Value::Dict(_) => None,
                Value::Seq(seq) if seq.kind == SeqKind::List => None,
                _ => dict.get(&self.meter, key)?.cloned(),
            },
            (Value::Seq(seq), Some(index)) if seq.kind.has_positions() => {
                position(index, seq.items().len()).and_then(|at| seq.items().get(at).cloned())
            }
            (Value::Str(text), Some(index)) => self.character(text, index)?,
            _ => None,
        };
        if let Some(found) = found {
            return Ok(found);
        }
        let attribute = match key {
            Value::Str(name) => self.own_attribute(value, name.as_str())?,
            _ => None,
        };
        Ok(attribute.unwrap_or_else(|| self.missing(key)))
    }

    /// The undefined value of a missing element. It carries the key's name if the template mentions
    /// it.
    fn missing(&self, key: &Value) -> Value {
        let symbol = key.as_str().filter(|name| name.len() < 64).and_then(|name| self.symbol(name));
        Value::Undefined(symbol.map_or(UndefinedOrigin::Element, UndefinedOrigin::Attribute))
    }

    fn character(&self, text: &TemplateString, index: i128) -> Result<Option<Value>> {
        let Some(at) = position(index, text.char_count(&self.meter)?) else { return Ok(None) };
        // Finding a character in UTF-8 scans the text.
        self.meter.touch(if text.is_ascii() { 1 } else { text.len() })?;
        let range = char_range(text, at, at + 1);
        Ok(Some(Value::Str(text.slice(range))))
    }

    /// `value[start:stop:step]`.
    #[inline(never)]
    pub(crate) fn slice(&mut self, value: &Value, bounds: [Option<i128>; 3]) -> Result<Value> {
        self.defined(value)?;
        if bounds[2] == Some(0) {
            return Err(Error::value("the step of a slice cannot be 0"));
        }
        match value {
            Value::Seq(seq) if seq.kind.has_positions() => {
                let window = SliceWindow::new(bounds, seq.items().len());
                let (first, count, step) = window.resolve();
                let mut items = SeqBuilder::with_capacity(&self.meter, count)?;
                for at in positions(first, count, step) {
                    items.push(seq.items()[at].clone())?;
                }
                if let Some(range) = seq.range() {
                    return items.range(window.of_range(range).ok_or_else(too_large)?);
                }
                // Slicing a named tuple gives a plain tuple in Python.
                items.of_kind(if seq.kind == SeqKind::Group { SeqKind::Tuple } else { seq.kind })
            }
            Value::Str(text) => {
                let (first, count, step) = SliceWindow::new(bounds, text.char_count(&self.meter)?).resolve();
                self.text_slice(text, first, count, step)
            }
            other => Err(Error::value(format!("a value of type {} cannot be sliced", other.type_name()))),
        }
    }

    fn text_slice(&self, text: &TemplateString, first: usize, count: usize, step: i128) -> Result<Value> {
        self.meter.touch(text.len())?;
        if step == 1 {
            return Ok(Value::Str(text.slice(char_range(text, first, first + count))));
        }
        // Random access by character needs the byte positions. They are charged while they exist.
        let ends = self.meter.charge(if text.is_ascii() { 0 } else { 4 * text.len() })?;
        let starts: Vec<u32> = if text.is_ascii() {
            Vec::new()
        } else {
            text.as_str().char_indices().map(|(at, _)| at as u32).collect()
        };
        let mut builder = Builder::with_capacity(&self.meter, count)?;
        for at in positions(first, count, step) {
            let start = starts.get(at).map_or(at, |at| *at as usize);
            let length = text.as_str()[start..].chars().next().map_or(0, char::len_utf8);
            builder.text(&text.slice(start..start + length))?;
        }
        drop(ends);
        Ok(Value::Str(builder.finish()))
    }
}

/// An attribute of `loop`.
fn loop_attribute(state: &LoopState, name: &str) -> Option<Value> {
    let (turn, count) = (state.turn.get(), state.len());
    let number = |n: usize| Value::Int(n as i128);
    let item = |at: usize| state.items.items().get(at).cloned();
    Some(match name {
        "index" => number(turn + 1),
        "index0" => number(turn),
        "revindex" => number(count.saturating_sub(turn)),
        "revindex0" => number(count.saturating_sub(turn + 1)),
        "first" => Value::Bool(turn == 0),
        "last" => Value::Bool(turn + 1 == count),
        "length" => number(count),
        "depth" => number(state.depth as usize + 1),
        "depth0" => number(state.depth as usize),
        "previtem" => {
            turn.checked_sub(1).and_then(item).unwrap_or(Value::Undefined(UndefinedOrigin::Element))
        }
        "nextitem" => item(turn + 1).unwrap_or(Value::Undefined(UndefinedOrigin::Element)),
        _ => return None,
    })
}

/// Resolves an index; negative ones count from the end.
fn position(index: i128, count: usize) -> Option<usize> {
    let at = if index < 0 { index.checked_add(count as i128)? } else { index };
    usize::try_from(at).ok().filter(|at| *at < count)
}

/// Byte range between two character positions.
fn char_range(text: &TemplateString, from: usize, to: usize) -> std::ops::Range<usize> {
    if text.is_ascii() {
        return from..to;
    }
    let mut starts = text.as_str().char_indices().map(|(at, _)| at);
    let start = starts.by_ref().nth(from).unwrap_or(text.len());
    if to <= from {
        return start..start;
    }
    // `nth` above has consumed the characters up to `from`.
    let end = starts.nth(to - from - 1).unwrap_or(text.len());
    start..end
}

/// The bounds of a slice of a sequence, clamped to its positions (CPython's
/// `PySlice_AdjustIndices`). With a negative step, -1 stands for "before the first element".
struct SliceWindow {
    start: i128,
    stop: i128,
    step: i128,
}

impl SliceWindow {
    fn new(bounds: [Option<i128>; 3], count: usize) -> SliceWindow {
        let length = count as i128;
        let step = bounds[2].unwrap_or(1);
        let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
        let clamp = |bound: i128| {
            // Bounds may be any 128-bit number.
            let at = if bound < 0 { bound.saturating_add(length) } else { bound };
            at.clamp(low, high)
        };
        let start = bounds[0].map_or(if step > 0 { low } else { high }, clamp);
        let stop = bounds[1].map_or(if step > 0 { high } else { low }, clamp);
        SliceWindow { start, stop, step }
    }

    /// First position, number of positions, and step.
    fn resolve(&self) -> (usize, usize, i128) {
        let SliceWindow { start, stop, step } = *self;
        let span = if step > 0 { stop - start } else { start - stop };
        let width = step.unsigned_abs() as i128;
        // `width` is negative only for a step of i128::MIN, which selects at most one element.
        let number = if span <= 0 || width <= 0 { i128::from(span > 0) } else { (span - 1) / width + 1 };
        (start.max(0) as usize, number as usize, step)
    }

    /// The bounds of the range that a slice of a range is; `None` if one exceeds 128 bits.
    fn of_range(&self, range: &RangeBounds) -> Option<RangeBounds> {
        let at = |position: i128| position.checked_mul(range.step)?.checked_add(range.start);
        Some(RangeBounds {
            start: at(self.start)?,
            end: at(self.stop)?,
            step: self.step.checked_mul(range.step)?,
        })
    }
}

fn positions(first: usize, count: usize, step: i128) -> impl Iterator<Item = usize> {
    (0..count as i128).map(move |n| (first as i128 + n.saturating_mul(step)) as usize)
}
