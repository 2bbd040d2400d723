//! What belongs to the process that made it: a forked child has no device.

use crate::error::Error;

/// A value that only the process that made it uses. A child that is forked from it neither uses nor drops it.
pub(super) struct OwnedByProcess<T> {
    process: u32,
    /// None while it is dropped.
    value: Option<T>,
}

impl<T> OwnedByProcess<T> {
    pub(super) fn new(value: T) -> OwnedByProcess<T> {
        OwnedByProcess { process: std::process::id(), value: Some(value) }
    }

    /// # Errors
    /// In a forked child.
    pub(super) fn get(&self) -> Result<&T, Error> {
        let forked = || Error::Forked { child: std::process::id(), parent: self.process };
        self.value.as_ref().filter(|_| self.process == std::process::id()).ok_or_else(forked)
    }
}

impl<T> Drop for OwnedByProcess<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // threads of the driver are not here: waiting for them would never end
            std::mem::forget(self.value.take());
        }
    }
}
