//! Parking until a word changes, by Linux's futex, without a lock.

use libc::{FUTEX_PRIVATE_FLAG, FUTEX_WAIT, FUTEX_WAKE, SYS_futex, syscall, timespec};
use std::ptr::null;
use std::sync::atomic::AtomicU32;

/// Empty, since the kernel keeps the list of parked threads.
pub(super) struct Parking;

impl Parking {
    pub(super) fn new() -> Parking {
        Parking
    }

    /// Parks while `word` is `value`; may return early.
    pub(super) fn sleep(&self, word: &AtomicU32, value: u32) {
        // The kernel compares the word and parks atomically with respect to `FUTEX_WAKE`, so a
        // wake-up after the change is not lost. An error means that the word has already changed,
        // or a signal; the caller checks again in both cases. PRIVATE skips the look-up for words
        // shared between processes.
        // SAFETY: the word outlives the call, which only reads it. The timeout is null.
        unsafe {
            syscall(SYS_futex, word.as_ptr(), FUTEX_WAIT | FUTEX_PRIVATE_FLAG, value, null::<timespec>());
        }
    }

    /// Wakes all threads parked on `word`, which the caller has changed.
    pub(super) fn wake_all(&self, word: &AtomicU32) {
        // SAFETY: the call uses the word only as an address; it fails only for an invalid one.
        unsafe {
            syscall(SYS_futex, word.as_ptr(), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, i32::MAX);
        }
    }
}
