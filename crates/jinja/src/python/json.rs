//! `json.dumps`, without escaping of HTML, as transformers configures `tojson`.

use super::number;
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::text::{Builder, TemplateString};
use crate::value::Value;
use std::rc::Rc;

/// What stands before each line of a list that is written on several lines.
pub(crate) enum Indent {
    Spaces(usize),
    Text(TemplateString),
}

/// How JSON is written.
pub(crate) struct JsonStyle {
    pub(crate) ascii: bool,
    pub(crate) sort: bool,
    pub(crate) indent: Option<Indent>,
    pub(crate) item: TemplateString,
    pub(crate) key: TemplateString,
}

/// The JSON text of a value.
pub(crate) fn to_json(meter: &Rc<Meter>, value: &Value, style: &JsonStyle) -> Result<TemplateString> {
    let mut out = Builder::new(meter)?;
    style.write(value, 0, false, &mut out)?;
    Ok(out.finish())
}

impl JsonStyle {
    /// `content` says whether the container came from the inputs.
    fn write(&self, value: &Value, depth: usize, content: bool, out: &mut Builder) -> Result<()> {
        out.meter().spend(1)?;
        match value {
            Value::None => out.push("null", content),
            Value::Bool(b) => out.push(if *b { "true" } else { "false" }, content),
            Value::Int(n) => out.push(&n.to_string(), content),
            Value::Float(f) => out.push(&float(*f), content),
            Value::Str(text) => self.string(text, content, out),
            Value::Seq(seq) => {
                let content = seq.is_content();
                out.push("[", content)?;
                for (at, item) in seq.items().iter().enumerate() {
                    self.separate(at, depth + 1, out)?;
                    self.write(item, depth + 1, content, out)?;
                }
                self.close(seq.items().is_empty(), depth, out)?;
                out.push("]", content)
            }
            Value::Dict(dict) => {
                let content = dict.is_content();
                out.push("{", content)?;
                let order = self.order(dict.entries(), out.meter())?;
                for at in 0..dict.entries().len() {
                    let (key, value) = &dict.entries()[order.get(at).copied().unwrap_or(at)];
                    self.separate(at, depth + 1, out)?;
                    self.key(key, content, out)?;
                    out.text(&self.key)?;
                    self.write(value, depth + 1, content, out)?;
                }
                self.close(dict.entries().is_empty(), depth, out)?;
                out.push("}", content)
            }
            other => {
                Err(Error::value(format!("a value of type {} cannot be written as JSON", other.type_name())))
            }
        }
    }

    /// The order of keys, where they are sorted.
    fn order(&self, entries: &[(Value, Value)], meter: &Rc<Meter>) -> Result<Vec<usize>> {
        if !self.sort {
            return Ok(Vec::new());
        }
        crate::value::sort_by(meter, entries.len(), |a, b| {
            crate::value::less(meter, &entries[a].0, &entries[b].0)
        })
    }

    fn key(&self, key: &Value, content: bool, out: &mut Builder) -> Result<()> {
        let text = match key {
            Value::Str(text) => return self.string(text, content, out),
            Value::None => "null".to_owned(),
            Value::Bool(b) => b.to_string(),
            Value::Int(n) => n.to_string(),
            Value::Float(f) => float(*f),
            other => {
                let kind = other.type_name();
                return Err(Error::value(format!("a value of type {kind} cannot be a key in JSON")));
            }
        };
        out.push("\"", content)?;
        out.push(&text, content)?;
        out.push("\"", content)
    }

    /// Writes what precedes an element: the separator, and a new line with indentation.
    fn separate(&self, at: usize, depth: usize, out: &mut Builder) -> Result<()> {
        if at > 0 {
            out.text(&self.item)?;
        }
        self.line(depth, out)
    }

    fn close(&self, empty: bool, depth: usize, out: &mut Builder) -> Result<()> {
        if empty { Ok(()) } else { self.line(depth, out) }
    }

    fn line(&self, depth: usize, out: &mut Builder) -> Result<()> {
        match &self.indent {
            None => Ok(()),
            Some(Indent::Spaces(width)) => {
                out.push("\n", false)?;
                out.pad(' ', width.saturating_mul(depth))
            }
            Some(Indent::Text(text)) => {
                out.push("\n", false)?;
                out.repeat(text, depth)
            }
        }
    }

    fn string(&self, text: &TemplateString, content: bool, out: &mut Builder) -> Result<()> {
        out.meter().touch(text.len())?;
        let edge = content || text.has_content();
        out.push("\"", edge)?;
        for (run, content) in text.runs() {
            let mut plain = 0;
            for (at, c) in run.char_indices() {
                let escaped = c == '"' || c == '\\' || c < ' ' || (self.ascii && (c > '~'));
                if !escaped {
                    continue;
                }
                out.push(&run[plain..at], content)?;
                plain = at + c.len_utf8();
                self.escape(c, content, out)?;
            }
            out.push(&run[plain..], content)?;
        }
        out.push("\"", edge)
    }

    fn escape(&self, c: char, content: bool, out: &mut Builder) -> Result<()> {
        let short = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push(&format!("\\u{unit:04x}"), content)?;
                }
                return Ok(());
            }
        };
        out.push(short, content)
    }
}

fn float(f: f64) -> String {
    if f.is_nan() {
        return "NaN".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    number::float(f)
}
