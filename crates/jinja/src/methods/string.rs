//! String methods.

use super::cases::{PaddingSide, is_cased, lowered, padded, raised, recased, swapped};
use super::format::format;
use super::pieces::{expanded_tabs, lines, partition, replaced, split, stripped};
use crate::chars::is_space;
use crate::error::{Error, Result};
use crate::runtime::{Args, Runtime};
use crate::text::{Builder, TemplateString};
use crate::value::{SeqKind, Value};

#[inline(never)]
pub(super) fn call(
    runtime: &mut Runtime<'_>,
    text: &TemplateString,
    name: &'static str,
    args: Args,
) -> Result<Value> {
    // str methods raise TypeError for Undefined. The check here names the undefined variable.
    for value in &args.positional {
        runtime.defined(value)?;
    }
    match name {
        "startswith" | "endswith" => affix(runtime, text, name, args),
        "removeprefix" | "removesuffix" => remove(runtime, text, name, args),
        "split" | "rsplit" => {
            let [separator, most] = args.bind(name, ["sep", "maxsplit"])?;
            let separator = optional_text(name, separator)?;
            let most = number(name, most, -1)?;
            split(&runtime.meter, text, separator.as_ref(), most, name == "rsplit")
        }
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(name, ["chars"])?;
            let (left, right) = (name != "rstrip", name != "lstrip");
            stripped(&runtime.meter, text, chars.as_ref(), left, right).map(Value::Str)
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let (old, new) = (needed_text(name, old)?, needed_text(name, new)?);
            let count = number(name, count, -1)?;
            replaced(&runtime.meter, text, &old, &new, count).map(Value::Str)
        }
        "join" => join(runtime, text, args),
        "format" => format(runtime, text, &args).map(Value::Str),
        "format_map" => format_map(runtime, text, args),
        "find" | "rfind" | "index" | "rindex" | "count" => search(runtime, text, name, args),
        "partition" | "rpartition" => {
            let [separator] = args.bind(name, ["sep"])?;
            partition(&runtime.meter, text, &needed_text(name, separator)?, name == "rpartition")
        }
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"])?;
            lines(&runtime.meter, text, keep.is_some_and(|keep| keep.is_true()))?.list()
        }
        "center" | "ljust" | "rjust" | "zfill" | "expandtabs" => pad(runtime, text, name, args),
        _ => {
            let [] = args.bind(name, [])?;
            plain(runtime, text, name)
        }
    }
}

/// Methods without arguments.
fn plain(runtime: &Runtime<'_>, text: &TemplateString, name: &'static str) -> Result<Value> {
    let meter = &runtime.meter;
    meter.touch(text.len())?;
    let s = text.as_str();
    let all = |test: fn(char) -> bool| Ok(Value::Bool(!s.is_empty() && s.chars().all(test)));
    match name {
        // Real case folding (ß: ss) needs a table that the standard library does not have. The same
        // holds for the three numeric categories below.
        "lower" | "casefold" => lowered(meter, text).map(Value::Str),
        "upper" => raised(meter, text).map(Value::Str),
        "swapcase" => swapped(meter, text).map(Value::Str),
        "capitalize" => recased(meter, text, true, |at, _| at == 0).map(Value::Str),
        "title" => recased(meter, text, true, |_, before| !before.is_alphabetic()).map(Value::Str),
        "islower" => is_cased(meter, text, false).map(Value::Bool),
        "isupper" => is_cased(meter, text, true).map(Value::Bool),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => Ok(Value::Bool(s.is_ascii())),
        "isdecimal" | "isdigit" | "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_space),
        "isprintable" => Ok(Value::Bool(s.chars().all(|c| !c.is_control()))),
        "isidentifier" => {
            let word = s.chars().all(|c| c == '_' || c.is_alphanumeric());
            Ok(Value::Bool(word && s.starts_with(|c: char| c == '_' || c.is_alphabetic())))
        }
        "istitle" => {
            let (mut before, mut found) = (false, false);
            for c in s.chars() {
                if (c.is_uppercase() && before) || (c.is_lowercase() && !before) {
                    return Ok(Value::Bool(false));
                }
                before = c.is_uppercase() || c.is_lowercase();
                found |= before;
            }
            Ok(Value::Bool(found))
        }
        _ => Err(Error::unsupported(format!("str has no method {name}"))),
    }
}

fn optional_text(name: &str, value: Option<Value>) -> Result<Option<TemplateString>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(Value::Str(text)) => Ok(Some(text)),
        Some(other) => {
            Err(Error::value(format!("{name} needs a string, not a value of type {}", other.type_name())))
        }
    }
}

fn needed_text(name: &str, value: Option<Value>) -> Result<TemplateString> {
    optional_text(name, value)?.ok_or_else(|| Error::value(format!("{name} needs a string")))
}

fn number(name: &str, value: Option<Value>, default: i128) -> Result<i128> {
    match value {
        None => Ok(default),
        Some(value) => value
            .as_int()
            .ok_or_else(|| Error::value(format!("{name} needs an integer, not a {}", value.type_name()))),
    }
}

/// `startswith` and `endswith` with a string or a tuple of strings.
fn affix(runtime: &Runtime<'_>, text: &TemplateString, name: &str, args: Args) -> Result<Value> {
    let [affix, start, end] = args.bind(name, ["affix", "start", "end"])?;
    let text = &window(runtime, text, name, start, end)?.1;
    let matches = |affix: &TemplateString| -> Result<bool> {
        // Only this many bytes of the text are compared.
        runtime.meter.touch(affix.len())?;
        let (text, affix) = (text.as_str(), affix.as_str());
        Ok(if name == "startswith" { text.starts_with(affix) } else { text.ends_with(affix) })
    };
    match affix {
        Some(Value::Str(affix)) => matches(&affix).map(Value::Bool),
        // A tuple means any of its strings; Python refuses lists here.
        Some(Value::Seq(seq)) if seq.kind == SeqKind::Tuple => {
            for item in seq.items() {
                if matches(&needed_text(name, Some(item.clone()))?)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        _ => Err(Error::value(format!("{name} needs a string or a tuple of strings"))),
    }
}

/// Cuts the text by the optional arguments `start` and `end`. Returns the number of characters
/// before the part, and the part.
fn window(
    runtime: &Runtime<'_>,
    text: &TemplateString,
    name: &str,
    start: Option<Value>,
    end: Option<Value>,
) -> Result<(usize, TemplateString)> {
    let given = |value: Option<Value>| value.filter(|value| !matches!(value, Value::None));
    let (start, end) = (given(start), given(end));
    if start.is_none() && end.is_none() {
        return Ok((0, text.clone()));
    }
    let count = text.char_count(&runtime.meter)? as i128;
    let place = |value: Option<Value>, default: i128| -> Result<usize> {
        let n = number(name, value, default)?;
        Ok((if n < 0 { n.saturating_add(count) } else { n }).clamp(0, count) as usize)
    };
    let (first, last) = (place(start, 0)?, place(end, count)?);
    runtime.meter.touch(text.len())?;
    let byte = |at: usize| text.as_str().char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    // An `end` before `start` gives the empty string, as in Python's slices.
    Ok((first, text.slice(byte(first)..byte(last.max(first)))))
}

fn remove(runtime: &Runtime<'_>, text: &TemplateString, name: &str, args: Args) -> Result<Value> {
    let [affix] = args.bind(name, ["affix"])?;
    let affix = needed_text(name, affix)?;
    runtime.meter.touch(affix.len())?;
    let rest = if name == "removeprefix" {
        text.as_str().strip_prefix(affix.as_str())
    } else {
        text.as_str().strip_suffix(affix.as_str())
    };
    Ok(Value::Str(rest.map_or_else(|| text.clone(), |rest| text.part(rest))))
}

/// `join`. Accepts only strings, unlike the filter.
fn join(runtime: &Runtime<'_>, separator: &TemplateString, args: Args) -> Result<Value> {
    let [items] = args.bind("join", ["iterable"])?;
    let items = items.ok_or_else(|| Error::value("join needs a list"))?;
    let mut out = Builder::new(&runtime.meter)?;
    for (at, item) in items.iterate(&runtime.meter)?.items().iter().enumerate() {
        let Value::Str(text) = item else {
            // First, so that the error names an undefined variable.
            runtime.defined(item)?;
            let kind = item.type_name();
            return Err(Error::value(format!(
                "join needs a list of strings; element {at} is of type {kind}"
            )));
        };
        if at > 0 {
            out.text(separator)?;
        }
        out.text(text)?;
    }
    Ok(Value::Str(out.finish()))
}

fn format_map(runtime: &mut Runtime<'_>, text: &TemplateString, args: Args) -> Result<Value> {
    let [values] = args.bind("format_map", ["mapping"])?;
    let Some(Value::Dict(dict)) = values else { return Err(Error::value("format_map needs a dict")) };
    let mut args = Args::new(&runtime.meter)?;
    for (key, value) in dict.entries() {
        if let Value::Str(key) = key {
            args.push_named(key.clone(), value.clone())?;
        }
    }
    format(runtime, text, &args).map(Value::Str)
}

/// `find`, `rfind`, `index`, `rindex` and `count`. Positions count characters.
fn search(runtime: &Runtime<'_>, text: &TemplateString, name: &str, args: Args) -> Result<Value> {
    let [part, start, end] = args.bind(name, ["sub", "start", "end"])?;
    let part = needed_text(name, part)?;
    let (before, text) = window(runtime, text, name, start, end)?;
    runtime.meter.touch(text.len() + part.len())?;
    let (s, part) = (text.as_str(), part.as_str());
    // An empty `sub` matches between all characters and at both ends, in Rust as in Python.
    if name == "count" {
        return Ok(Value::Int(s.matches(part).count() as i128));
    }
    let found = if name.starts_with('r') { s.rfind(part) } else { s.find(part) };
    match found {
        Some(at) => Ok(Value::Int((before + s[..at].chars().count()) as i128)),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(Error::value(format!("{name}: the text is not found"))),
    }
}

/// `center`, `ljust`, `rjust`, `zfill`, `expandtabs`.
fn pad(runtime: &Runtime<'_>, text: &TemplateString, name: &str, args: Args) -> Result<Value> {
    let [width, fill] = args.bind(name, ["width", "fillchar"])?;
    // 8 is the default of expandtabs. The others require a width in Python; this accepts a call
    // without one.
    let width = number(name, width, 8)?;
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    let meter = &runtime.meter;
    let mut fill_char = ' ';
    if let Some(fill) = optional_text(name, fill)? {
        let mut chars = fill.as_str().chars();
        fill_char = match (chars.next(), chars.next()) {
            (Some(c), None) => c,
            _ => return Err(Error::value(format!("{name} pads with one character"))),
        };
    }
    let padded = match name {
        "center" => padded(meter, text, width, fill_char, PaddingSide::Center)?,
        "ljust" => padded(meter, text, width, fill_char, PaddingSide::Left)?,
        "rjust" => padded(meter, text, width, fill_char, PaddingSide::Right)?,
        "expandtabs" => expanded_tabs(meter, text, width)?,
        _ => {
            // zfill keeps a sign before the zeros: `'-5'.zfill(4)` is '-005'.
            let signed = text.as_str().starts_with(['+', '-']);
            let (sign, digits) =
                (text.slice(0..usize::from(signed)), text.slice(usize::from(signed)..text.len()));
            let mut out = Builder::new(meter)?;
            out.text(&sign)?;
            out.text(&padded(meter, &digits, width.saturating_sub(sign.len()), '0', PaddingSide::Right)?)?;
            out.finish()
        }
    };
    Ok(Value::Str(padded))
}
