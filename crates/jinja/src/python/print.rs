//! `str` and `repr` of values.

use super::number;
use crate::chars::is_printable;
use crate::error::{Error, Result};
use crate::symbols::Symbols;
use crate::text::{Builder, TemplateString};
use crate::value::{NamespaceObject, RangeBounds, Seq, SeqKind, Value};

/// Writes values to a string builder.
pub(crate) struct ValuePrinter<'a> {
    spaces: &'a [NamespaceObject],
    symbols: &'a Symbols,
    out: &'a mut Builder,
    depth: u16,
}

impl<'a> ValuePrinter<'a> {
    pub(crate) fn new(
        spaces: &'a [NamespaceObject],
        symbols: &'a Symbols,
        out: &'a mut Builder,
    ) -> ValuePrinter<'a> {
        ValuePrinter { spaces, symbols, out, depth: 0 }
    }

    /// `str(value)`: strings unquoted, other values like `repr`.
    pub(crate) fn str(mut self, value: &Value) -> Result<()> {
        match value {
            Value::Str(text) => self.out.text(text),
            Value::Undefined(_) => Ok(()),
            other => self.write(other, false),
        }
    }

    /// `repr(value)`.
    pub(crate) fn repr(mut self, value: &Value) -> Result<()> {
        self.write(value, false)
    }

    /// Writes `repr(value)`. `content` says whether the enclosing container came from the inputs.
    fn write(&mut self, value: &Value, content: bool) -> Result<()> {
        self.out.meter().spend(1)?;
        match value {
            Value::Undefined(_) => self.out.push("Undefined", content),
            Value::None => self.out.push("None", content),
            Value::Bool(b) => self.out.push(if *b { "True" } else { "False" }, content),
            Value::Int(n) => self.out.push(&n.to_string(), content),
            Value::Float(f) => self.out.push(&number::float(*f), content),
            Value::Str(text) => self.quoted(text, content),
            Value::Seq(seq) => self.deeper(|p| p.sequence(seq)),
            Value::Dict(dict) => self.deeper(|p| p.pairs(dict.entries(), dict.is_content())),
            Value::Namespace(space) => self.deeper(|p| p.space(*space)),
            Value::Function(_) => self.out.push("<function>", content),
            Value::Method(method) => self.out.push(&format!("<method '{}'>", method.name), content),
            Value::Macro(macro_) => {
                let name = self.symbols.name(macro_.name);
                self.out.push(&format!("<Macro '{name}'>"), content)
            }
            Value::Loop(state) => {
                let text = format!("<LoopContext {}/{}>", state.turn.get() + 1, state.len());
                self.out.push(&text, content)
            }
        }
    }

    /// Runs `step` one level deeper. Containers are bounded when built, but namespaces can contain
    /// each other in a cycle.
    fn deeper(&mut self, step: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.depth += 1;
        let limit = self.out.meter().limits().value_depth;
        if self.depth > limit {
            return Err(Error::limit(format!("what is printed is nested deeper than {limit} levels")));
        }
        step(self)?;
        self.depth -= 1;
        Ok(())
    }

    fn sequence(&mut self, seq: &Seq) -> Result<()> {
        let content = seq.is_content();
        if let Some(bounds) = seq.range() {
            return self.range(bounds);
        }
        let (before, open, close, after) = match seq.kind {
            SeqKind::List | SeqKind::Range => ("", "[", "]", ""),
            SeqKind::Tuple | SeqKind::Group => ("", "(", ")", ""),
            SeqKind::Keys => ("dict_keys(", "[", "]", ")"),
            SeqKind::Values => ("dict_values(", "[", "]", ")"),
            SeqKind::Pairs => ("dict_items(", "[", "]", ")"),
            // Python adds the address of the object.
            SeqKind::Generator => return self.out.push("<generator object>", content),
        };
        self.out.push(before, content)?;
        self.out.push(open, content)?;
        for (at, item) in seq.items().iter().enumerate() {
            if at > 0 {
                self.out.push(", ", content)?;
            }
            self.write(item, content)?;
        }
        // A tuple of one element: (1,).
        if close == ")" && seq.items().len() == 1 {
            self.out.push(",", content)?;
        }
        self.out.push(close, content)?;
        self.out.push(after, content)
    }

    fn range(&mut self, bounds: &RangeBounds) -> Result<()> {
        let RangeBounds { start, end, step } = bounds;
        let step = if *step == 1 { String::new() } else { format!(", {step}") };
        self.out.push(&format!("range({start}, {end}{step})"), false)
    }

    fn pairs(&mut self, entries: &[(Value, Value)], content: bool) -> Result<()> {
        self.out.push("{", content)?;
        for (at, (key, value)) in entries.iter().enumerate() {
            if at > 0 {
                self.out.push(", ", content)?;
            }
            self.write(key, content)?;
            self.out.push(": ", content)?;
            self.write(value, content)?;
        }
        self.out.push("}", content)
    }

    fn space(&mut self, space: u32) -> Result<()> {
        // The repr of Jinja2's Namespace.
        self.out.push("<Namespace {", false)?;
        let spaces = self.spaces;
        for (at, (name, value)) in spaces[space as usize].entries.iter().enumerate() {
            if at > 0 {
                self.out.push(", ", false)?;
            }
            self.quoted(name, false)?;
            self.out.push(": ", false)?;
            self.write(value, false)?;
        }
        self.out.push("}>", false)
    }

    fn quoted(&mut self, text: &TemplateString, content: bool) -> Result<()> {
        self.out.meter().touch(text.len())?;
        let s = text.as_str();
        // Python prefers single quotes, except if only single quotes occur in the text.
        let quote = if s.contains('\'') && !s.contains('"') { "\"" } else { "'" };
        let edge = content || text.has_content();
        self.out.push(quote, edge)?;
        for (run, content) in text.runs() {
            let mut plain = 0;
            for (at, c) in run.char_indices() {
                let Some(escape) = escape(c, quote) else { continue };
                self.out.push(&run[plain..at], content)?;
                self.out.push(&escape, content)?;
                plain = at + c.len_utf8();
            }
            self.out.push(&run[plain..], content)?;
        }
        self.out.push(quote, edge)
    }
}

/// The escape of a character in `repr`, or `None` if it is written as is.
fn escape(c: char, quote: &str) -> Option<String> {
    Some(match c {
        '\n' => "\\n".into(),
        '\r' => "\\r".into(),
        '\t' => "\\t".into(),
        '\\' => "\\\\".into(),
        c if quote.starts_with(c) => format!("\\{c}"),
        ' '..='~' => return None,
        c if is_printable(c) => return None,
        c => hex_escape(c),
    })
}

/// The escape of a character by its code point: `\xe9`, `\u20ac` or `\U0001f600`.
pub(crate) fn hex_escape(c: char) -> String {
    match c as u32 {
        code @ ..=0xff => format!("\\x{code:02x}"),
        code @ ..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}
