//! The public API: parse once, render often.

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
    /// Parses a source.
    ///
    /// # Errors
    /// A source that is too large, nested too deeply, or not of the dialect.
    pub fn parse(source: &str, limits: &TemplateLimits) -> Result<Template, Error> {
        let program = parser::parse(source, limits)?;
        let builtins = Builtins::of(&program.symbols);
        Ok(Template { program, builtins })
    }
}

/// Whether an input's strings may name control tokens.
#[derive(Clone, Copy)]
pub enum StringTrust<'a> {
    /// The caller vouches for them, as for the names of the tokens that begin and end a text.
    Trusted,
    /// They came from outside.
    Content,
    /// They came from outside, but strings of which this function says so, given their key and themselves, count as the
    /// template's own: words of a fixed list, such as the names of roles.
    ContentBut(&'a dyn Fn(&str, &str) -> bool),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderedText {
    pub text: String,
    /// Byte ranges of the text that came from the inputs, in order and apart from each other.
    pub content: Vec<Range<usize>>,
}

/// What a rendering used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenderUsage {
    /// Units of work.
    pub fuel: u64,
    /// The most bytes reserved at one time.
    pub memory: usize,
}

/// A rendering that is being prepared.
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
    /// A rendering with the functions that every template has and no variables.
    pub fn new(template: &'a Template, limits: TemplateLimits) -> RenderRequest<'a> {
        RenderRequest { template, meter: Meter::new(limits), variables: Vec::new(), now: &no_clock }
    }

    /// Sets a variable. One that the template does not mention costs nothing.
    pub fn define(&mut self, name: &'a str, value: &Json, origin: StringTrust<'_>) -> Result<(), Error> {
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
    /// What the template raises, an operation that fails, or a limit that is reached.
    pub fn finish(self) -> Result<RenderedText, Error> {
        self.measured().0
    }

    /// Renders, and says what that used, also where it fails.
    pub fn measured(self) -> (Result<RenderedText, Error>, RenderUsage) {
        let meter = Rc::clone(&self.meter);
        let result = self.run();
        (result, RenderUsage { fuel: meter.spent(), memory: meter.peak() })
    }

    fn run(self) -> Result<RenderedText, Error> {
        let mut evaluator =
            Evaluator::new(&self.template.program, &self.template.builtins, self.meter, self.now)?;
        for (name, value) in self.variables {
            evaluator.define(name, value);
        }
        let (text, content) = evaluator.run()?.into_parts();
        Ok(RenderedText { text, content })
    }
}
