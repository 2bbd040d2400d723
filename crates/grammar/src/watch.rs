//! Watchdog thread that cancels masks above a CPU time limit.

use crate::cpu_time::WorkStart;
use llguidance::CancellationHandle;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Cancels computations that take more CPU time than `limit`.
pub(crate) struct Watchdog {
    limit: Duration,
    shared: Arc<WatchdogState>,
}

#[derive(Default)]
struct WatchdogState {
    running: Mutex<WatchdogEntries>,
    changed: Condvar,
}

#[derive(Default)]
struct WatchdogEntries {
    entries: Vec<(u64, WorkStart, CancellationHandle)>,
    next: u64,
    started: bool,
    /// Whether the thread waits for the next entry without a timeout.
    asleep: bool,
    closed: bool,
}

/// A watched computation. Dropping the guard ends the watch.
pub(crate) struct WatchdogGuard<'w>(&'w Watchdog, u64);

impl WatchdogState {
    fn lock(&self) -> MutexGuard<'_, WatchdogEntries> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, limit: Duration) {
        let mut running = self.lock();
        while !running.closed {
            running.asleep = running.entries.is_empty();
            running = match running.asleep {
                true => self.changed.wait(running).unwrap_or_else(PoisonError::into_inner),
                // Polls instead of being woken per entry: a mask takes microseconds, the limit is
                // seconds.
                false => {
                    let waited = self.changed.wait_timeout(running, limit / 8);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            let late = running.entries.iter().filter(|(_, start, _)| start.has_taken(limit));
            late.for_each(|(.., handle)| handle.cancel());
        }
    }
}

impl Watchdog {
    pub(crate) fn new(limit: Duration) -> Watchdog {
        Watchdog { limit, shared: Arc::default() }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Starts to watch the calling thread.
    pub(crate) fn start(&self, handle: Option<CancellationHandle>) -> Option<WatchdogGuard<'_>> {
        let mut running = self.shared.lock();
        if !running.started {
            let (shared, limit) = (Arc::clone(&self.shared), self.limit);
            let run = move || shared.run(limit);
            // If the thread cannot be started, masks run unwatched until a later call succeeds.
            running.started = std::thread::Builder::new().name("grammar-watch".into()).spawn(run).is_ok();
        }
        running.next += 1;
        let id = running.next;
        // A matcher without a handle cannot be cancelled, so it is not watched.
        running.entries.push((id, WorkStart::now(), handle?));
        if running.asleep {
            self.shared.changed.notify_one();
        }
        Some(WatchdogGuard(self, id))
    }

    pub(crate) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

impl Drop for WatchdogGuard<'_> {
    fn drop(&mut self) {
        self.0.shared.lock().entries.retain(|(id, ..)| *id != self.1);
    }
}
