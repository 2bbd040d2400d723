//! Calls of macros, methods and functions, and their arguments.

use super::Evaluator;
use crate::ast::{ArgumentList, MacroDefinition};
use crate::error::{Error, Result};
use crate::runtime::{Args, clip};
use crate::value::{DictBuilder, Macro, SeqBuilder, SeqKind, UndefinedOrigin, Value};
use crate::{functions, methods};

impl<'a> Evaluator<'a> {
    /// Evaluates the arguments of a call.
    #[inline(never)]
    pub(super) fn arguments(&mut self, arguments: &'a ArgumentList) -> Result<Args> {
        let mut args = Args::new(&self.runtime.meter)?;
        for argument in &arguments.positional {
            let value = self.expression(argument)?;
            args.push(value)?;
        }
        for (name, argument) in &arguments.named {
            let value = self.expression(argument)?;
            // Always true: the parser stores the names of arguments as string constants.
            if let Value::Str(name) = &self.constants[*name as usize] {
                args.push_named(name.clone(), value)?;
            }
        }
        if let Some(spread) = &arguments.spread {
            let value = self.expression(spread)?;
            self.runtime.defined(&value)?;
            for item in value.iterate(&self.runtime.meter)?.items() {
                args.push(item.clone())?;
            }
        }
        if let Some(spread) = &arguments.spread_named {
            match self.expression(spread)? {
                Value::Dict(dict) => {
                    for (key, value) in dict.entries() {
                        let Value::Str(name) = key else {
                            return Err(Error::value("the keys of **dict must be strings"));
                        };
                        args.push_named(name.clone(), value.clone())?;
                    }
                }
                other => {
                    return Err(Error::value(format!(
                        "the value after ** is of type {}, expected a dict",
                        other.type_name()
                    )));
                }
            }
        }
        Ok(args)
    }

    /// `value(args)`.
    #[inline(never)]
    pub(super) fn call(&mut self, value: Value, args: Args) -> Result<Value> {
        match value {
            Value::Macro(macro_) => self.call_macro(macro_, args),
            Value::Function(function) => functions::call(&mut self.runtime, function, args),
            Value::Method(method) => match &method.receiver {
                Value::Loop(state) => self.loop_method(state, method.name, args),
                receiver => methods::call(&mut self.runtime, receiver, method.name, args),
            },
            Value::Loop(state) => self.recurse(&state, args),
            other => {
                self.runtime.defined(&other)?;
                Err(Error::value(format!("a value of type {} cannot be called", other.type_name())))
            }
        }
    }

    /// Runs a macro and returns its output.
    #[inline(never)]
    fn call_macro(&mut self, macro_: Macro, mut args: Args) -> Result<Value> {
        let definition = &self.program.macros[macro_.definition as usize];
        let scope = macro_.scope as usize;
        // A macro can outlive its scope in a namespace. Scopes are reused by index, so the id tells
        // whether the index still means the scope of the definition.
        let alive = self.scopes.get(scope).is_some_and(|scope| scope.id == macro_.scope_id);
        // The parent is the scope of the definition and not that of the call: as in Jinja2, a macro
        // does not see the variables of its caller.
        self.push_scope(if alive { scope } else { 0 })?;
        self.bind_special(definition, &mut args)?;
        self.bind_parameters(definition, args)?;
        let text = self.capture(|evaluator| evaluator.body(&definition.body).map(|_| ()))?;
        self.pop_scope();
        Ok(Value::Str(text))
    }

    /// Binds `caller` if the body mentions it.
    fn bind_special(&mut self, definition: &'a MacroDefinition, args: &mut Args) -> Result<()> {
        if !definition.uses.caller {
            return Ok(());
        }
        let Some(symbol) = self.runtime.symbol("caller") else { return Ok(()) };
        // Bound even without a caller. Otherwise the lookup would find the `caller` of an enclosing
        // macro.
        let caller = args.take_named("caller").unwrap_or(Value::Undefined(UndefinedOrigin::Name(symbol)));
        self.assign(symbol, caller)
    }

    #[inline(never)]
    fn bind_parameters(&mut self, definition: &'a MacroDefinition, mut args: Args) -> Result<()> {
        // Taken out of `args`, because the loop also takes named arguments from it.
        let mut given = std::mem::take(&mut args.positional).into_iter();
        for (name, default) in &definition.parameters {
            let text = self.runtime.name(*name);
            let value = match (given.next(), args.take_named(text)) {
                (Some(_), Some(_)) => {
                    return Err(Error::value(format!("the argument {text} is given twice")));
                }
                (Some(value), None) | (None, Some(value)) => value,
                (None, None) => match default {
                    // Defaults are evaluated per call in the macro's scope, so that they may use
                    // earlier parameters.
                    Some(default) => self.expression(default)?,
                    None => Value::Undefined(UndefinedOrigin::Parameter(*name)),
                },
            };
            self.assign(*name, value)?;
        }
        let name = self.runtime.name(definition.name);
        if definition.uses.varargs {
            let mut rest = SeqBuilder::new(&self.runtime.meter)?;
            for value in given.by_ref() {
                rest.push(value)?;
            }
            if let Some(symbol) = self.runtime.symbol("varargs") {
                self.assign(symbol, rest.of_kind(SeqKind::Tuple)?)?;
            }
        } else if given.next().is_some() {
            let count = definition.parameters.len();
            return Err(Error::value(format!("the macro {name} takes {count} arguments at most")));
        }
        if definition.uses.kwargs {
            let mut rest = DictBuilder::new(&self.runtime.meter)?;
            for (key, value) in args.named {
                rest.insert(Value::Str(key), value)?;
            }
            if let Some(symbol) = self.runtime.symbol("kwargs") {
                self.assign(symbol, rest.finish())?;
            }
        } else if let Some((other, _)) = args.named.first() {
            let other = clip(other.as_str());
            return Err(Error::value(format!("the macro {name} has no parameter {other}")));
        }
        Ok(())
    }
}
