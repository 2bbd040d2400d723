//! Public API: a template is parsed once and rendered many times.

use crate::ast::Program;
use crate::error::Error;
use crate::eval::{Builtins, Evaluator};
use crate::limits::TemplateLimits;
use crate::meter::Meter;
use crate::parser;
use crate::value::from_json;
use serde_json::Value as Json;
use std::ops::Range;
use std::rc::Rc;

/// A parsed template.
pub struct Template {
    program: Program,
    builtins: Builtins,
}

impl Template {
    /// Parses the source of a template.
    ///
    /// # Errors
    /// The source is too large, is nested too deeply, or does not follow the dialect.
    pub fn parse(source: &str, limits: &TemplateLimits) -> Result<Template, Error> {
        let program = parser::parse(source, limits)?;
        let builtins = Builtins::of(&program.symbols);
        Ok(Template { program, builtins })
    }
}

/// Whether the strings of an input may name control tokens.
#[derive(Clone, Copy)]
pub enum StringTrust<'a> {
    /// The caller vouches for the strings, such as `bos_token` and `eos_token`.
    Trusted,
    /// The strings came from a client. They never become control tokens.
    Content,
    /// The strings came from a client, except those for which this function returns true. It is
    /// called with the key and the string. Used for words of a fixed list, such as role names:
    /// templates build control tokens from them (`"<|" + message.role + "|>"`).
    ContentBut(&'a dyn Fn(&str, &str) -> bool),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderedText {
    pub text: String,
    /// Byte ranges of the text that came from the inputs, sorted and not adjacent.
    pub content: Vec<Range<usize>>,
}

/// Resources that a rendering used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenderUsage {
    /// Units of work.
    pub fuel: u64,
    /// Peak of the reserved memory, in bytes.
    pub memory: usize,
}

/// A rendering under preparation: a template, its limits and its variables.
pub struct RenderRequest<'a> {
    template: &'a Template,
    meter: Rc<Meter>,
    variables: Vec<(&'a str, crate::value::Value)>,
    now: &'a dyn Fn(&str) -> Result<String, String>,
}

fn no_clock(_: &str) -> Result<String, String> {
    Err("strftime_now is not available".to_owned())
}

impl<'a> RenderRequest<'a> {
    /// Creates a rendering without variables; the built-in functions are defined.
    pub fn new(template: &'a Template, limits: TemplateLimits) -> RenderRequest<'a> {
        RenderRequest { template, meter: Meter::new(limits), variables: Vec::new(), now: &no_clock }
    }

    /// Sets a variable. A variable that the template does not mention is ignored.
    pub fn define(&mut self, name: &'a str, value: &Json, origin: StringTrust<'_>) -> Result<(), Error> {
        // Do not convert values that the template never reads, such as a long list of tools.
        if self.template.program.symbols.find(name).is_none() {
            return Ok(());
        }
        let value = match origin {
            StringTrust::Trusted => from_json(&self.meter, value, false, &|_, _| true),
            StringTrust::Content => from_json(&self.meter, value, true, &|_, _| false),
            StringTrust::ContentBut(trusted) => from_json(&self.meter, value, true, trusted),
        };
        self.variables.push((name, value?));
        Ok(())
    }

    /// Sets the function behind `strftime_now`.
    pub fn clock(&mut self, now: &'a dyn Fn(&str) -> Result<String, String>) {
        self.now = now;
    }

    /// Renders.
    ///
    /// # Errors
    /// The template raised an exception, an operation failed, or a limit was reached.
    pub fn finish(self) -> Result<RenderedText, Error> {
        self.measured().0
    }

    /// Renders, and returns the resources used, also if rendering fails.
    pub fn measured(self) -> (Result<RenderedText, Error>, RenderUsage) {
        let meter = Rc::clone(&self.meter);
        let result = self.run();
        (result, RenderUsage { fuel: meter.spent(), memory: meter.peak() })
    }

    fn run(self) -> Result<RenderedText, Error> {
        let mut evaluator =
            Evaluator::new(&self.template.program, &self.template.builtins, self.meter, self.now)?;
        for (name, value) in self.variables {
            // `define` of the evaluator replaces a built-in function of the same name.
            evaluator.define(name, value);
        }
        let (text, content) = evaluator.run()?.into_parts();
        Ok(RenderedText { text, content })
    }
}
