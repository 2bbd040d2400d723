//! Filters of strings.

use super::{flag, integer};
use crate::chars::is_space;
use crate::error::{Error, Result};
use crate::eval::{Args, Evaluator};
use crate::methods;
use crate::python::{Indent, JsonStyle, percent};
use crate::text::{Builder, Text};
use crate::value::{Items, SeqKind, Value};

fn length(evaluator: &Evaluator<'_>, value: Option<&Value>, default: usize) -> Result<usize> {
    let n = integer(evaluator, value, default as i128)?;
    Ok(usize::try_from(n.max(0)).unwrap_or(usize::MAX))
}

/// `upper`.
pub(super) fn upper(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("upper", [])?;
    let text = evaluator.to_text(&value)?;
    Ok(Value::Str(methods::raised(&evaluator.meter, &text)?))
}

/// `lower`.
pub(super) fn lower(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("lower", [])?;
    let text = evaluator.to_text(&value)?;
    Ok(Value::Str(methods::lowered(&evaluator.meter, &text)?))
}

/// `capitalize`.
pub(super) fn capitalize(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("capitalize", [])?;
    let text = evaluator.to_text(&value)?;
    methods::recased(&evaluator.meter, &text, true, |at, _| at == 0).map(Value::Str)
}

/// `title`: a capital after white space and opening brackets, unlike the method of that name.
pub(super) fn title(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("title", [])?;
    let text = evaluator.to_text(&value)?;
    let begins = |before: char| is_space(before) || matches!(before, '-' | '(' | '{' | '[' | '<');
    methods::recased(&evaluator.meter, &text, false, |at, before| at == 0 || begins(before)).map(Value::Str)
}

/// `center(width)`.
pub(super) fn center(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [width] = args.bind("center", ["width"])?;
    let width = length(evaluator, width.as_ref(), 80)?;
    let text = evaluator.to_text(&value)?;
    methods::padded(&evaluator.meter, &text, width, ' ', methods::Side::Center).map(Value::Str)
}

/// `escape`: for HTML.
pub(super) fn escape(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("escape", [])?;
    let text = evaluator.to_text(&value)?;
    let mut out = Builder::with_capacity(&evaluator.meter, text.len())?;
    for (run, content) in text.runs() {
        let mut plain = 0;
        for (at, c) in run.char_indices() {
            let escaped = match c {
                '&' => "&amp;",
                '<' => "&lt;",
                '>' => "&gt;",
                '"' => "&#34;",
                '\'' => "&#39;",
                _ => continue,
            };
            out.push(&run[plain..at], content)?;
            out.push(escaped, content)?;
            plain = at + 1;
        }
        out.push(&run[plain..], content)?;
    }
    Ok(Value::Str(out.finish()))
}

/// `format(…)`: `%` with the arguments.
pub(super) fn format(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let text = evaluator.to_text(&value)?;
    let values = if args.named.is_empty() {
        let mut items = Items::new(&evaluator.meter)?;
        for value in args.positional {
            items.push(value)?;
        }
        items.of_kind(SeqKind::Tuple)?
    } else {
        if !args.positional.is_empty() {
            return Err(Error::value("format takes values with names or without, not both"));
        }
        let mut entries = crate::value::Entries::new(&evaluator.meter)?;
        for (name, value) in args.named {
            entries.insert(Value::Str(name), value)?;
        }
        entries.finish()
    };
    percent(evaluator, &text, &values).map(Value::Str)
}

/// `indent(width, first, blank)`.
pub(super) fn indent(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    evaluator.defined(&value)?;
    let Value::Str(text) = value else {
        return Err(Error::value(format!(
            "indent needs a string, not a value of type {}",
            value.type_name()
        )));
    };
    let margin = match &width {
        Some(Value::Str(text)) => text.clone(),
        other => {
            let mut builder = Builder::new(&evaluator.meter)?;
            builder.pad(' ', length(evaluator, other.as_ref(), 4)?)?;
            builder.finish()
        }
    };
    let (first, blank) = (flag(first.as_ref()), flag(blank.as_ref()));
    let mut out = Builder::with_capacity(&evaluator.meter, text.len())?;
    let lines = methods::lines(&evaluator.meter, &text, false)?;
    if first {
        out.text(&margin)?;
    }
    for (at, line) in lines.values().iter().filter_map(Value::as_text).enumerate() {
        if at > 0 {
            out.push("\n", false)?;
            if blank || !line.is_empty() {
                out.text(&margin)?;
            }
        }
        out.text(line)?;
    }
    // a line end at the end of the text counts as an empty line
    if methods::ends_with_line_end(text.as_str()) {
        out.push("\n", false)?;
        if blank {
            out.text(&margin)?;
        }
    }
    Ok(Value::Str(out.finish()))
}

/// `pprint`: `repr`, on one line.
pub(super) fn pprint(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("pprint", [])?;
    evaluator.to_repr(&value).map(Value::Str)
}

/// `replace(old, new, count)`.
pub(super) fn replace(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [old, new, count] = args.bind("replace", ["old", "new", "count"])?;
    let (Some(old), Some(new)) = (old, new) else {
        return Err(Error::value("replace needs what to replace and by what"));
    };
    let count = match count {
        None | Some(Value::None) => -1,
        Some(count) => integer(evaluator, Some(&count), -1)?,
    };
    let (text, old, new) = (evaluator.to_text(&value)?, evaluator.to_text(&old)?, evaluator.to_text(&new)?);
    methods::replaced(&evaluator.meter, &text, &old, &new, count).map(Value::Str)
}

/// `string`, and `safe`, since nothing is escaped.
pub(super) fn string(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("string", [])?;
    evaluator.to_text(&value).map(Value::Str)
}

/// `tojson(ensure_ascii, indent, separators, sort_keys)`.
pub(super) fn tojson(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [ascii, indent, separators, sort] =
        args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let meter = evaluator.meter.clone();
    let indent = match &indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(Indent::Text(text.clone())),
        other => Some(Indent::Spaces(length(evaluator, other.as_ref(), 0)?)),
    };
    let (item, key) = match separators {
        None | Some(Value::None) => {
            (Text::trusted(&meter, if indent.is_some() { "," } else { ", " })?, Text::trusted(&meter, ": ")?)
        }
        Some(pair) => match pair.iterate(&meter)?.items() {
            [Value::Str(item), Value::Str(key)] => (item.clone(), key.clone()),
            _ => return Err(Error::value("the separators of tojson are two strings")),
        },
    };
    let style = JsonStyle { ascii: flag(ascii.as_ref()), sort: flag(sort.as_ref()), indent, item, key };
    crate::python::to_json(&meter, &value, &style).map(Value::Str)
}

/// `trim(chars)`.
pub(super) fn trim(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [chars] = args.bind("trim", ["chars"])?;
    let text = evaluator.to_text(&value)?;
    let chars = chars.filter(|chars| !matches!(chars, Value::None));
    methods::stripped(&evaluator.meter, &text, chars.as_ref(), true, true).map(Value::Str)
}

/// `truncate(length, killwords, end, leeway)`.
pub(super) fn truncate(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [most, killwords, end, leeway] = args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let end = match &end {
        Some(end) => evaluator.to_text(end)?,
        None => Text::trusted(&evaluator.meter, "...")?,
    };
    let most = length(evaluator, most.as_ref(), 255)?;
    let leeway = length(evaluator, leeway.as_ref().filter(|v| !matches!(v, Value::None)), 5)?;
    let tail = end.char_count(&evaluator.meter)?;
    if most < tail {
        return Err(Error::value("the length of truncate is below that of its end"));
    }
    if value.len(&evaluator.meter)? <= most.saturating_add(leeway) {
        return Ok(value);
    }
    let Value::Str(text) = value else {
        return Err(Error::value(format!(
            "truncate needs a string, not a value of type {}",
            value.type_name()
        )));
    };
    evaluator.meter.touch(text.len())?;
    let cut = text.as_str().char_indices().nth(most - tail).map_or(text.len(), |(at, _)| at);
    let mut kept = text.slice(0..cut);
    if !flag(killwords.as_ref())
        && let Some(space) = kept.as_str().rfind(' ')
    {
        kept = kept.slice(0..space);
    }
    let mut out = Builder::with_capacity(&evaluator.meter, kept.len() + end.len())?;
    out.text(&kept)?;
    out.text(&end)?;
    Ok(Value::Str(out.finish()))
}

/// `urlencode` of a string, or of a dictionary or pairs.
pub(super) fn urlencode(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("urlencode", [])?;
    let mut out = Builder::new(&evaluator.meter)?;
    let pairs = match &value {
        Value::Dict(dict) => methods::pairs(evaluator, dict, SeqKind::List)?,
        Value::Seq(_) => value.clone(),
        _ => {
            quote(&evaluator.to_text(&value)?, true, &mut out)?;
            return Ok(Value::Str(out.finish()));
        }
    };
    for (at, pair) in pairs.iterate(&evaluator.meter)?.items().iter().enumerate() {
        let pair = pair.iterate(&evaluator.meter)?;
        let [key, value] = pair.items() else {
            return Err(Error::value("urlencode needs pairs of a name and a value"));
        };
        if at > 0 {
            out.push("&", false)?;
        }
        quote(&evaluator.to_text(key)?, false, &mut out)?;
        out.push("=", false)?;
        quote(&evaluator.to_text(value)?, false, &mut out)?;
    }
    Ok(Value::Str(out.finish()))
}

/// Percent-encodes a string; in a path slashes stay, in a query spaces become `+`.
fn quote(text: &Text, path: bool, out: &mut Builder) -> Result<()> {
    for (run, content) in text.runs() {
        for byte in run.bytes() {
            match byte {
                b'/' if path => out.push("/", content)?,
                b' ' if !path => out.push("+", content)?,
                b'_' | b'.' | b'-' | b'~' => out.char(byte.into(), content)?,
                byte if byte.is_ascii_alphanumeric() => out.char(byte.into(), content)?,
                byte => out.push(&format!("%{byte:02X}"), content)?,
            }
        }
    }
    Ok(())
}

/// `wordcount`.
pub(super) fn wordcount(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("wordcount", [])?;
    let text = evaluator.to_text(&value)?;
    evaluator.meter.touch(text.len())?;
    let words =
        text.as_str().split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|word| !word.is_empty());
    Ok(Value::Int(words.count() as i128))
}
