//! Fuel and memory accounting of one rendering.

use crate::error::{Error, Result};
use crate::limits::TemplateLimits;
use std::cell::Cell;
use std::rc::Rc;

/// Remaining fuel and reserved memory of a rendering. Single-threaded, hence the `Cell`s.
pub(crate) struct Meter {
    limits: TemplateLimits,
    fuel: Cell<u64>,
    live: Cell<usize>,
    peak: Cell<usize>,
}

impl Meter {
    pub(crate) fn new(mut limits: TemplateLimits) -> Rc<Meter> {
        // TemplateString stores positions as u32. A string that fits this limit has no larger ones.
        limits.memory = limits.memory.min(u32::MAX as usize);
        Rc::new(Meter { limits, fuel: Cell::new(limits.fuel), live: Cell::new(0), peak: Cell::new(0) })
    }

    pub(crate) fn limits(&self) -> &TemplateLimits {
        &self.limits
    }

    /// Charges `units` of work.
    #[inline]
    pub(crate) fn spend(&self, units: usize) -> Result<()> {
        match self.fuel.get().checked_sub(units as u64) {
            Some(left) => {
                self.fuel.set(left);
                Ok(())
            }
            None => {
                // Later charges fail too, and `spent` reports the whole budget.
                self.fuel.set(0);
                Err(Error::limit(format!("it ran out of fuel: more than {} units of work", self.limits.fuel)))
            }
        }
    }

    /// Charges for reading or writing `bytes`.
    #[inline]
    pub(crate) fn touch(&self, bytes: usize) -> Result<()> {
        // The + 1 bounds the number of operations on empty strings.
        self.spend(bytes / 8 + 1)
    }

    /// Units of work charged so far.
    pub(crate) fn spent(&self) -> u64 {
        self.limits.fuel - self.fuel.get()
    }

    /// Peak of the reserved bytes.
    pub(crate) fn peak(&self) -> usize {
        self.peak.get()
    }

    /// Reserves memory until a matching [`Meter::release`].
    pub(crate) fn reserve(&self, bytes: usize) -> Result<()> {
        // Templates choose widths and counts (`'a' * N`), so `bytes` may be any number.
        let live = self.live.get().saturating_add(bytes);
        if live > self.limits.memory {
            let limit = self.limits.memory;
            return Err(Error::limit(format!("it needs more memory than the limit of {limit} bytes")));
        }
        // Set only on success: the caller gets no charge after an error, so nothing would release
        // the bytes.
        self.live.set(live);
        self.peak.set(self.peak.get().max(live));
        Ok(())
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.live.set(self.live.get().saturating_sub(bytes));
    }

    /// Reserves memory for the lifetime of the returned charge.
    pub(crate) fn charge(self: &Rc<Meter>, bytes: usize) -> Result<MeterCharge> {
        self.reserve(bytes)?;
        Ok(MeterCharge { meter: Rc::clone(self), bytes })
    }
}

/// Reserved memory of one object, released on drop.
pub(crate) struct MeterCharge {
    meter: Rc<Meter>,
    bytes: usize,
}

impl MeterCharge {
    pub(crate) fn meter(&self) -> &Rc<Meter> {
        &self.meter
    }

    /// Reserves more memory. Call this before the allocation.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<()> {
        self.meter.reserve(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Releases all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let excess = self.bytes.saturating_sub(bytes);
        self.meter.release(excess);
        // `drop` must not release the excess a second time.
        self.bytes -= excess;
    }
}

impl Drop for MeterCharge {
    fn drop(&mut self) {
        self.meter.release(self.bytes);
    }
}
