//! Sleeping until a word changes: Linux's own call for it, which needs no lock.

use rustix::thread::futex::{self, Flags};
use std::sync::atomic::AtomicU32;

/// Nothing: the kernel keeps the list of sleepers.
pub(super) struct Parking;

impl Parking {
    pub(super) fn new() -> Parking {
        Parking
    }

    /// Sleeps while `word` is `value`; may return early.
    pub(super) fn sleep(&self, word: &AtomicU32, value: u32) {
        // an error is a word that has changed already, or a signal; the caller looks again in either case
        let _ = futex::wait(word, Flags::PRIVATE, value, None);
    }

    /// Wakes all who sleep on `word`, which has been changed before.
    pub(super) fn wake_all(&self, word: &AtomicU32) {
        // fails for a bad address only
        let _ = futex::wake(word, Flags::PRIVATE, i32::MAX as u32);
    }
}
