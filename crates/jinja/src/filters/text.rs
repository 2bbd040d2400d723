//! String filters.

use super::arguments::{flag, integer};
use crate::chars::is_space;
use crate::error::{Error, Result};
use crate::methods;
use crate::python::{Indent, JsonStyle, to_json};
use crate::runtime::{Args, Runtime, percent};
use crate::text::{Builder, TemplateString};
use crate::value::{SeqBuilder, SeqKind, Value};

fn length(runtime: &Runtime<'_>, value: Option<&Value>, default: usize) -> Result<usize> {
    let n = integer(runtime, value, default as i128)?;
    Ok(usize::try_from(n.max(0)).unwrap_or(usize::MAX))
}

/// `upper`.
pub(super) fn upper(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("upper", [])?;
    let text = runtime.to_text(&value)?;
    Ok(Value::Str(methods::raised(&runtime.meter, &text)?))
}

/// `lower`.
pub(super) fn lower(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("lower", [])?;
    let text = runtime.to_text(&value)?;
    Ok(Value::Str(methods::lowered(&runtime.meter, &text)?))
}

/// `capitalize`.
pub(super) fn capitalize(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("capitalize", [])?;
    let text = runtime.to_text(&value)?;
    methods::recased(&runtime.meter, &text, true, |at, _| at == 0).map(Value::Str)
}

/// `title`: capitalizes after whitespace, hyphens and opening brackets. The method of that name
/// capitalizes after every non-letter.
pub(super) fn title(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("title", [])?;
    let text = runtime.to_text(&value)?;
    let begins = |before: char| is_space(before) || matches!(before, '-' | '(' | '{' | '[' | '<');
    methods::recased(&runtime.meter, &text, false, |at, before| at == 0 || begins(before)).map(Value::Str)
}

/// `center(width)`.
pub(super) fn center(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [width] = args.bind("center", ["width"])?;
    let width = length(runtime, width.as_ref(), 80)?;
    let text = runtime.to_text(&value)?;
    methods::padded(&runtime.meter, &text, width, ' ', methods::PaddingSide::Center).map(Value::Str)
}

/// `escape`: HTML escaping, only on request. transformers renders without autoescape.
pub(super) fn escape(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("escape", [])?;
    let text = runtime.to_text(&value)?;
    let mut out = Builder::with_capacity(&runtime.meter, text.len())?;
    for (run, content) in text.runs() {
        let mut plain = 0;
        for (at, c) in run.char_indices() {
            // The entities of MarkupSafe, which Jinja2 uses.
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

/// `format(…)`: printf-style formatting with the arguments.
pub(super) fn format(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let text = runtime.to_text(&value)?;
    let values = if args.named.is_empty() {
        let mut items = SeqBuilder::new(&runtime.meter)?;
        for value in args.positional {
            items.push(value)?;
        }
        items.of_kind(SeqKind::Tuple)?
    } else {
        if !args.positional.is_empty() {
            return Err(Error::value("format takes either positional or named values, not both"));
        }
        let mut entries = crate::value::DictBuilder::new(&runtime.meter)?;
        for (name, value) in args.named {
            entries.insert(Value::Str(name), value)?;
        }
        entries.finish()
    };
    percent(runtime, &text, &values).map(Value::Str)
}

/// `indent(width, first, blank)`.
pub(super) fn indent(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    runtime.defined(&value)?;
    let Value::Str(text) = value else {
        return Err(Error::value(format!(
            "indent needs a string, not a value of type {}",
            value.type_name()
        )));
    };
    let margin = match &width {
        Some(Value::Str(text)) => text.clone(),
        other => {
            let mut builder = Builder::new(&runtime.meter)?;
            builder.pad(' ', length(runtime, other.as_ref(), 4)?)?;
            builder.finish()
        }
    };
    let (first, blank) = (flag(first.as_ref()), flag(blank.as_ref()));
    let mut out = Builder::with_capacity(&runtime.meter, text.len())?;
    let lines = methods::lines(&runtime.meter, &text, false)?;
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
    // Jinja2 appends a line end before it splits, so a line end at the end yields one more empty
    // line.
    if methods::ends_with_line_end(text.as_str()) {
        out.push("\n", false)?;
        if blank {
            out.text(&margin)?;
        }
    }
    Ok(Value::Str(out.finish()))
}

/// `pprint`: `repr` on one line. Python's breaks lines at 80 columns.
pub(super) fn pprint(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("pprint", [])?;
    runtime.to_repr(&value).map(Value::Str)
}

/// `replace(old, new, count)`.
pub(super) fn replace(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [old, new, count] = args.bind("replace", ["old", "new", "count"])?;
    let (Some(old), Some(new)) = (old, new) else {
        return Err(Error::value("replace needs an old and a new string"));
    };
    let count = match count {
        None | Some(Value::None) => -1,
        Some(count) => integer(runtime, Some(&count), -1)?,
    };
    let (text, old, new) = (runtime.to_text(&value)?, runtime.to_text(&old)?, runtime.to_text(&new)?);
    methods::replaced(&runtime.meter, &text, &old, &new, count).map(Value::Str)
}

/// `string` (Kimi-K2). Also `safe`, because nothing is escaped automatically.
pub(super) fn string(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("string", [])?;
    runtime.to_text(&value).map(Value::Str)
}

/// `tojson(ensure_ascii, indent, separators, sort_keys)`: transformers' replacement of Jinja2's
/// filter. It does not escape HTML, and `ensure_ascii` is false by default.
pub(super) fn tojson(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [ascii, indent, separators, sort] =
        args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let meter = runtime.meter.clone();
    let indent = match &indent {
        None | Some(Value::None) => None,
        // json.dumps accepts a string as indent.
        Some(Value::Str(text)) => Some(Indent::Text(text.clone())),
        other => Some(Indent::Spaces(length(runtime, other.as_ref(), 0)?)),
    };
    let (item, key) = match separators {
        None | Some(Value::None) => (
            // json.dumps drops the space after the comma if it indents.
            TemplateString::trusted(&meter, if indent.is_some() { "," } else { ", " })?,
            TemplateString::trusted(&meter, ": ")?,
        ),
        Some(pair) => match pair.iterate(&meter)?.items() {
            [Value::Str(item), Value::Str(key)] => (item.clone(), key.clone()),
            _ => return Err(Error::value("the separators of tojson must be two strings")),
        },
    };
    let style = JsonStyle { ascii: flag(ascii.as_ref()), sort: flag(sort.as_ref()), indent, item, key };
    to_json(&meter, &value, &style).map(Value::Str)
}

/// `trim(chars)`.
pub(super) fn trim(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [chars] = args.bind("trim", ["chars"])?;
    let text = runtime.to_text(&value)?;
    let chars = chars.filter(|chars| !matches!(chars, Value::None));
    methods::stripped(&runtime.meter, &text, chars.as_ref(), true, true).map(Value::Str)
}

/// `truncate(length, killwords, end, leeway)`.
pub(super) fn truncate(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [most, killwords, end, leeway] = args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let end = match &end {
        Some(end) => runtime.to_text(end)?,
        None => TemplateString::trusted(&runtime.meter, "...")?,
    };
    let most = length(runtime, most.as_ref(), 255)?;
    // 5 is Jinja2's policy `truncate.leeway`.
    let leeway = length(runtime, leeway.as_ref().filter(|v| !matches!(v, Value::None)), 5)?;
    let tail = end.char_count(&runtime.meter)?;
    if most < tail {
        return Err(Error::value("the length of truncate is less than that of its end"));
    }
    // Jinja2 takes `len` before it needs a string: a short list is returned as is.
    if value.len(&runtime.meter)? <= most.saturating_add(leeway) {
        return Ok(value);
    }
    let Value::Str(text) = value else {
        return Err(Error::value(format!(
            "truncate needs a string, not a value of type {}",
            value.type_name()
        )));
    };
    runtime.meter.touch(text.len())?;
    let cut = text.as_str().char_indices().nth(most - tail).map_or(text.len(), |(at, _)| at);
    let mut head = text.slice(0..cut);
    if !flag(killwords.as_ref())
        && let Some(space) = head.as_str().rfind(' ')
    {
        // As Jinja2's `rsplit(' ', 1)`: a text without a space stays cut within its word.
        head = head.slice(0..space);
    }
    let mut out = Builder::with_capacity(&runtime.meter, head.len() + end.len())?;
    out.text(&head)?;
    out.text(&end)?;
    Ok(Value::Str(out.finish()))
}

/// `urlencode` of a string, a dictionary, or a list of pairs.
pub(super) fn urlencode(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("urlencode", [])?;
    let mut out = Builder::new(&runtime.meter)?;
    let pairs = match &value {
        Value::Dict(dict) => methods::pairs(runtime, dict, SeqKind::List)?,
        Value::Seq(_) => value.clone(),
        _ => {
            quote(&runtime.to_text(&value)?, true, &mut out)?;
            return Ok(Value::Str(out.finish()));
        }
    };
    for (at, pair) in pairs.iterate(&runtime.meter)?.items().iter().enumerate() {
        let pair = pair.iterate(&runtime.meter)?;
        let [key, value] = pair.items() else {
            return Err(Error::value("urlencode needs pairs of a name and a value"));
        };
        if at > 0 {
            out.push("&", false)?;
        }
        quote(&runtime.to_text(key)?, false, &mut out)?;
        out.push("=", false)?;
        quote(&runtime.to_text(value)?, false, &mut out)?;
    }
    Ok(Value::Str(out.finish()))
}

/// Percent-encodes a string. Slashes stay in a path, spaces become `+` in a query.
fn quote(text: &TemplateString, path: bool, out: &mut Builder) -> Result<()> {
    for (run, content) in text.runs() {
        for byte in run.bytes() {
            // The unreserved characters of urllib.parse.quote, which Jinja2 calls.
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
pub(super) fn wordcount(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.bind("wordcount", [])?;
    let text = runtime.to_text(&value)?;
    runtime.meter.touch(text.len())?;
    // Jinja2 counts matches of `\w+`.
    let words =
        text.as_str().split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|word| !word.is_empty());
    Ok(Value::Int(words.count() as i128))
}
