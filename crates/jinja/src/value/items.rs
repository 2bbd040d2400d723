//! Sequence builder: lists, tuples, views and generators.

use super::{ContainerShape, RangeBounds, Seq, SeqKind, Value};
use crate::error::Result;
use crate::meter::{Meter, MeterCharge};
use std::rc::Rc;

/// A sequence under construction. Every element is charged before it is stored.
pub(crate) struct SeqBuilder {
    values: Vec<Value>,
    shape: ContainerShape,
    charge: MeterCharge,
}

/// Bytes charged per sequence or dictionary in addition to its elements.
pub(super) const OVERHEAD: usize = 112;

impl SeqBuilder {
    pub(crate) fn new(meter: &Rc<Meter>) -> Result<SeqBuilder> {
        SeqBuilder::with_capacity(meter, 0)
    }

    pub(crate) fn with_capacity(meter: &Rc<Meter>, count: usize) -> Result<SeqBuilder> {
        // The charge precedes the allocation: `count` may come from a template (`[0] * N`).
        let charge = meter.charge(count.saturating_mul(size_of::<Value>()).saturating_add(OVERHEAD))?;
        let shape = ContainerShape { depth: 1, ..ContainerShape::default() };
        Ok(SeqBuilder { values: Vec::with_capacity(count), shape, charge })
    }

    pub(crate) fn meter(&self) -> &Rc<Meter> {
        self.charge.meter()
    }

    pub(crate) fn push(&mut self, value: Value) -> Result<()> {
        self.meter().spend(1)?;
        self.shape.add(&value, self.charge.meter())?;
        if self.values.len() == self.values.capacity() {
            // Doubling, as `Vec` does. Growing here makes the charge equal to the allocation.
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

    /// Reorders the elements in place.
    pub(crate) fn reorder(&mut self, change: impl FnOnce(&mut [Value])) {
        change(&mut self.values);
    }

    /// Marks the sequence as content.
    pub(super) fn mark_content(&mut self) {
        self.shape.content = true;
    }

    pub(crate) fn finish(self, kind: SeqKind) -> Result<Rc<Seq>> {
        let SeqBuilder { values, shape, charge } = self;
        Ok(Rc::new(Seq::new(kind, values, shape, charge)))
    }

    /// Finishes a range, whose elements have been added.
    pub(crate) fn range(self, bounds: RangeBounds) -> Result<Value> {
        let SeqBuilder { values, shape, mut charge } = self;
        charge.grow(size_of::<RangeBounds>())?;
        Ok(Value::Seq(Rc::new(Seq::of_range(bounds, values, shape, charge))))
    }

    pub(crate) fn list(self) -> Result<Value> {
        Ok(Value::Seq(self.finish(SeqKind::List)?))
    }

    pub(crate) fn of_kind(self, kind: SeqKind) -> Result<Value> {
        Ok(Value::Seq(self.finish(kind)?))
    }
}
