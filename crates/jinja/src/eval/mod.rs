//! Evaluator of a parsed template.

mod call;
mod expression;
mod loops;
mod statement;

use crate::ast::{LiteralConstant, Program};
use crate::error::Result;
use crate::meter::Meter;
use crate::runtime::{FilterFn, Finders, Runtime, StrftimeFn, TestFn};
use crate::symbols::{Symbol, Symbols};
use crate::text::{Builder, TemplateString};
use crate::value::{UndefinedOrigin, Value};
use crate::{filters, functions, tests};
use std::rc::Rc;

const FINDERS: Finders = Finders { filter: filters::find, test: tests::find };

/// The filter and the test of each symbol, looked up once per template. An unknown name is an error
/// only when it is reached, because templates guard newer filters with conditions. Jinja2 defers
/// the error inside of `{% if %}` and raises it at compile time elsewhere.
pub(crate) struct Builtins {
    filters: Vec<Option<FilterFn>>,
    tests: Vec<Option<TestFn>>,
}

impl Builtins {
    pub(crate) fn of(symbols: &Symbols) -> Builtins {
        let filters = symbols.names().map(filters::find).collect();
        let tests = symbols.names().map(tests::find).collect();
        Builtins { filters, tests }
    }

    fn filter(&self, name: Symbol) -> Option<FilterFn> {
        self.filters[name as usize]
    }

    fn test(&self, name: Symbol) -> Option<TestFn> {
        self.tests[name as usize]
    }
}

/// State of a rendering. The first error ends the rendering, so functions do not restore scopes,
/// outputs or depth when they return an error.
pub(crate) struct Evaluator<'a> {
    program: &'a Program,
    builtins: &'a Builtins,
    runtime: Runtime<'a>,
    constants: Vec<Value>,
    /// Variables of the outermost scope, indexed by symbol.
    globals: Vec<Option<Value>>,
    /// Scope stack. The variables of the first are in `globals`.
    scopes: Vec<VariableScope>,
    scope_ids: u64,
    /// Output stack: the rendered text, then the captures of macros and blocks.
    outputs: Vec<Builder>,
}

/// Variables of a loop iteration, a macro call or a block.
struct VariableScope {
    id: u64,
    /// Index of the enclosing scope. For a macro this is the scope of its definition, which need
    /// not be the previous one on the stack.
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

/// Bytes charged per variable of a scope.
// `Vec` doubles its capacity, hence the factor.
const VARIABLE: usize = 2 * size_of::<(Symbol, Value)>();

impl<'a> Evaluator<'a> {
    pub(crate) fn new(
        program: &'a Program,
        builtins: &'a Builtins,
        meter: Rc<Meter>,
        now: StrftimeFn<'a>,
    ) -> Result<Evaluator<'a>> {
        // Converted once per rendering: values hold charges of the rendering's meter, so a template
        // cannot share them.
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
            // Indexed by symbol, so that a lookup needs no search.
            globals: vec![None; program.symbols.names().len()],
            scopes: vec![VariableScope { id: 0, parent: 0, variables: Vec::new() }],
            scope_ids: 0,
            outputs: vec![Builder::output(&meter)?],
            program,
            builtins,
            runtime: Runtime::new(meter, &program.symbols, now, FINDERS),
        };
        // Defined first: an input variable of the same name replaces the function, as a context
        // variable replaces a global in Jinja2.
        for (name, function) in functions::TABLE {
            evaluator.define(name, Value::Function(function));
        }
        Ok(evaluator)
    }

    /// Sets a variable of the outermost scope. A name that the template does not mention is
    /// ignored.
    pub(crate) fn define(&mut self, name: &str, value: Value) {
        if let Some(symbol) = self.runtime.symbol(name) {
            self.globals[symbol as usize] = Some(value);
        }
    }

    fn lookup(&self, symbol: Symbol) -> Result<Value> {
        let mut at = self.scopes.len() - 1;
        while at > 0 {
            let scope = &self.scopes[at];
            // Proportional to the time of the search below.
            self.runtime.meter.spend(scope.variables.len() / 4 + 1)?;
            if let Some((_, value)) = scope.variables.iter().find(|(name, _)| *name == symbol) {
                return Ok(value.clone());
            }
            at = scope.parent;
        }
        // An unknown name is undefined, not an error: templates test `tools is defined`.
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
        // Twice, because `Vec` doubles its capacity.
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

    /// Removes the variables of the innermost scope before the next iteration.
    fn clear_scope(&mut self) {
        let top = self.scopes.len() - 1;
        let variables = &mut self.scopes[top].variables;
        self.runtime.meter.release(variables.len() * VARIABLE);
        // Keeps the capacity for the next iteration.
        variables.clear();
    }

    /// Runs `step` with its own output buffer and returns the text.
    fn capture(&mut self, step: impl FnOnce(&mut Self) -> Result<()>) -> Result<TemplateString> {
        self.outputs.push(Builder::new(&self.runtime.meter)?);
        step(self)?;
        match self.outputs.pop() {
            Some(builder) => Ok(builder.finish()),
            // Not reached: `step` pops every output that it pushes.
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
