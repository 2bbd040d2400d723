//! printf-style formatting: `format % values`.

use super::Runtime;
use crate::error::{Error, Result};
use crate::python::{FormatSpec, number_at};
use crate::text::{Builder, TemplateString};
use crate::value::{SeqKind, Value};
use std::rc::Rc;

/// Formats a string as Python's `%` does.
pub(crate) fn percent(
    runtime: &Runtime<'_>,
    format: &TemplateString,
    values: &Value,
) -> Result<TemplateString> {
    let mut out = Builder::new(&runtime.meter)?;
    // `'%s' % x` formats x itself, unless x is a tuple.
    let single = [values.clone()];
    let mut fields = PercentFields {
        values: match values {
            Value::Seq(seq) if seq.kind == SeqKind::Tuple => seq.items(),
            _ => &single,
        },
        whole: values,
        used: 0,
        by_name: false,
    };
    let text = format.as_str();
    let mut at = 0;
    while let Some(found) = text[at..].find('%') {
        out.text(&format.slice(at..at + found))?;
        at += found + 1;
        at += field(runtime, &text[at..], &mut fields, &mut out)?;
    }
    out.text(&format.slice(at..text.len()))?;
    // CPython reports unused values only if the right side is not a mapping. It takes every object
    // with subscripts for one, except tuples and strings: `'x' % [1]` is 'x'.
    let is_mapping = match values {
        Value::Seq(seq) => seq.kind != SeqKind::Tuple,
        other => matches!(other, Value::Dict(_) | Value::Undefined(_)),
    };
    if fields.used < fields.values.len() && !fields.by_name && !is_mapping {
        return Err(Error::value("the format has fewer fields than values"));
    }
    Ok(out.finish())
}

struct PercentFields<'v> {
    values: &'v [Value],
    whole: &'v Value,
    used: usize,
    by_name: bool,
}

impl PercentFields<'_> {
    fn next(&mut self) -> Result<Value> {
        self.used += 1;
        let missing = || Error::value("the format has more fields than values");
        self.values.get(self.used - 1).cloned().ok_or_else(missing)
    }

    /// Reads a width or precision (digits or `*`) and returns it with its length in bytes.
    fn measure(&mut self, text: &str) -> Result<(usize, usize)> {
        if !text.starts_with('*') {
            return number_at(text);
        }
        let n = self.next()?.as_int().and_then(|n| usize::try_from(n).ok());
        Ok((n.ok_or_else(|| Error::value("a width of * needs a positive integer"))?, 1))
    }
}

/// Writes the field after a `%` and returns its length in bytes.
fn field(
    runtime: &Runtime<'_>,
    text: &str,
    fields: &mut PercentFields<'_>,
    out: &mut Builder,
) -> Result<usize> {
    let mut at = 0;
    let mut named = None;
    if text.starts_with('(') {
        let end = text.find(')').ok_or_else(|| Error::value("a name in a format is not closed"))?;
        named = Some(&text[1..end]);
        at = end + 1;
    }
    let mut spec = FormatSpec { align: Some('>'), ..FormatSpec::PLAIN };
    let mut zero = false;
    while let Some(flag) = text.as_bytes().get(at) {
        match flag {
            b'-' => spec.align = Some('<'),
            b'+' => spec.sign = '+',
            // `+` overrides a space, in either order.
            b' ' if spec.sign != '+' => spec.sign = ' ',
            b' ' => {}
            b'0' => zero = true,
            b'#' => spec.alternate = true,
            _ => break,
        }
        at += 1;
    }
    let (width, length) = fields.measure(&text[at..])?;
    spec.width = width;
    at += length;
    if text[at..].starts_with('.') {
        let (precision, length) = fields.measure(&text[at + 1..])?;
        spec.precision = Some(precision);
        at += 1 + length;
    }
    // C length modifiers are accepted and ignored, as in Python.
    at += text[at..].bytes().take_while(|b| matches!(b, b'l' | b'L' | b'h')).count();
    let kind = text[at..].chars().next().ok_or_else(|| Error::value("a format ends with %"))?;
    spec.kind = kind;
    if kind == '%' {
        out.push("%", false)?;
        return Ok(at + 1);
    }
    let value = match named {
        Some(name) => by_name(runtime, fields, name)?,
        None => fields.next()?,
    };
    // `-` overrides `0`; zeros go between sign and digits.
    if zero && spec.align == Some('>') && !matches!(kind, 's' | 'r' | 'a' | 'c') {
        (spec.fill, spec.align) = ('0', Some('='));
    }
    write(runtime, &spec, &value, out)?;
    Ok(at + kind.len_utf8())
}

fn by_name(runtime: &Runtime<'_>, fields: &mut PercentFields<'_>, name: &str) -> Result<Value> {
    fields.by_name = true;
    let Value::Dict(dict) = fields.whole else {
        return Err(Error::value("a format with names needs a dict"));
    };
    let dict = Rc::clone(dict);
    let found = dict.get_str(&runtime.meter, name)?.cloned();
    found.ok_or_else(|| Error::value("a name in the format is missing from the dict"))
}

fn write(runtime: &Runtime<'_>, spec: &FormatSpec, value: &Value, out: &mut Builder) -> Result<()> {
    match spec.kind {
        's' | 'r' | 'a' => spec.text(&runtime.shown(value, spec.kind)?, out),
        'c' if value.as_str().is_some_and(|text| text.chars().count() == 1) => {
            spec.text(&runtime.to_text(value)?, out)
        }
        'd' | 'i' | 'u' => {
            runtime.defined(value)?;
            // `'%d' % 3.7` is 3; `%x` and `%o` raise for floats.
            let whole = match value {
                Value::Float(f) if f.is_finite() && f.abs() < 1e38 => Value::Int(f.trunc() as i128),
                other => other.clone(),
            };
            FormatSpec { kind: 'd', ..*spec }.number(&whole, out)
        }
        'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'c' => {
            runtime.defined(value)?;
            spec.number(value, out)
        }
        other => Err(Error::value(format!("unknown format type {other:?}"))),
    }
}
