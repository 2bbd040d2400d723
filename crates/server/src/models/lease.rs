//! Leases: a loaded model while a request uses it.

use super::entry::ModelEntry;
use super::table::ModelTable;
use crate::model::ServedModel;
use crate::worker::WorkerHandle;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A loaded model that is not unloaded before this is dropped.
pub(crate) struct Lease {
    pub(super) served: Arc<ServedModel>,
    pub(super) worker_handle: Arc<WorkerHandle>,
    pub(super) table: Arc<ModelTable>,
    pub(super) index: usize,
}

impl Lease {
    pub(crate) fn worker_handle(&self) -> &WorkerHandle {
        &self.worker_handle
    }

    /// Sets how long the model stays loaded after this request; `None`: forever.
    pub(crate) fn keep_for(&self, time: Option<Duration>) {
        self.table.change(self.index, |entry| entry.keep = Some(time));
    }
}

impl Deref for Lease {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        &self.served
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.table.release(self.index);
    }
}

/// A request that waits for a model. Dropping it, also when the client disconnects, uncounts it.
pub(super) struct LeaseWaiter {
    pub(super) table: Arc<ModelTable>,
    pub(super) index: usize,
}

impl Drop for LeaseWaiter {
    fn drop(&mut self) {
        self.table.change(self.index, ModelEntry::stop_waiting);
    }
}
