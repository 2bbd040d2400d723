//! A loaded model while a request uses it.

use super::entry::Entry;
use super::table::Table;
use crate::model::Served;
use crate::worker::Engineering;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A loaded model that a request uses, and which is not unloaded until the last clone is dropped.
pub(crate) struct Lease {
    pub(super) served: Arc<Served>,
    pub(super) engineering: Arc<Engineering>,
    pub(super) table: Arc<Table>,
    pub(super) index: usize,
}

impl Lease {
    /// What runs the model.
    pub(crate) fn engineering(&self) -> &Engineering {
        &self.engineering
    }

    /// Keeps the model so long after this request; none: for ever.
    pub(crate) fn keep_for(&self, time: Option<Duration>) {
        self.table.change(self.index, |entry| entry.keep = Some(time));
    }
}

impl Deref for Lease {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.table.release(self.index);
    }
}

/// A request that waits for a model.
pub(super) struct Waiting {
    pub(super) table: Arc<Table>,
    pub(super) index: usize,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.table.change(self.index, Entry::stop_waiting);
    }
}
