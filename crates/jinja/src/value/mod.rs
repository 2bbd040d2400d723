//! What a template computes with.

mod dict;
mod equal;
mod input;
mod order;
mod seq;

pub(crate) use dict::{Dict, Entries};
pub(crate) use equal::{contains, equal};
pub(crate) use input::from_json;
pub(crate) use order::{compare, less, sort_by};
pub(crate) use seq::{Items, Seq, SeqKind};

use crate::error::{Error, Result};
use crate::eval::LoopState;
use crate::meter::{Charge, Meter};
use crate::symbols::Symbol;
use crate::text::Text;
use std::rc::Rc;

/// A value. Lists and dictionaries never change, as in the sandbox that transformers renders in; namespaces do.
#[derive(Clone)]
pub(crate) enum Value {
    /// A name or attribute that does not exist.
    Undefined(Missing),
    None,
    Bool(bool),
    /// Python's integers, up to 128 bits.
    Int(i128),
    Float(f64),
    Str(Text),
    Seq(Rc<Seq>),
    Dict(Rc<Dict>),
    /// A place in the evaluator's list of namespaces: they can refer to each other without owning each other.
    Namespace(u32),
    Function(Function),
    Macro(Macro),
    Loop(Rc<LoopState>),
    Method(Rc<Method>),
}

/// What an undefined value was to be.
#[derive(Clone, Copy)]
pub(crate) enum Missing {
    /// A variable.
    Name(Symbol),
    /// An attribute or key.
    Attribute(Symbol),
    /// A parameter of a macro without an argument.
    Parameter(Symbol),
    /// An element, or what has no name.
    Element,
}

/// Functions that every template has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Range,
    Namespace,
    Dict,
    RaiseException,
    StrftimeNow,
}

/// A macro, or the body of a `call` block, and the scope in which it was defined.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Macro {
    pub(crate) definition: u32,
    pub(crate) name: Symbol,
    pub(crate) scope: u32,
    pub(crate) scope_id: u64,
}

/// A method together with its receiver.
pub(crate) struct Method {
    pub(crate) receiver: Value,
    pub(crate) name: &'static str,
    pub(crate) _charge: Charge,
}

/// What a container knows about everything below it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shape {
    /// Levels, itself included.
    pub(crate) depth: u16,
    /// Whether a loop object is below: one that `loop.changed` kept would own itself.
    pub(crate) has_loop: bool,
    /// Whether it came from the inputs, so that its brackets and numbers did too.
    pub(crate) content: bool,
}

impl Shape {
    /// Includes a child.
    pub(crate) fn add(&mut self, child: &Value, meter: &Meter) -> Result<()> {
        let below = child.shape();
        self.has_loop |= below.has_loop;
        self.depth = self.depth.max(below.depth + 1);
        let limit = meter.limits().value_depth;
        if self.depth > limit {
            return Err(Error::limit(format!(
                "its lists and dictionaries are nested deeper than {limit} levels"
            )));
        }
        Ok(())
    }
}

impl Value {
    pub(crate) fn string(meter: &Rc<Meter>, text: &str) -> Result<Value> {
        Ok(Value::Str(Text::trusted(meter, text)?))
    }

    pub(crate) fn shape(&self) -> Shape {
        match self {
            Value::Seq(seq) => seq.shape,
            Value::Dict(dict) => dict.shape,
            Value::Loop(_) => Shape { depth: 1, has_loop: true, content: false },
            Value::Method(method) => {
                let below = method.receiver.shape();
                Shape { depth: below.depth.saturating_add(1), content: false, ..below }
            }
            _ => Shape::default(),
        }
    }

    pub(crate) fn as_text(&self) -> Option<&Text> {
        if let Value::Str(text) = self { Some(text) } else { None }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        self.as_text().map(Text::as_str)
    }

    /// Integers, and booleans, which are integers in Python.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(n) => Some(*n),
            Value::Bool(b) => Some(i128::from(*b)),
            _ => None,
        }
    }

    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(f) => Some(*f),
            other => other.as_int().map(|n| n as f64),
        }
    }

    pub(crate) fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// Python's truth.
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(f) => *f != 0.0,
            Value::Str(text) => !text.is_empty(),
            Value::Seq(seq) => seq.is_true(),
            Value::Dict(dict) => !dict.entries().is_empty(),
            _ => true,
        }
    }

    /// The name of the type, as Python's error messages have it.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "undefined",
            Value::None => "None",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::Seq(seq) => seq.kind.name(),
            Value::Dict(_) => "dict",
            Value::Namespace(_) => "namespace",
            Value::Function(_) => "function",
            Value::Macro(_) => "macro",
            Value::Loop(_) => "loop",
            Value::Method(_) => "method",
        }
    }

    /// The elements that a `for` would go through.
    pub(crate) fn iterate(&self, meter: &Rc<Meter>) -> Result<Rc<Seq>> {
        match self {
            Value::Seq(seq) => seq.take(meter),
            Value::Dict(dict) => {
                let mut items = Items::with_capacity(meter, dict.entries().len())?;
                for (key, _) in dict.entries() {
                    items.push(key.clone())?;
                }
                items.finish(SeqKind::List)
            }
            Value::Str(text) => {
                let mut items = Items::new(meter)?;
                for c in text.as_str().char_indices() {
                    items.push(Value::Str(text.slice(c.0..c.0 + c.1.len_utf8())))?;
                }
                items.finish(SeqKind::List)
            }
            Value::Undefined(_) => Items::new(meter)?.finish(SeqKind::List),
            other => Err(Error::value(format!("a value of type {} cannot be iterated", other.type_name()))),
        }
    }

    /// The number of elements, as `len` counts them.
    pub(crate) fn len(&self, meter: &Meter) -> Result<usize> {
        match self {
            Value::Seq(seq) => Ok(seq.items().len()),
            Value::Dict(dict) => Ok(dict.entries().len()),
            Value::Str(text) => text.char_count(meter),
            Value::Undefined(_) => Ok(0),
            other => Err(Error::value(format!("a value of type {} has no length", other.type_name()))),
        }
    }
}
