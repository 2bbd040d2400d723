//! Sleeping until a word changes, where the system has no call for it.

use super::sync::{AtomicU32, Condvar, Mutex, Ordering};
use std::sync::PoisonError;

/// Where the sleepers of one word lie.
pub(super) struct Parking {
    lock: Mutex<()>,
    wake: Condvar,
}

impl Parking {
    pub(super) fn new() -> Parking {
        Parking { lock: Mutex::new(()), wake: Condvar::new() }
    }

    /// Sleeps while `word` is `value`; may return early.
    pub(super) fn sleep(&self, word: &AtomicU32, value: u32) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // whoever changes the word takes the lock before it wakes: either the change is seen here, or the wake is not missed
        if word.load(Ordering::Relaxed) == value {
            drop(self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Wakes all who sleep on `word`, which has been changed before.
    pub(super) fn wake_all(&self, _word: &AtomicU32) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }
}
