//! Runs a program.

mod access;
mod arguments;
mod call;
mod expression;
mod functions;
mod loops;
mod operators;
mod statement;

pub(crate) use arguments::Args;

use crate::ast::{Constant, Program};
use crate::error::{Error, ErrorKind, Result};
use crate::meter::Meter;
use crate::python::Printer;
use crate::symbols::Symbol;
use crate::text::{Builder, Text};
use crate::value::{Missing, Space, Value};
use std::rc::Rc;

/// The state of a rendering. It ends at the first error, so that nothing needs to be put back on the way out.
pub(crate) struct Evaluator<'a> {
    pub(crate) program: &'a Program,
    pub(crate) meter: Rc<Meter>,
    constants: Vec<Value>,
    /// Variables of the outermost scope, by symbol.
    globals: Vec<Option<Value>>,
    /// The first is the outermost scope, whose variables are in `globals`.
    scopes: Vec<Scope>,
    scope_ids: u64,
    /// The output, and above it what macros and blocks capture.
    outputs: Vec<Builder>,
    pub(crate) spaces: Vec<Space>,
    depth: u32,
    now: &'a dyn Fn(&str) -> std::result::Result<String, String>,
}

/// Variables of a loop's turn, of a macro's call, of a block.
struct Scope {
    id: u64,
    parent: usize,
    variables: Vec<(Symbol, Value)>,
}

/// How a body ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Normal,
    Break,
    Continue,
}

/// Bytes of a variable in a scope, with spare capacity.
const VARIABLE: usize = 2 * size_of::<(Symbol, Value)>();

impl<'a> Evaluator<'a> {
    pub(crate) fn new(
        program: &'a Program,
        meter: Rc<Meter>,
        now: &'a dyn Fn(&str) -> std::result::Result<String, String>,
    ) -> Result<Evaluator<'a>> {
        let constants = program.constants.iter().map(|constant| {
            Ok(match constant {
                Constant::None => Value::None,
                Constant::Bool(b) => Value::Bool(*b),
                Constant::Int(n) => Value::Int(*n),
                Constant::Float(f) => Value::Float(*f),
                Constant::Str(text) => Value::Str(Text::trusted(&meter, text)?),
            })
        });
        let constants = constants.collect::<Result<Vec<_>>>()?;
        let mut evaluator = Evaluator {
            constants,
            globals: vec![None; program.symbols.len()],
            scopes: vec![Scope { id: 0, parent: 0, variables: Vec::new() }],
            scope_ids: 0,
            outputs: vec![Builder::output(&meter)?],
            spaces: Vec::new(),
            depth: 0,
            program,
            meter,
            now,
        };
        for (name, function) in functions::TABLE {
            evaluator.define(name, Value::Function(function));
        }
        Ok(evaluator)
    }

    /// Sets a variable of the outermost scope. Names that the template does not mention are dropped.
    pub(crate) fn define(&mut self, name: &str, value: Value) {
        if let Some(symbol) = self.symbol(name) {
            self.globals[symbol as usize] = Some(value);
        }
    }

    fn symbol(&self, name: &str) -> Option<Symbol> {
        self.program.symbols.find(name)
    }

    /// Renders the template.
    pub(crate) fn run(mut self) -> Result<Builder> {
        self.body(&self.program.body)?;
        Ok(self.outputs.swap_remove(0))
    }

    pub(crate) fn name(&self, symbol: Symbol) -> &'a str {
        self.program.symbols.name(symbol)
    }

    fn lookup(&self, symbol: Symbol) -> Result<Value> {
        let mut at = self.scopes.len() - 1;
        while at > 0 {
            let scope = &self.scopes[at];
            self.meter.spend(scope.variables.len() / 4 + 1)?;
            if let Some((_, value)) = scope.variables.iter().find(|(name, _)| *name == symbol) {
                return Ok(value.clone());
            }
            at = scope.parent;
        }
        Ok(self.globals[symbol as usize].clone().unwrap_or(Value::Undefined(Missing::Name(symbol))))
    }

    /// Sets a variable of the innermost scope.
    fn assign(&mut self, symbol: Symbol, value: Value) -> Result<()> {
        let top = self.scopes.len() - 1;
        if top == 0 {
            self.globals[symbol as usize] = Some(value);
            return Ok(());
        }
        let variables = &mut self.scopes[top].variables;
        self.meter.spend(variables.len() / 4 + 1)?;
        match variables.iter_mut().find(|(name, _)| *name == symbol) {
            Some((_, old)) => *old = value,
            None => {
                self.meter.reserve(VARIABLE)?;
                variables.push((symbol, value));
            }
        }
        Ok(())
    }

    fn push_scope(&mut self, parent: usize) -> Result<()> {
        self.meter.reserve(size_of::<Scope>() * 2)?;
        self.scope_ids += 1;
        self.scopes.push(Scope { id: self.scope_ids, parent, variables: Vec::new() });
        Ok(())
    }

    fn pop_scope(&mut self) {
        if let Some(scope) = self.scopes.pop() {
            self.meter.release(size_of::<Scope>() * 2 + scope.variables.len() * VARIABLE);
        }
    }

    /// Takes the variables of the innermost scope away, for the next turn of a loop.
    fn clear_scope(&mut self) {
        let top = self.scopes.len() - 1;
        let variables = &mut self.scopes[top].variables;
        self.meter.release(variables.len() * VARIABLE);
        variables.clear();
    }

    /// Goes one level deeper in the tree.
    pub(crate) fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        self.meter.spend(1)?;
        let limit = self.meter.limits().eval_depth;
        if self.depth > limit {
            return Err(Error::limit(format!("calls and expressions are nested deeper than {limit} levels")));
        }
        Ok(())
    }

    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Runs a step with its own output and returns the output.
    fn capture(&mut self, step: impl FnOnce(&mut Self) -> Result<()>) -> Result<Text> {
        self.outputs.push(Builder::new(&self.meter)?);
        step(self)?;
        match self.outputs.pop() {
            Some(builder) => Ok(builder.finish()),
            None => Text::trusted(&self.meter, ""),
        }
    }

    fn output(&mut self) -> &mut Builder {
        let top = self.outputs.len() - 1;
        &mut self.outputs[top]
    }

    /// Appends `str(value)` to the output.
    fn print(&mut self, value: &Value) -> Result<()> {
        let top = self.outputs.len() - 1;
        Printer::new(&self.spaces, &self.program.symbols, &mut self.outputs[top]).str(value)
    }

    /// `str(value)`.
    pub(crate) fn to_text(&self, value: &Value) -> Result<Text> {
        if let Value::Str(text) = value {
            return Ok(text.clone());
        }
        let mut builder = Builder::new(&self.meter)?;
        Printer::new(&self.spaces, &self.program.symbols, &mut builder).str(value)?;
        Ok(builder.finish())
    }

    /// `repr(value)`.
    pub(crate) fn to_repr(&self, value: &Value) -> Result<Text> {
        let mut builder = Builder::new(&self.meter)?;
        Printer::new(&self.spaces, &self.program.symbols, &mut builder).repr(value)?;
        Ok(builder.finish())
    }

    /// Refuses an undefined value if a value is needed.
    pub(crate) fn defined(&self, value: &Value) -> Result<()> {
        let Value::Undefined(missing) = value else { return Ok(()) };
        let message = match missing {
            Missing::Name(symbol) => format!("'{}' is undefined", self.name(*symbol)),
            Missing::Attribute(symbol) => format!("there is no attribute or key '{}'", self.name(*symbol)),
            Missing::Parameter(symbol) => format!("the parameter '{}' was not given", self.name(*symbol)),
            Missing::Element => "there is no such element".to_owned(),
        };
        Err(Error::new(ErrorKind::Undefined, message))
    }
}
