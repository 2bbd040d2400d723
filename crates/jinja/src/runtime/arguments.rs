//! Evaluated call arguments.

use crate::error::{Error, Result};
use crate::meter::{Meter, MeterCharge};
use crate::text::TemplateString;
use crate::value::Value;
use std::rc::Rc;

/// Evaluated arguments.
pub(crate) struct Args {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(TemplateString, Value)>,
    charge: MeterCharge,
}

impl Args {
    pub(crate) fn new(meter: &Rc<Meter>) -> Result<Args> {
        Ok(Args { positional: Vec::new(), named: Vec::new(), charge: meter.charge(0)? })
    }

    pub(crate) fn push(&mut self, value: Value) -> Result<()> {
        // `Vec` doubles its capacity: charge twice the element.
        self.charge.grow(2 * size_of::<Value>())?;
        self.charge.meter().spend(1)?;
        self.positional.push(value);
        Ok(())
    }

    pub(crate) fn push_named(&mut self, name: TemplateString, value: Value) -> Result<()> {
        self.charge.grow(2 * size_of::<(TemplateString, Value)>())?;
        // Pays for the search for a duplicate, which is linear.
        self.charge.meter().spend(self.named.len() / 4 + 1)?;
        if self.named.iter().any(|(other, _)| other.as_str() == name.as_str()) {
            return Err(Error::value(format!("the argument {} is given twice", clip(name.as_str()))));
        }
        self.named.push((name, value));
        Ok(())
    }

    /// Copies the arguments without the first `skip` positional ones, for a call per element.
    pub(crate) fn copy(&self, skip: usize) -> Result<Args> {
        let mut args = Args::new(self.charge.meter())?;
        for value in self.positional.iter().skip(skip) {
            args.push(value.clone())?;
        }
        for (name, value) in &self.named {
            args.push_named(name.clone(), value.clone())?;
        }
        Ok(args)
    }

    /// Removes and returns the named argument.
    pub(crate) fn take_named(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(other, _)| other.as_str() == name)?;
        Some(self.named.remove(at).1)
    }

    /// Binds the arguments of a built-in to its parameters. `what` names the built-in in errors.
    pub(crate) fn bind<const N: usize>(self, what: &str, names: [&str; N]) -> Result<[Option<Value>; N]> {
        let mut found = [const { None }; N];
        if self.positional.len() > N {
            let given = self.positional.len();
            return Err(Error::value(format!("{what} takes at most {N} arguments, not {given}")));
        }
        for (slot, value) in found.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            let Some(at) = names.iter().position(|other| *other == name.as_str()) else {
                return Err(Error::value(format!("{what} has no parameter {}", clip(name.as_str()))));
            };
            if found[at].is_some() {
                return Err(Error::value(format!("{what} got parameter {} twice", names[at])));
            }
            found[at] = Some(value);
        }
        Ok(found)
    }
}

/// The first 60 characters of a text, for an error message.
pub(crate) fn clip(text: &str) -> String {
    text.chars().take(60).collect()
}
