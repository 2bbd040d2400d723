//! State that operations on values share in a rendering, and the basic operations: text of a value,
//! attributes, elements, operators. This layer does not depend on statements or expressions.

mod access;
mod arguments;
mod operators;
mod percent;

pub(crate) use arguments::{Args, clip};
pub(crate) use operators::too_large;
pub(crate) use percent::percent;

use crate::error::{Error, ErrorKind, Result};
use crate::meter::Meter;
use crate::python::{ValuePrinter, hex_escape};
use crate::symbols::{Symbol, Symbols};
use crate::text::{Builder, TemplateString};
use crate::value::{NamespaceObject, UndefinedOrigin, Value};
use std::rc::Rc;

/// The function behind `strftime_now`.
pub(crate) type StrftimeFn<'a> = &'a dyn Fn(&str) -> std::result::Result<String, String>;

/// A filter. Takes the value before the bar and the arguments.
pub(crate) type FilterFn = fn(&mut Runtime<'_>, Value, Args) -> Result<Value>;

/// A test. Takes the value before `is` and the arguments.
pub(crate) type TestFn = fn(&mut Runtime<'_>, &Value, &Args) -> Result<bool>;

/// Lookup of filters and tests by name, for filters such as `map` and `select`. Function pointers
/// avoid a dependency of this module on the tables.
#[derive(Clone, Copy)]
pub(crate) struct Finders {
    pub(crate) filter: fn(&str) -> Option<FilterFn>,
    pub(crate) test: fn(&str) -> Option<TestFn>,
}

/// State that a rendering shares with its built-ins.
pub(crate) struct Runtime<'a> {
    pub(crate) meter: Rc<Meter>,
    /// Namespaces of this rendering; [`Value::Namespace`] is an index.
    pub(crate) spaces: Vec<NamespaceObject>,
    pub(crate) now: StrftimeFn<'a>,
    pub(crate) find: Finders,
    symbols: &'a Symbols,
    depth: u32,
}

impl<'a> Runtime<'a> {
    pub(crate) fn new(
        meter: Rc<Meter>,
        symbols: &'a Symbols,
        now: StrftimeFn<'a>,
        find: Finders,
    ) -> Runtime<'a> {
        Runtime { meter, spaces: Vec::new(), now, find, symbols, depth: 0 }
    }

    pub(crate) fn symbol(&self, name: &str) -> Option<Symbol> {
        self.symbols.find(name)
    }

    pub(crate) fn name(&self, symbol: Symbol) -> &'a str {
        self.symbols.name(symbol)
    }

    /// Enters one nesting level of the evaluator.
    pub(crate) fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        self.meter.spend(1)?;
        let limit = self.meter.limits().eval_depth;
        if self.depth > limit {
            // `depth` is not restored, because an error ends the rendering.
            return Err(Error::limit(format!("calls and expressions are nested deeper than {limit} levels")));
        }
        Ok(())
    }

    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Appends `str(value)`.
    pub(crate) fn print(&self, value: &Value, out: &mut Builder) -> Result<()> {
        ValuePrinter::new(&self.spaces, self.symbols, out).str(value)
    }

    /// `str(value)`.
    pub(crate) fn to_text(&self, value: &Value) -> Result<TemplateString> {
        // Sharing the buffer keeps the origins.
        if let Value::Str(text) = value {
            return Ok(text.clone());
        }
        let mut builder = Builder::new(&self.meter)?;
        self.print(value, &mut builder)?;
        Ok(builder.finish())
    }

    /// `repr(value)`.
    pub(crate) fn to_repr(&self, value: &Value) -> Result<TemplateString> {
        let mut builder = Builder::new(&self.meter)?;
        ValuePrinter::new(&self.spaces, self.symbols, &mut builder).repr(value)?;
        Ok(builder.finish())
    }

    /// `ascii(value)`: `repr` with escapes instead of non-ASCII characters.
    pub(crate) fn to_ascii(&self, value: &Value) -> Result<TemplateString> {
        let text = self.to_repr(value)?;
        if text.is_ascii() {
            return Ok(text);
        }
        let mut builder = Builder::with_capacity(&self.meter, text.len())?;
        for (run, content) in text.runs() {
            let mut plain = 0;
            for (at, c) in run.char_indices().filter(|(_, c)| !c.is_ascii()) {
                builder.push(&run[plain..at], content)?;
                builder.push(&hex_escape(c), content)?;
                plain = at + c.len_utf8();
            }
            builder.push(&run[plain..], content)?;
        }
        Ok(builder.finish())
    }

    /// `str`, `repr` or `ascii` of a value, for `%s`, `%r` and `%a`.
    pub(crate) fn shown(&self, value: &Value, kind: char) -> Result<TemplateString> {
        match kind {
            'r' => self.to_repr(value),
            'a' => self.to_ascii(value),
            _ => self.to_text(value),
        }
    }

    /// Returns an error if the value is undefined.
    pub(crate) fn defined(&self, value: &Value) -> Result<()> {
        let Value::Undefined(missing) = value else { return Ok(()) };
        let message = match missing {
            UndefinedOrigin::Name(symbol) => format!("'{}' is undefined", self.name(*symbol)),
            UndefinedOrigin::Attribute(symbol) => {
                format!("unknown attribute or key '{}'", self.name(*symbol))
            }
            UndefinedOrigin::Parameter(symbol) => {
                format!("the parameter '{}' was not given", self.name(*symbol))
            }
            UndefinedOrigin::Element => "the element does not exist".to_owned(),
        };
        Err(Error::new(ErrorKind::Undefined, message))
    }
}
