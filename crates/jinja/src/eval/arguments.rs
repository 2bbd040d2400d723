//! The arguments of a call, evaluated.

use super::Evaluator;
use crate::ast::ArgumentList;
use crate::error::{Error, Result};
use crate::runtime::Args;
use crate::value::Value;

impl<'a> Evaluator<'a> {
    #[inline(never)]
    pub(super) fn arguments(&mut self, arguments: &'a ArgumentList) -> Result<Args> {
        let mut args = Args::new(&self.runtime.meter)?;
        for argument in &arguments.positional {
            let value = self.expression(argument)?;
            args.push(value)?;
        }
        for (name, argument) in &arguments.named {
            let value = self.expression(argument)?;
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
}
