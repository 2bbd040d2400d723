//! Parking until a word changes, by Linux's futex: no lock needed.

use libc::{FUTEX_PRIVATE_FLAG, FUTEX_WAIT, FUTEX_WAKE, SYS_futex, syscall, timespec};
use std::ptr::null;
use std::sync::atomic::AtomicU32;

/// Empty: the kernel keeps the list of parked threads.
pub(super) struct Parking;

impl Parking {
    pub(super) fn new() -> Parking {
        Parking
    }

    /// Parks while `word` is `value`; may return early.
    pub(super) fn sleep(&self, word: &AtomicU32, value: u32) {
        // SAFETY: the word outlives the call, which only reads it, and without a timeout. An error means that the word has changed already, or a
        // signal; the caller checks again either way.
        unsafe {
            syscall(SYS_futex, word.as_ptr(), FUTEX_WAIT | FUTEX_PRIVATE_FLAG, value, null::<timespec>());
        }
    }

    /// Wakes all threads parked on `word`, which the caller has changed.
    pub(super) fn wake_all(&self, word: &AtomicU32) {
        // SAFETY: the call uses the address of the word only; it fails for a bad address alone
        unsafe {
            syscall(SYS_futex, word.as_ptr(), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, i32::MAX);
        }
    }
}
