//! Bookkeeping of the slots of recurrent state: which are free, and the handles that give the others back.

use super::full::StatesFull;
use super::state_options::StateOptions;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The slots of one KV cache.
#[derive(Debug)]
pub(super) struct StatePool {
    count: usize,
    options: StateOptions,
    free: Mutex<Vec<u32>>,
}

/// A slot in use, which returns to the pool when its last handle is dropped. The present state of a
/// sequence, its snapshots and its forks share handles, since a state is written once and then only
/// read.
#[derive(Debug)]
pub(super) struct StateSlot {
    index: u32,
    pool: Arc<StatePool>,
}

impl StatePool {
    /// `count` slots, all free.
    pub(super) fn new(count: u32, options: StateOptions) -> StatePool {
        StatePool { count: count as usize, options, free: Mutex::new((0..count).rev().collect()) }
    }

    /// How much each sequence keeps.
    pub(super) fn options(&self) -> &StateOptions {
        &self.options
    }

    /// Slots in all.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Slots that are free.
    pub(super) fn available(&self) -> usize {
        self.free().len()
    }

    /// A free slot.
    pub(super) fn take(self: &Arc<StatePool>) -> Option<Arc<StateSlot>> {
        let index = self.free().pop()?;
        Some(Arc::new(StateSlot { index, pool: Arc::clone(self) }))
    }

    /// The error of finding none.
    pub(super) fn full(&self) -> StatesFull {
        StatesFull { slots: self.count }
    }

    /// The list is whole before anything can panic.
    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateSlot {
    /// Its place in the backend's storage.
    pub(super) fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for StateSlot {
    fn drop(&mut self) {
        self.pool.free().push(self.index);
    }
}
