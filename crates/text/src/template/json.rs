//! Values as Python writes them: `tojson` as `json.dumps` with spaces, and printed values as `str()`.

use super::Named;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Output, State, Value};
use std::fmt::Write;

/// `tojson(ensure_ascii, indent, separators, sort_keys)`: `json.dumps`, without escaping of HTML.
pub(super) fn to_json(value: &Value, options: Named) -> Result<String, Error> {
    let wrong = |e: &dyn std::fmt::Display| Error::new(ErrorKind::BadSerialization, e.to_string());
    let json = serde_json::to_value(value).map_err(|e| wrong(&e))?;
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let style = Style {
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        item: match &separators {
            Some(list) if list.len() == 2 => list[0].clone(),
            _ => if indent.is_some() { "," } else { ", " }.to_owned(),
        },
        key: separators.and_then(|list| list.get(1).cloned()).unwrap_or_else(|| ": ".to_owned()),
    };
    options.assert_all_used()?;
    let mut text = String::new();
    style.write(&json, 0, &mut text);
    Ok(text)
}

struct Style {
    ascii: bool,
    sort: bool,
    indent: Option<usize>,
    item: String,
    key: String,
}

impl Style {
    fn write(&self, value: &serde_json::Value, depth: usize, text: &mut String) {
        match value {
            serde_json::Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sort {
                    entries.sort_by_key(|(key, _)| *key);
                }
                let write = |(key, value): &(&String, &serde_json::Value), text: &mut String| {
                    self.string(key, text);
                    text.push_str(&self.key);
                    self.write(value, depth + 1, text);
                };
                self.list(('{', '}'), &entries, depth, text, write);
            }
            serde_json::Value::Array(items) => {
                self.list(('[', ']'), items, depth, text, |item, text| self.write(item, depth + 1, text));
            }
            serde_json::Value::String(s) => self.string(s, text),
            serde_json::Value::Number(n) => text.push_str(&number(n)),
            other => text.push_str(&other.to_string()),
        }
    }

    fn list<T>(
        &self,
        ends: (char, char),
        items: &[T],
        depth: usize,
        text: &mut String,
        write: impl Fn(&T, &mut String),
    ) {
        text.push(ends.0);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                text.push_str(&self.item);
            }
            self.line(depth + 1, text);
            write(item, text);
        }
        if !items.is_empty() {
            self.line(depth, text);
        }
        text.push(ends.1);
    }

    fn line(&self, depth: usize, text: &mut String) {
        if let Some(indent) = self.indent {
            text.push('\n');
            text.push_str(&" ".repeat(indent * depth));
        }
    }

    fn string(&self, s: &str, text: &mut String) {
        text.push('"');
        for c in s.chars() {
            match c {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\u{8}' => text.push_str("\\b"),
                '\u{c}' => text.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(text, "\\u{unit:04x}");
                    }
                }
                c => text.push(c),
            }
        }
        text.push('"');
    }
}

/// Numbers as Python writes them: `1.0`, `1e-05`.
fn number(n: &serde_json::Number) -> String {
    match n.as_f64() {
        Some(f) if n.is_f64() => float(f),
        _ => n.to_string(),
    }
}

fn float(f: f64) -> String {
    if f != 0.0 && (f.abs() >= 1e16 || f.abs() < 1e-4) {
        let text = format!("{f:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    if f.fract() == 0.0 { format!("{f:.1}") } else { f.to_string() }
}

/// Prints a value as Python's `str()` does.
pub(super) fn python_text(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.write_str("None").map_err(Error::from),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }).map_err(Error::from),
        ValueKind::Seq | ValueKind::Map => out.write_str(&python_repr(value)?).map_err(Error::from),
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// `repr()` of lists, dictionaries and what they hold.
fn python_repr(value: &Value) -> Result<String, Error> {
    let json =
        serde_json::to_value(value).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    let mut text = String::new();
    repr(&json, &mut text);
    Ok(text)
}

fn repr(value: &serde_json::Value, text: &mut String) {
    match value {
        serde_json::Value::Null => text.push_str("None"),
        serde_json::Value::Bool(b) => text.push_str(if *b { "True" } else { "False" }),
        serde_json::Value::Number(n) => text.push_str(&number(n)),
        serde_json::Value::String(s) => quoted(s, text),
        serde_json::Value::Array(items) => {
            text.push('[');
            for (i, item) in items.iter().enumerate() {
                text.push_str(if i > 0 { ", " } else { "" });
                repr(item, text);
            }
            text.push(']');
        }
        serde_json::Value::Object(map) => {
            text.push('{');
            for (i, (key, value)) in map.iter().enumerate() {
                text.push_str(if i > 0 { ", " } else { "" });
                quoted(key, text);
                text.push_str(": ");
                repr(value, text);
            }
            text.push('}');
        }
    }
}

fn quoted(s: &str, text: &mut String) {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    text.push(quote);
    for c in s.chars() {
        match c {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\\' => text.push_str("\\\\"),
            c if c == quote => {
                text.push('\\');
                text.push(c);
            }
            c if c.is_control() => {
                let _ = write!(text, "\\x{:02x}", c as u32);
            }
            c => text.push(c),
        }
    }
    text.push(quote);
}
