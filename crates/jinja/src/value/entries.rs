//! Dictionary builder. Entries keep the order of insertion.

use super::equal::{check_key, position};
use super::items::OVERHEAD;
use super::{ContainerShape, Dict, Value};
use crate::error::Result;
use crate::meter::{Meter, MeterCharge};
use std::rc::Rc;

/// A dictionary under construction.
pub(crate) struct DictBuilder {
    entries: Vec<(Value, Value)>,
    shape: ContainerShape,
    charge: MeterCharge,
}

const ENTRY: usize = size_of::<(Value, Value)>();

impl DictBuilder {
    pub(crate) fn new(meter: &Rc<Meter>) -> Result<DictBuilder> {
        DictBuilder::with_capacity(meter, 0)
    }

    pub(crate) fn with_capacity(meter: &Rc<Meter>, count: usize) -> Result<DictBuilder> {
        let charge = meter.charge(count.saturating_mul(ENTRY).saturating_add(OVERHEAD))?;
        let shape = ContainerShape { depth: 1, ..ContainerShape::default() };
        Ok(DictBuilder { entries: Vec::with_capacity(count), shape, charge })
    }

    /// Sets a key. An existing key keeps its position.
    pub(crate) fn insert(&mut self, key: Value, value: Value) -> Result<()> {
        check_key(&key)?;
        let meter = Rc::clone(self.charge.meter());
        match position(&self.entries, &meter, &key)? {
            // The summary is not reduced by the replaced value. It stays an upper bound.
            Some(at) => {
                self.shape.add(&value, &meter)?;
                self.entries[at].1 = value;
                Ok(())
            }
            None => self.append(key, value),
        }
    }

    /// Adds a key that is not in the dictionary.
    pub(crate) fn append(&mut self, key: Value, value: Value) -> Result<()> {
        let meter = self.charge.meter();
        meter.spend(2)?;
        self.shape.add(&key, meter)?;
        self.shape.add(&value, meter)?;
        if self.entries.len() == self.entries.capacity() {
            // See SeqBuilder::push: the charge must equal the allocation.
            let more = self.entries.capacity().max(4);
            self.charge.grow(more * ENTRY)?;
            self.entries.reserve_exact(more);
        }
        self.entries.push((key, value));
        Ok(())
    }

    /// Marks the dictionary as content.
    pub(super) fn mark_content(&mut self) {
        self.shape.content = true;
    }

    pub(crate) fn finish(self) -> Value {
        let DictBuilder { entries, shape, charge } = self;
        Value::Dict(Rc::new(Dict::new(entries, shape, charge)))
    }
}
