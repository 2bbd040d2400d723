//! What the slots of a model do, as llama.cpp's servers show it: figures of requests, and none of their texts.

use crate::params::Params;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Slots of a model. A slot keeps the figures of its last request.
#[derive(Default)]
pub(crate) struct Slots {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    tasks: Vec<SlotTask>,
    /// How many requests have had a slot.
    count: u64,
}

/// A request in a slot.
#[derive(Clone)]
pub(crate) struct SlotTask {
    /// Its number among all requests.
    pub(crate) id: u64,
    pub(crate) is_running: bool,
    pub(crate) params: Arc<Params>,
    /// Tokens of its prompt, and how many of them were cached and have run.
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) processed: usize,
    /// Tokens of its answer.
    pub(crate) decoded: usize,
    pub(crate) has_new_line: bool,
}

/// A slot that a request has until this is dropped.
pub(crate) struct SlotHold {
    slots: Arc<Slots>,
    index: usize,
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a request the first free slot.
    pub(crate) fn take(self: &Arc<Slots>, params: &Arc<Params>, prompt: usize, cached: usize) -> SlotHold {
        let mut inner = self.lock();
        let task = SlotTask {
            id: inner.count,
            is_running: true,
            params: Arc::clone(params),
            prompt,
            cached,
            processed: 0,
            decoded: 0,
            has_new_line: false,
        };
        inner.count += 1;
        let free = inner.tasks.iter().position(|task| !task.is_running);
        let index = free.unwrap_or(inner.tasks.len());
        match inner.tasks.get_mut(index) {
            Some(slot) => *slot = task,
            None => inner.tasks.push(task),
        }
        SlotHold { slots: Arc::clone(self), index }
    }

    /// The slots that were used so far.
    pub(crate) fn list(&self) -> Vec<SlotTask> {
        self.lock().tasks.clone()
    }
}

impl SlotHold {
    /// Changes the figures of the request.
    pub(crate) fn update(&self, change: impl FnOnce(&mut SlotTask)) {
        if let Some(task) = self.slots.lock().tasks.get_mut(self.index) {
            change(task);
        }
    }
}

impl Drop for SlotHold {
    fn drop(&mut self) {
        self.update(|task| task.is_running = false);
    }
}
