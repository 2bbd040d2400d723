//! Parking until a word changes, with a lock, where the system has no futex.

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
        // the waker takes the lock after it has changed the word: either the change is seen here, or the wake
        // is not missed
        if word.load(Ordering::Relaxed) == value {
            drop(self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Wakes all threads parked on `word`, which the caller has changed.
    pub(super) fn wake_all(&self, _word: &AtomicU32) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }
}
