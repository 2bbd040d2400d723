//! Dictionaries in the order of insertion.

use super::seq::OVERHEAD;
use super::{Shape, Value, equal};
use crate::error::{Error, Result};
use crate::meter::{Charge, Meter};
use std::rc::Rc;

/// A dictionary. Keys are compared one by one: those of real inputs are few, and every comparison is paid for.
pub(crate) struct Dict {
    entries: Vec<(Value, Value)>,
    pub(super) shape: Shape,
    _charge: Charge,
}

impl Dict {
    pub(crate) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    pub(crate) fn is_content(&self) -> bool {
        self.shape.content
    }

    pub(crate) fn get(&self, meter: &Meter, key: &Value) -> Result<Option<&Value>> {
        if let Some(text) = key.as_str() {
            return self.get_str(meter, text);
        }
        check_key(key)?;
        Ok(position(&self.entries, meter, key)?.map(|at| &self.entries[at].1))
    }

    pub(crate) fn get_str(&self, meter: &Meter, key: &str) -> Result<Option<&Value>> {
        meter.spend(self.entries.len() / 4 + key.len() / 8 + 1)?;
        for (name, value) in &self.entries {
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

/// Lists and dictionaries cannot be keys, since in Python they could change.
fn check_key(key: &Value) -> Result<()> {
    match key {
        Value::Dict(_) => Err(Error::value("a dict cannot be a key of a dict")),
        Value::Seq(seq) if seq.kind == super::SeqKind::List => {
            Err(Error::value("a list cannot be a key of a dict"))
        }
        _ => Ok(()),
    }
}

fn position(entries: &[(Value, Value)], meter: &Meter, key: &Value) -> Result<Option<usize>> {
    for (at, (name, _)) in entries.iter().enumerate() {
        if equal(meter, name, key)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// A dictionary under construction.
pub(crate) struct Entries {
    entries: Vec<(Value, Value)>,
    shape: Shape,
    charge: Charge,
}

const ENTRY: usize = size_of::<(Value, Value)>();

impl Entries {
    pub(crate) fn new(meter: &Rc<Meter>) -> Result<Entries> {
        Entries::with_capacity(meter, 0)
    }

    pub(crate) fn with_capacity(meter: &Rc<Meter>, count: usize) -> Result<Entries> {
        let charge = meter.charge(count.saturating_mul(ENTRY).saturating_add(OVERHEAD))?;
        let shape = Shape { depth: 1, ..Shape::default() };
        Ok(Entries { entries: Vec::with_capacity(count), shape, charge })
    }

    /// Sets a key, which keeps its place if it is there already.
    pub(crate) fn insert(&mut self, key: Value, value: Value) -> Result<()> {
        check_key(&key)?;
        let meter = Rc::clone(self.charge.meter());
        match position(&self.entries, &meter, &key)? {
            Some(at) => {
                self.shape.add(&value, &meter)?;
                self.entries[at].1 = value;
                Ok(())
            }
            None => self.append(key, value),
        }
    }

    /// Adds a key that is known to be new.
    pub(crate) fn append(&mut self, key: Value, value: Value) -> Result<()> {
        let meter = self.charge.meter();
        meter.spend(2)?;
        self.shape.add(&key, meter)?;
        self.shape.add(&value, meter)?;
        if self.entries.len() == self.entries.capacity() {
            let more = self.entries.capacity().max(4);
            self.charge.grow(more * ENTRY)?;
            self.entries.reserve_exact(more);
        }
        self.entries.push((key, value));
        Ok(())
    }

    /// Notes that the dictionary came from the inputs.
    pub(super) fn mark_content(&mut self) {
        self.shape.content = true;
    }

    pub(crate) fn finish(self) -> Value {
        let Entries { entries, shape, charge } = self;
        Value::Dict(Rc::new(Dict { entries, shape, _charge: charge }))
    }
}
