//! Parking until a word changes, with a lock: for systems without futexes.

use super::sync::{AtomicU32, Condvar, Mutex, Ordering};
use std::sync::PoisonError;

/// The threads parked on one word.
pub(super) struct Parking {
    lock: Mutex<()>,
    wake: Condvar,
}

impl Parking {
    pub(super) fn new() -> Parking {
        Parking { lock: Mutex::new(()), wake: Condvar::new() }
    }

    /// Parks while `word` is `value`; may return early.
    pub(super) fn sleep(&self, word: &AtomicU32, value: u32) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // The waker changes the word first and then takes the lock. If the change is not visible
        // here, the waker has yet to take the lock, which `wait` releases, so the notification is
        // not missed.
        if word.load(Ordering::Relaxed) == value {
            drop(self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Wakes all threads parked on `word`, which the caller has changed.
    pub(super) fn wake_all(&self, _word: &AtomicU32) {
        // Waits for a thread that has checked the word but not yet parked.
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }
}
