//! All models of the server, behind one lock.

use super::entry::{ModelEntry, ModelPhase};
use super::events::{ModelChange, ModelEvents};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// All models of the server.
pub(crate) struct ModelTable {
    entries: Mutex<Vec<ModelEntry>>,
    changed: watch::Sender<()>,
    events: ModelEvents,
    /// Idle time after which a model is unloaded; none: when another model needs its memory.
    idle: Option<Duration>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The locked entries. Changes of their statuses are reported before the lock ends, so that the events are in order.
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

    /// Events about the models.
    pub(super) fn events(&self) -> &ModelEvents {
        &self.events
    }

    /// Changes a model, and wakes the tasks that wait for changes.
    pub(super) fn change<T>(&self, index: usize, work: impl FnOnce(&mut ModelEntry) -> T) -> T {
        let result = work(&mut self.lock()[index]);
        self.tell();
        result
    }

    /// Adds a model at the end.
    pub(super) fn push(&self, name: &str, idle: Option<Option<Duration>>) {
        self.lock().push(ModelEntry::new(name, idle));
    }

    /// Takes a model out of the list, and unloads it once its answers have ended.
    pub(super) fn remove(&self, index: usize) {
        let removed = self.change(index, |entry| {
            entry.unload_soon();
            (!std::mem::replace(&mut entry.removed, true)).then(|| entry.name().to_owned())
        });
        if let Some(name) = removed {
            self.events.send(&name, ModelChange::Removed);
        }
    }

    pub(super) fn tell(&self) {
        self.changed.send_replace(());
    }

    /// Hears of changes from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn loaded(&self, index: usize, time: Duration) {
        self.change(index, |entry| entry.loaded(time, self.idle));
    }

    /// A request has ended.
    pub(super) fn release(&self, index: usize) {
        self.change(index, |entry| entry.release(self.idle));
    }

    /// Unloads models that were idle for long enough. Returns when to look again.
    pub(super) fn unload_expired(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for entry in self.lock().iter_mut().filter(|entry| entry.users == 0 && entry.waiting == 0) {
            match entry.expires {
                Some(at) if at <= now => entry.unload(),
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None => {}
            }
        }
        next
    }

    /// Unloads the model that was used least recently, idle ones first, unless one is on its way out already. One that answers ends its answers
    /// first. One whose requests are about to begin is left to them.
    pub(super) fn unload_oldest(&self) {
        let mut entries = self.lock();
        if entries.iter().any(|entry| matches!(entry.phase, ModelPhase::Unloading(_))) {
            return;
        }
        let loaded = entries.iter_mut().filter(|entry| entry.is_loaded() && entry.waiting == 0);
        if let Some(oldest) = loaded.min_by_key(|entry| (entry.users > 0, entry.used)) {
            oldest.unload();
        }
    }

    /// How many models other than this one have workers.
    pub(super) fn others(&self, index: usize) -> usize {
        let entries = self.lock();
        entries.iter().enumerate().filter(|(i, entry)| *i != index && entry.worker_handle().is_some()).count()
    }

    /// Ends all workers, once their jobs have ended.
    pub(super) fn drain(&self) {
        self.lock()
            .iter()
            .filter_map(ModelEntry::worker_handle)
            .for_each(|worker_handle| worker_handle.drain());
        self.events.send("*", ModelChange::Draining);
        self.tell();
    }

    pub(super) fn keep_thread(&self, thread: JoinHandle<()>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// Waits until all workers have ended.
    pub(super) fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // a worker catches its panics
            let _ = thread.join();
        }
    }
}
