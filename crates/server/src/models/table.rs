//! The table of model entries, behind one lock.

use super::entry::{ModelEntry, ModelPhase};
use super::events::{ModelChange, ModelEvents};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The table of model entries.
pub(crate) struct ModelTable {
    entries: Mutex<Vec<ModelEntry>>,
    changed: watch::Sender<()>,
    events: ModelEvents,
    /// Idle time before a model is unloaded; `None`: when another model needs its memory.
    idle: Option<Duration>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A guard of the entries. On drop it reports changes of status, still under the lock, so that
/// subscribers see them in order.
pub(super) struct Entries<'a> {
    entries: MutexGuard<'a, Vec<ModelEntry>>,
    events: &'a ModelEvents,
}

impl Deref for Entries<'_> {
    type Target = Vec<ModelEntry>;

    fn deref(&self) -> &Vec<ModelEntry> {
        &self.entries
    }
}

impl DerefMut for Entries<'_> {
    fn deref_mut(&mut self) -> &mut Vec<ModelEntry> {
        &mut self.entries
    }
}

impl Drop for Entries<'_> {
    fn drop(&mut self) {
        for entry in self.entries.iter_mut() {
            entry.report(self.events);
        }
    }
}

impl ModelTable {
    pub(super) fn new(idle: Option<Duration>) -> ModelTable {
        ModelTable {
            entries: Mutex::default(),
            changed: watch::Sender::new(()),
            events: ModelEvents::default(),
            idle,
            threads: Mutex::default(),
        }
    }

    pub(super) fn lock(&self) -> Entries<'_> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        Entries { entries, events: &self.events }
    }

    pub(super) fn events(&self) -> &ModelEvents {
        &self.events
    }

    /// Changes an entry and wakes all tasks that wait for changes.
    pub(super) fn change<T>(&self, index: usize, work: impl FnOnce(&mut ModelEntry) -> T) -> T {
        let result = work(&mut self.lock()[index]);
        // The guard of the line above has been dropped: a woken task takes the lock at once.
        self.notify();
        result
    }

    pub(super) fn push(&self, name: &str, idle: Option<Option<Duration>>) {
        self.lock().push(ModelEntry::new(name, idle));
    }

    /// Removes a model from the list and unloads it after its answers.
    pub(super) fn remove(&self, index: usize) {
        // `replace`: a later reload of the list finds the entry missing again, but must not send a
        // second event.
        let removed = self.change(index, |entry| {
            entry.unload_soon();
            (!std::mem::replace(&mut entry.removed, true)).then(|| entry.name().to_owned())
        });
        if let Some(name) = removed {
            self.events.send(&name, ModelChange::Removed);
        }
    }

    /// Wakes all tasks that wait for changes.
    fn notify(&self) {
        self.changed.send_replace(());
    }

    /// Subscribes to changes.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn loaded(&self, index: usize, time: Duration) {
        self.change(index, |entry| entry.loaded(time, self.idle));
    }

    /// Releases a lease.
    pub(super) fn release(&self, index: usize) {
        self.change(index, |entry| entry.release(self.idle));
    }

    /// Unloads expired models. Returns the next expiry.
    pub(super) fn unload_expired(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        // A waiting request has been woken but has not taken its lease yet.
        for entry in self.lock().iter_mut().filter(|entry| entry.users == 0 && entry.waiting == 0) {
            match entry.expires {
                Some(at) if at <= now => entry.unload(),
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None => {}
            }
        }
        next
    }

    /// Unloads the least recently used model, idle ones first.
    pub(super) fn unload_oldest(&self) {
        let mut entries = self.lock();
        // One at a time: the memory of the model that is being unloaded may suffice.
        if entries.iter().any(|entry| matches!(entry.phase, ModelPhase::Unloading(_))) {
            return;
        }
        // A model with waiting requests has just been loaded for them. Unloading it now could make
        // two models displace each other forever.
        let loaded = entries.iter_mut().filter(|entry| entry.is_loaded() && entry.waiting == 0);
        if let Some(oldest) = loaded.min_by_key(|entry| (entry.users > 0, entry.used)) {
            oldest.unload();
        }
    }

    /// The number of other models that have workers.
    pub(super) fn others(&self, index: usize) -> usize {
        let entries = self.lock();
        entries.iter().enumerate().filter(|(i, entry)| *i != index && entry.worker_handle().is_some()).count()
    }

    /// Ends all workers after their jobs.
    pub(super) fn drain(&self) {
        self.lock()
            .iter()
            .filter_map(ModelEntry::worker_handle)
            .for_each(|worker_handle| worker_handle.drain());
        // Ends the event streams, which would otherwise hold their connections during the drain.
        self.events.send("*", ModelChange::Draining);
        self.notify();
    }

    pub(super) fn keep_thread(&self, thread: JoinHandle<()>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Handles of finished threads would accumulate over reloads.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// Waits until all workers have ended.
    pub(super) fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // Workers and downloads catch or report their own panics.
            let _ = thread.join();
        }
    }
}
