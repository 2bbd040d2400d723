//! Parking until a word changes, by Linux's futex: no lock needed.

use rustix::thread::futex::{self, Flags};
use std::sync::atomic::AtomicU32;

/// Empty: the kernel keeps the list of parked threads.
pub(super) struct Parking;

impl Parking {
    pub(super) fn new() -> Parking {
        Parking
    }

    /// Parks while `word` is `value`; may return early.
    pub(super) fn sleep(&self, word: &AtomicU32, value: u32) {
        // an error means that the word has changed already, or a signal; the caller checks again either way
        let _ = futex::wait(word, Flags::PRIVATE, value, None);
    }

    /// Wakes all threads parked on `word`, which the caller has changed.
    pub(super) fn wake_all(&self, word: &AtomicU32) {
        // fails for a bad address only
        let _ = futex::wake(word, Flags::PRIVATE, i32::MAX as u32);
    }
}
