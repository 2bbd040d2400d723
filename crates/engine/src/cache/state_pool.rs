//! Bookkeeping of the slots of recurrent state: the free ones, and handles of the others.

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

    pub(super) fn options(&self) -> &StateOptions {
        &self.options
    }

    /// Total number of slots.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Number of free slots.
    pub(super) fn available(&self) -> usize {
        self.free().len()
    }

    /// Takes a free slot.
    pub(super) fn take(self: &Arc<StatePool>) -> Option<Arc<StateSlot>> {
        let index = self.free().pop()?;
        Some(Arc::new(StateSlot { index, pool: Arc::clone(self) }))
    }

    /// The error if no slot is free.
    pub(super) fn full(&self) -> StatesFull {
        StatesFull { slots: self.count }
    }

    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        // A poisoned lock is usable: pushing and popping cannot panic halfway.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateSlot {
    /// The index in the backend's storage.
    pub(super) fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for StateSlot {
    fn drop(&mut self) {
        self.pool.free().push(self.index);
    }
}
