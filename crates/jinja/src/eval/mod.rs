//! Runs a program.

mod arguments;
mod builtins;
mod call;
mod expression;
mod loops;
mod statement;

pub(crate) use builtins::Builtins;

use crate::ast::{LiteralConstant, Program};
use crate::error::Result;
use crate::functions;
use crate::meter::Meter;
use crate::runtime::{Runtime, StrftimeFn};
use crate::symbols::Symbol;
use crate::text::{Builder, TemplateString};
use crate::value::{UndefinedOrigin, Value};
use builtins::FINDERS;
use std::rc::Rc;

/// The state of a rendering. It ends at the first error, so that nothing needs to be put back on the way out.
pub(crate) struct Evaluator<'a> {
    program: &'a Program,
    builtins: &'a Builtins,
    runtime: Runtime<'a>,
    constants: Vec<Value>,
    /// Variables of the outermost scope, by symbol.
    globals: Vec<Option<Value>>,
    /// The first is the outermost scope, whose variables are in `globals`.
    scopes: Vec<VariableScope>,
    scope_ids: u64,
    /// The output, and above it what macros and blocks capture.
    outputs: Vec<Builder>,
}

/// Variables of a loop's turn, of a macro's call, of a block.
struct VariableScope {
    id: u64,
    parent: usize,
    variables: Vec<(Symbol, Value)>,
}

/// How a body ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyFlow {
    Normal,
    Break,
    Continue,
}

/// Bytes of a variable in a scope, with spare capacity.
const VARIABLE: usize = 2 * size_of::<(Symbol, Value)>();

impl<'a> Evaluator<'a> {
    pub(crate) fn new(
        program: &'a Program,
        builtins: &'a Builtins,
        meter: Rc<Meter>,
        now: StrftimeFn<'a>,
    ) -> Result<Evaluator<'a>> {
        let constants = program.constants.iter().map(|constant| {
            Ok(match constant {
                LiteralConstant::None => Value::None,
                LiteralConstant::Bool(b) => Value::Bool(*b),
                LiteralConstant::Int(n) => Value::Int(*n),
                LiteralConstant::Float(f) => Value::Float(*f),
                LiteralConstant::Str(text) => Value::Str(TemplateString::trusted(&meter, text)?),
            })
        });
        let constants = constants.collect::<Result<Vec<_>>>()?;
        let mut evaluator = Evaluator {
            constants,
            globals: vec![None; program.symbols.names().len()],
            scopes: vec![VariableScope { id: 0, parent: 0, variables: Vec::new() }],
            scope_ids: 0,
            outputs: vec![Builder::output(&meter)?],
            program,
            builtins,
            runtime: Runtime::new(meter, &program.symbols, now, FINDERS),
        };
        for (name, function) in functions::TABLE {
            evaluator.define(name, Value::Function(function));
        }
        Ok(evaluator)
    }

    /// Sets a variable of the outermost scope. Names that the template does not mention are dropped.
    pub(crate) fn define(&mut self, name: &str, value: Value) {
        if let Some(symbol) = self.runtime.symbol(name) {
            self.globals[symbol as usize] = Some(value);
        }
    }

    fn lookup(&self, symbol: Symbol) -> Result<Value> {
        let mut at = self.scopes.len() - 1;
        while at > 0 {
            let scope = &self.scopes[at];
            self.runtime.meter.spend(scope.variables.len() / 4 + 1)?;
            if let Some((_, value)) = scope.variables.iter().find(|(name, _)| *name == symbol) {
                return Ok(value.clone());
            }
            at = scope.parent;
        }
        Ok(self.globals[symbol as usize].clone().unwrap_or(Value::Undefined(UndefinedOrigin::Name(symbol))))
    }

    /// Sets a variable of the innermost scope.
    fn assign(&mut self, symbol: Symbol, value: Value) -> Result<()> {
        let top = self.scopes.len() - 1;
        if top == 0 {
            self.globals[symbol as usize] = Some(value);
            return Ok(());
        }
        let variables = &mut self.scopes[top].variables;
        self.runtime.meter.spend(variables.len() / 4 + 1)?;
        match variables.iter_mut().find(|(name, _)| *name == symbol) {
            Some((_, old)) => *old = value,
            None => {
                self.runtime.meter.reserve(VARIABLE)?;
                variables.push((symbol, value));
            }
        }
        Ok(())
    }

    fn push_scope(&mut self, parent: usize) -> Result<()> {
        self.runtime.meter.reserve(size_of::<VariableScope>() * 2)?;
        self.scope_ids += 1;
        self.scopes.push(VariableScope { id: self.scope_ids, parent, variables: Vec::new() });
        Ok(())
    }

    fn pop_scope(&mut self) {
        if let Some(scope) = self.scopes.pop() {
            self.runtime.meter.release(size_of::<VariableScope>() * 2 + scope.variables.len() * VARIABLE);
        }
    }

    /// Takes the variables of the innermost scope away, for the next turn of a loop.
    fn clear_scope(&mut self) {
        let top = self.scopes.len() - 1;
        let variables = &mut self.scopes[top].variables;
        self.runtime.meter.release(variables.len() * VARIABLE);
        variables.clear();
    }

    /// Runs a step with its own output and returns the output.
    fn capture(&mut self, step: impl FnOnce(&mut Self) -> Result<()>) -> Result<TemplateString> {
        self.outputs.push(Builder::new(&self.runtime.meter)?);
        step(self)?;
        match self.outputs.pop() {
            Some(builder) => Ok(builder.finish()),
            None => TemplateString::trusted(&self.runtime.meter, ""),
        }
    }

    fn output(&mut self) -> &mut Builder {
        let top = self.outputs.len() - 1;
        &mut self.outputs[top]
    }

    /// Appends `str(value)` to the output.
    fn print(&mut self, value: &Value) -> Result<()> {
        let top = self.outputs.len() - 1;
        self.runtime.print(value, &mut self.outputs[top])
    }
}
