//! Value types.

use crate::error::{Error, Result};
use crate::meter::{Meter, MeterCharge};
use crate::symbols::Symbol;
use crate::text::TemplateString;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A value. Lists and dictionaries are immutable, as in the sandbox of transformers
/// (`ImmutableSandboxedEnvironment`). Only namespaces change.
#[derive(Clone)]
pub(crate) enum Value {
    /// A name or attribute that does not exist.
    Undefined(UndefinedOrigin),
    None,
    Bool(bool),
    /// An integer of Python, limited to the range of `i128`.
    Int(i128),
    Float(f64),
    Str(TemplateString),
    Seq(Rc<Seq>),
    Dict(Rc<Dict>),
    /// Index into the runtime's namespaces. Namespaces can contain each other, so reference
    /// counting would leak cycles.
    Namespace(u32),
    Function(Function),
    Macro(Macro),
    Loop(Rc<LoopState>),
    Method(Rc<Method>),
}

/// What an undefined value stands for, for error messages.
#[derive(Clone, Copy)]
pub(crate) enum UndefinedOrigin {
    /// A variable.
    Name(Symbol),
    /// An attribute or key.
    Attribute(Symbol),
    /// A parameter of a macro without an argument.
    Parameter(Symbol),
    /// An element, or an expression without a name.
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
    pub(crate) _charge: MeterCharge,
}

/// The Python type of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeqKind {
    List,
    Tuple,
    Range,
    /// The views `keys()`, `values()` and `items()` of a dictionary.
    Keys,
    Values,
    Pairs,
    /// Result of filters such as `map`: always truthy, and iterations take its elements away.
    Generator,
    /// A pair of `groupby`: a tuple with the attributes `grouper` and `list`.
    Group,
}

impl SeqKind {
    fn name(self) -> &'static str {
        match self {
            SeqKind::List => "list",
            SeqKind::Tuple | SeqKind::Group => "tuple",
            SeqKind::Range => "range",
            SeqKind::Keys => "dict_keys",
            SeqKind::Values => "dict_values",
            SeqKind::Pairs => "dict_items",
            SeqKind::Generator => "generator",
        }
    }

    /// Whether the sequence supports subscripts.
    pub(crate) fn has_positions(self) -> bool {
        matches!(self, SeqKind::List | SeqKind::Tuple | SeqKind::Range | SeqKind::Group)
    }
}

/// A sequence.
pub(crate) struct Seq {
    pub(crate) kind: SeqKind,
    items: Vec<Value>,
    shape: ContainerShape,
    /// Number of elements that iterations have taken from a generator.
    taken: Cell<usize>,
    /// The bounds of a range.
    range: Option<Box<RangeBounds>>,
    _charge: MeterCharge,
}

/// The arguments of `range`. Its elements do not tell them: `range(0, 5, 2)` and `range(0, 6, 2)`
/// have the same ones.
#[derive(Clone, Copy)]
pub(crate) struct RangeBounds {
    pub(crate) start: i128,
    pub(crate) end: i128,
    pub(crate) step: i128,
}

impl Seq {
    pub(super) fn new(kind: SeqKind, items: Vec<Value>, shape: ContainerShape, charge: MeterCharge) -> Seq {
        Seq { kind, items, shape, taken: Cell::new(0), range: None, _charge: charge }
    }

    pub(super) fn of_range(
        bounds: RangeBounds,
        items: Vec<Value>,
        shape: ContainerShape,
        charge: MeterCharge,
    ) -> Seq {
        Seq { range: Some(Box::new(bounds)), ..Seq::new(SeqKind::Range, items, shape, charge) }
    }

    /// The elements, of a generator the remaining ones.
    pub(crate) fn items(&self) -> &[Value] {
        &self.items[self.taken.get()..]
    }

    /// The bounds if it is a range.
    pub(crate) fn range(&self) -> Option<&RangeBounds> {
        self.range.as_deref()
    }

    pub(crate) fn is_content(&self) -> bool {
        self.shape.content
    }

    /// Takes the next element of a generator, as Python's `next` does.
    pub(crate) fn take_next(&self) -> Option<Value> {
        let next = self.items().first().cloned();
        self.taken.set(self.taken.get() + usize::from(next.is_some()));
        next
    }

    /// Takes all elements of a generator.
    pub(super) fn exhaust(&self) {
        self.taken.set(self.items.len());
    }

    fn is_true(&self) -> bool {
        // Python's generators have no length, so they are always true.
        self.kind == SeqKind::Generator || !self.items.is_empty()
    }
}

/// A dictionary. Lookup is linear: dictionaries of real inputs have few keys, and every comparison
/// is charged.
pub(crate) struct Dict {
    entries: Vec<(Value, Value)>,
    shape: ContainerShape,
    _charge: MeterCharge,
}

impl Dict {
    pub(super) fn new(entries: Vec<(Value, Value)>, shape: ContainerShape, charge: MeterCharge) -> Dict {
        Dict { entries, shape, _charge: charge }
    }

    pub(crate) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    pub(crate) fn is_content(&self) -> bool {
        self.shape.content
    }

    pub(crate) fn get_str(&self, meter: &Meter, key: &str) -> Result<Option<&Value>> {
        // Most entries are skipped by length; their bytes are not compared.
        meter.spend(self.entries.len() / 4 + key.len() / 8 + 1)?;
        for (name, value) in &self.entries {
            // Keys of other types never equal a string.
            if let Some(text) = name.as_text()
                && text.len() == key.len()
            {
                meter.touch(key.len())?;
                if text.as_str() == key {
                    return Ok(Some(value));
                }
            }
        }
        Ok(None)
    }
}

/// The variable `loop`.
pub(crate) struct LoopState {
    /// Index of the statement, which `loop(…)` runs again.
    pub(crate) index: u32,
    pub(crate) items: Rc<Seq>,
    /// Index of the current iteration.
    pub(crate) turn: Cell<usize>,
    pub(crate) depth: u32,
    /// The scope around the statement.
    pub(crate) scope: usize,
    pub(crate) scope_id: u64,
    /// Arguments of the last call of `loop.changed`.
    pub(crate) changed: RefCell<Option<Rc<Seq>>>,
    pub(crate) _charge: MeterCharge,
}

impl LoopState {
    pub(crate) fn len(&self) -> usize {
        self.items.items().len()
    }
}

/// The attributes of a namespace.
#[derive(Default)]
pub(crate) struct NamespaceObject {
    pub(crate) entries: Vec<(TemplateString, Value)>,
}

/// Summary of a container's contents, updated as elements are added, so that no check has to walk
/// the tree.
#[derive(Clone, Copy, Default)]
pub(crate) struct ContainerShape {
    /// Nesting levels, including this one.
    pub(crate) depth: u16,
    /// Whether it contains a loop object. `loop.changed` must not store one, because the loop would
    /// own itself.
    pub(crate) has_loop: bool,
    /// Whether it came from the inputs. Then its brackets and numbers count as content when it is
    /// printed.
    pub(crate) content: bool,
}

impl ContainerShape {
    /// Adds a child to the summary.
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
        Ok(Value::Str(TemplateString::trusted(meter, text)?))
    }

    pub(crate) fn shape(&self) -> ContainerShape {
        match self {
            Value::Seq(seq) => seq.shape,
            Value::Dict(dict) => dict.shape,
            Value::Loop(_) => ContainerShape { depth: 1, has_loop: true, content: false },
            Value::Method(method) => {
                let below = method.receiver.shape();
                ContainerShape { depth: below.depth.saturating_add(1), content: false, ..below }
            }
            _ => ContainerShape::default(),
        }
    }

    pub(crate) fn as_text(&self) -> Option<&TemplateString> {
        if let Value::Str(text) = self { Some(text) } else { None }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        self.as_text().map(TemplateString::as_str)
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

    /// Python's truth value.
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

    /// Python's name of the type, for error messages.
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
}
