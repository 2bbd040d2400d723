//! `str.format`.

use crate::error::{Error, Result};
use crate::python::{FormatSpec, number_at};
use crate::runtime::{Args, Runtime};
use crate::text::{Builder, TemplateString};
use crate::value::Value;

/// How the fields of a format choose positional arguments. Python refuses a mix of `{}` and `{0}`.
enum FieldNumbering {
    Unused,
    /// Number of the `{}` so far.
    Automatic(usize),
    Explicit,
}

impl FieldNumbering {
    /// The number of the next `{}`.
    fn next(&mut self) -> Result<usize> {
        let next = match self {
            FieldNumbering::Unused => 0,
            FieldNumbering::Automatic(used) => *used,
            FieldNumbering::Explicit => {
                return Err(Error::value(
                    "a format cannot switch from manual field specification to automatic field numbering",
                ));
            }
        };
        *self = FieldNumbering::Automatic(next + 1);
        Ok(next)
    }

    /// Notes a field with a number of its own.
    fn explicit(&mut self) -> Result<()> {
        if let FieldNumbering::Automatic(_) = self {
            return Err(Error::value(
                "a format cannot switch from automatic field numbering to manual field specification",
            ));
        }
        *self = FieldNumbering::Explicit;
        Ok(())
    }
}

/// Python's `str.format`, without nested fields (`{:{width}}`).
pub(super) fn format(
    runtime: &mut Runtime<'_>,
    format: &TemplateString,
    args: &Args,
) -> Result<TemplateString> {
    let mut out = Builder::new(&runtime.meter)?;
    let text = format.as_str();
    let mut at = 0;
    let mut numbering = FieldNumbering::Unused;
    while let Some(found) = text[at..].find(['{', '}']) {
        out.text(&format.slice(at..at + found))?;
        at += found;
        // A brace is one byte, so this is a whole character.
        let brace = &text[at..=at];
        if text[at + 1..].starts_with(brace) {
            out.text(&format.slice(at..at + 1))?;
            at += 2;
            continue;
        }
        // 0 means that the brace is a lone closing one.
        let end = text[at..].find('}').filter(|end| *end > 0);
        let end = end.ok_or_else(|| Error::value("a format has a single brace"))?;
        field(runtime, &text[at + 1..at + end], args, &mut numbering, &mut out)?;
        at += end + 1;
    }
    out.text(&format.slice(at..text.len()))?;
    Ok(out.finish())
}

fn field(
    runtime: &mut Runtime<'_>,
    field: &str,
    args: &Args,
    numbering: &mut FieldNumbering,
    out: &mut Builder,
) -> Result<()> {
    if field.contains('{') {
        return Err(Error::unsupported("a format with nested fields"));
    }
    // Python's order: `{name!conversion:spec}`.
    let (name, spec) = field.split_once(':').unwrap_or((field, ""));
    let (name, conversion) = match name.split_once('!') {
        Some((name, conversion)) => (name, conversion),
        None => (name, ""),
    };
    let value = find(runtime, name, args, numbering)?;
    let spec = parse(spec)?;
    let value = match conversion {
        "" => value,
        "s" => Value::Str(runtime.to_text(&value)?),
        "r" => Value::Str(runtime.to_repr(&value)?),
        "a" => Value::Str(runtime.to_ascii(&value)?),
        _ => return Err(Error::value("unknown conversion in a format: expected !s, !r or !a")),
    };
    match (&value, spec) {
        (_, None) => out.text(&runtime.to_text(&value)?),
        (Value::Str(text), Some(spec)) if spec.kind == 's' || spec.kind == '\0' => spec.text(text, out),
        (Value::Int(_) | Value::Bool(_), Some(spec)) => {
            FormatSpec { kind: if spec.kind == '\0' { 'd' } else { spec.kind }, ..spec }.number(&value, out)
        }
        // Without kind and precision Python uses `repr`, with a precision alone it uses `g`.
        (Value::Float(_), Some(spec)) if spec.kind == '\0' && spec.precision.is_none() => {
            let text = runtime.to_text(&value)?;
            FormatSpec { align: spec.align.or(Some('>')), ..spec }.text(&text, out)
        }
        (Value::Float(_), Some(spec)) => {
            FormatSpec { kind: if spec.kind == '\0' { 'g' } else { spec.kind }, ..spec }.number(&value, out)
        }
        (other, Some(spec)) => {
            runtime.defined(other)?;
            let kind = other.type_name();
            let _ = runtime.shown(other, spec.kind)?;
            Err(Error::value(format!("a value of type {kind} does not support a format specification")))
        }
    }
}

/// Resolves a field: by number, by name, or the next positional argument, followed by attributes
/// and elements.
fn find(runtime: &mut Runtime<'_>, name: &str, args: &Args, numbering: &mut FieldNumbering) -> Result<Value> {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let missing = || Error::value("a field of a format has no value");
    let (first, mut rest) = name.split_at(end);
    let mut value = if first.is_empty() {
        let at = numbering.next()?;
        args.positional.get(at).cloned().ok_or_else(missing)?
    } else if first.bytes().all(|b| b.is_ascii_digit()) {
        numbering.explicit()?;
        let at: usize = first.parse().map_err(|_| missing())?;
        args.positional.get(at).cloned().ok_or_else(missing)?
    } else {
        let found = args.named.iter().find(|(other, _)| other.as_str() == first);
        found.map(|(_, value)| value.clone()).ok_or_else(missing)?
    };
    while !rest.is_empty() {
        runtime.meter.spend(1)?;
        let (key, after) = if let Some(tail) = rest.strip_prefix('[') {
            tail.split_once(']').ok_or_else(missing)?
        } else {
            let tail = rest.strip_prefix('.').ok_or_else(missing)?;
            tail.split_at(tail.find(['.', '[']).unwrap_or(tail.len()))
        };
        // Keys in brackets have no quotes: digits are an index and anything else is a string.
        let element = match key.parse::<i128>() {
            Ok(n) if rest.starts_with('[') => Value::Int(n),
            _ => Value::string(&runtime.meter, key)?,
        };
        value = runtime.subscript(&value, &element)?;
        rest = after;
    }
    Ok(value)
}

/// Parses `[[fill]align][sign][#][0][width][,][.precision][kind]`; `None` if empty.
fn parse(text: &str) -> Result<Option<FormatSpec>> {
    if text.is_empty() {
        return Ok(None);
    }
    let mut spec = FormatSpec { kind: '\0', ..FormatSpec::PLAIN };
    let mut rest = text;
    let is_align = |c: Option<char>| c.filter(|c| matches!(c, '<' | '>' | '^' | '='));
    let (first, second) = (rest.chars().next(), rest.chars().nth(1));
    if let (Some(fill), Some(align)) = (first, is_align(second)) {
        (spec.fill, spec.align) = (fill, Some(align));
        rest = &rest[fill.len_utf8() + 1..];
    } else if let Some(align) = is_align(first) {
        spec.align = Some(align);
        rest = &rest[1..];
    }
    if let Some(sign) = rest.chars().next().filter(|c| matches!(c, '+' | '-' | ' ')) {
        spec.sign = sign;
        rest = &rest[1..];
    }
    if let Some(tail) = rest.strip_prefix('#') {
        spec.alternate = true;
        rest = tail;
    }
    // A zero before the width means fill '0' and alignment '=': zeros go after the sign.
    if rest.starts_with('0') && spec.align.is_none() {
        (spec.fill, spec.align) = ('0', Some('='));
        rest = &rest[1..];
    }
    let (width, length) = number_at(rest)?;
    spec.width = width;
    rest = &rest[length..];
    if let Some(separator) = rest.chars().next().filter(|c| matches!(c, ',' | '_')) {
        spec.separator = Some(separator);
        rest = &rest[1..];
    }
    if let Some(tail) = rest.strip_prefix('.') {
        let (precision, length) = number_at(tail)?;
        spec.precision = Some(precision);
        rest = &tail[length..];
    }
    let mut kinds = rest.chars();
    spec.kind = kinds.next().unwrap_or('\0');
    if kinds.next().is_some() {
        return Err(Error::value("a format of a field is malformed"));
    }
    Ok(Some(spec))
}
