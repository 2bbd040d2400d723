//! Lists, tuples and what else has elements in an order.

use super::{Shape, Value};
use crate::error::Result;
use crate::meter::{Charge, Meter};
use std::cell::Cell;
use std::rc::Rc;

/// Which of Python's types a sequence stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeqKind {
    List,
    Tuple,
    Range,
    /// `keys()`, `values()`, `items()` of a dictionary.
    Keys,
    Values,
    Pairs,
    /// What filters such as `map` return: always true, and empty once it has been iterated.
    Generator,
    /// A pair of `groupby`: a tuple with the attributes `grouper` and `list`.
    Group,
}

impl SeqKind {
    pub(super) fn name(self) -> &'static str {
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

    /// Whether elements can be reached by their position.
    pub(crate) fn has_positions(self) -> bool {
        matches!(self, SeqKind::List | SeqKind::Tuple | SeqKind::Range | SeqKind::Group)
    }
}

/// A sequence.
pub(crate) struct Seq {
    pub(crate) kind: SeqKind,
    items: Vec<Value>,
    pub(super) shape: Shape,
    /// Set once a generator has been iterated.
    exhausted: Cell<bool>,
    _charge: Charge,
}

impl Seq {
    /// The elements; none for a generator that has been iterated.
    pub(crate) fn items(&self) -> &[Value] {
        if self.exhausted.get() { &[] } else { &self.items }
    }

    pub(crate) fn is_content(&self) -> bool {
        self.shape.content
    }

    pub(super) fn is_true(&self) -> bool {
        self.kind == SeqKind::Generator || !self.items.is_empty()
    }

    /// The elements for an iteration, after which a generator is exhausted.
    pub(super) fn take(self: &Rc<Seq>, meter: &Rc<Meter>) -> Result<Rc<Seq>> {
        if self.kind != SeqKind::Generator {
            return Ok(Rc::clone(self));
        }
        let mut items = Items::with_capacity(meter, self.items().len())?;
        for item in self.items() {
            items.push(item.clone())?;
        }
        self.exhausted.set(true);
        items.finish(SeqKind::List)
    }
}

/// A sequence under construction. Every element is paid for before it is stored.
pub(crate) struct Items {
    values: Vec<Value>,
    shape: Shape,
    charge: Charge,
}

/// Bytes that a sequence or dictionary occupies besides its elements.
pub(super) const OVERHEAD: usize = 112;

impl Items {
    pub(crate) fn new(meter: &Rc<Meter>) -> Result<Items> {
        Items::with_capacity(meter, 0)
    }

    pub(crate) fn with_capacity(meter: &Rc<Meter>, count: usize) -> Result<Items> {
        let charge = meter.charge(count.saturating_mul(size_of::<Value>()).saturating_add(OVERHEAD))?;
        let shape = Shape { depth: 1, ..Shape::default() };
        Ok(Items { values: Vec::with_capacity(count), shape, charge })
    }

    pub(crate) fn meter(&self) -> &Rc<Meter> {
        self.charge.meter()
    }

    pub(crate) fn push(&mut self, value: Value) -> Result<()> {
        self.meter().spend(1)?;
        self.shape.add(&value, self.charge.meter())?;
        if self.values.len() == self.values.capacity() {
            let more = self.values.capacity().max(4);
            self.charge.grow(more * size_of::<Value>())?;
            self.values.reserve_exact(more);
        }
        self.values.push(value);
        Ok(())
    }

    pub(crate) fn values(&self) -> &[Value] {
        &self.values
    }

    /// The elements in another order; `change` must not add any.
    pub(crate) fn reorder(&mut self, change: impl FnOnce(&mut [Value])) {
        change(&mut self.values);
    }

    /// Notes that the sequence came from the inputs.
    pub(super) fn mark_content(&mut self) {
        self.shape.content = true;
    }

    pub(crate) fn finish(self, kind: SeqKind) -> Result<Rc<Seq>> {
        let Items { values, shape, charge } = self;
        Ok(Rc::new(Seq { kind, items: values, shape, exhausted: Cell::new(false), _charge: charge }))
    }

    pub(crate) fn list(self) -> Result<Value> {
        Ok(Value::Seq(self.finish(SeqKind::List)?))
    }

    pub(crate) fn of_kind(self, kind: SeqKind) -> Result<Value> {
        Ok(Value::Seq(self.finish(kind)?))
    }
}
