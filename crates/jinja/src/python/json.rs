//! `json.dumps`, as transformers' `tojson` calls it. Prompts must match the training data byte by
//! byte, so separators, escapes and floats follow Python.

use super::number;
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::text::{Builder, TemplateString};
use crate::value::Value;
use std::rc::Rc;

/// Indentation per nesting level.
pub(crate) enum Indent {
    Spaces(usize),
    Text(TemplateString),
}

/// Options of `json.dumps`.
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
    /// Writes a value. `content` says whether the enclosing container came from the inputs: then
    /// numbers and brackets count as content too.
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
                    // Without sorting `order` is empty, and every key keeps its place.
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

    /// Order of the keys; empty if they are not sorted.
    fn order(&self, entries: &[(Value, Value)], meter: &Rc<Meter>) -> Result<Vec<usize>> {
        if !self.sort {
            return Ok(Vec::new());
        }
        crate::value::sort_by(meter, entries.len(), |a, b| {
            crate::value::less(meter, &entries[a].0, &entries[b].0)
        })
    }

    fn key(&self, key: &Value, content: bool, out: &mut Builder) -> Result<()> {
        // json.dumps accepts these types as keys and writes them as strings.
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

    /// Writes the separator and the indentation before an element.
    fn separate(&self, at: usize, depth: usize, out: &mut Builder) -> Result<()> {
        if at > 0 {
            out.text(&self.item)?;
        }
        self.line(depth, out)
    }

    fn close(&self, empty: bool, depth: usize, out: &mut Builder) -> Result<()> {
        // json.dumps writes empty lists and objects as `[]` and `{}`, even with indentation.
        if empty { Ok(()) } else { self.line(depth, out) }
    }

    fn line(&self, depth: usize, out: &mut Builder) -> Result<()> {
        match &self.indent {
            None => Ok(()),
            // `indent=0` still breaks lines; only `indent=None` does not.
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
        // Quotes and brackets of inputs are content; separators are the template's own.
        let edge = content || text.has_content();
        out.push("\"", edge)?;
        for (run, content) in text.runs() {
            let mut plain = 0;
            for (at, c) in run.char_indices() {
                // JSON requires an escape for control characters below the space. DEL is escaped
                // only with ensure_ascii, like all other characters outside of the printable ASCII
                // range.
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
                // JSON escapes UTF-16 units: characters above U+FFFF take two.
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
    // json.dumps writes these three although JSON has no such literals.
    if f.is_nan() {
        return "NaN".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    number::float(f)
}
