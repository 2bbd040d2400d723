//! Accounts for the work and memory of one rendering.

use crate::error::{Error, Result};
use crate::limits::TemplateLimits;
use std::cell::Cell;
use std::rc::Rc;

/// Fuel and memory that are left to a rendering.
pub(crate) struct Meter {
    limits: TemplateLimits,
    fuel: Cell<u64>,
    live: Cell<usize>,
    peak: Cell<usize>,
}

impl Meter {
    pub(crate) fn new(mut limits: TemplateLimits) -> Rc<Meter> {
        // positions in strings have 32 bits
        limits.memory = limits.memory.min(u32::MAX as usize);
        Rc::new(Meter { limits, fuel: Cell::new(limits.fuel), live: Cell::new(0), peak: Cell::new(0) })
    }

    pub(crate) fn limits(&self) -> &TemplateLimits {
        &self.limits
    }

    /// Pays for work.
    #[inline]
    pub(crate) fn spend(&self, units: usize) -> Result<()> {
        match self.fuel.get().checked_sub(units as u64) {
            Some(left) => {
                self.fuel.set(left);
                Ok(())
            }
            None => {
                self.fuel.set(0);
                Err(Error::limit(format!("it ran out of fuel: more than {} units of work", self.limits.fuel)))
            }
        }
    }

    /// Pays for reading or writing bytes.
    #[inline]
    pub(crate) fn touch(&self, bytes: usize) -> Result<()> {
        self.spend(bytes / 8 + 1)
    }

    /// Units of work done so far.
    pub(crate) fn spent(&self) -> u64 {
        self.limits.fuel - self.fuel.get()
    }

    /// The most bytes that were reserved at one time.
    pub(crate) fn peak(&self) -> usize {
        self.peak.get()
    }

    /// Takes memory that is given back by [`Meter::release`].
    pub(crate) fn reserve(&self, bytes: usize) -> Result<()> {
        let live = self.live.get().saturating_add(bytes);
        if live > self.limits.memory {
            let limit = self.limits.memory;
            return Err(Error::limit(format!("it needs more memory than the limit of {limit} bytes")));
        }
        self.live.set(live);
        self.peak.set(self.peak.get().max(live));
        Ok(())
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.live.set(self.live.get().saturating_sub(bytes));
    }

    /// Takes memory for as long as the charge exists.
    pub(crate) fn charge(self: &Rc<Meter>, bytes: usize) -> Result<MeterCharge> {
        self.reserve(bytes)?;
        Ok(MeterCharge { meter: Rc::clone(self), bytes })
    }
}

/// Memory that belongs to one object and is given back with it.
pub(crate) struct MeterCharge {
    meter: Rc<Meter>,
    bytes: usize,
}

impl MeterCharge {
    pub(crate) fn meter(&self) -> &Rc<Meter> {
        &self.meter
    }

    /// Takes more memory, before it is allocated.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<()> {
        self.meter.reserve(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Releases all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let excess = self.bytes.saturating_sub(bytes);
        self.meter.release(excess);
        self.bytes -= excess;
    }
}

impl Drop for MeterCharge {
    fn drop(&mut self) {
        self.meter.release(self.bytes);
    }
}
