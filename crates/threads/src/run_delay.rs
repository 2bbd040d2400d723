//! Run-queue delay of workers: the time that they were ready to run while other threads used their
//! CPUs, from Linux's schedstat.

use std::fs::File;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A counter per worker of a pool.
pub(super) struct RunDelays(Box<[Mutex<Option<File>>]>);

impl RunDelays {
    pub(super) fn new(workers: usize) -> RunDelays {
        RunDelays((0..workers).map(|_| Mutex::default()).collect())
    }

    /// Opens the counter of the calling thread, which is this worker. Has no effect on systems
    /// other than Linux and on kernels without schedstat.
    pub(super) fn register(&self, worker: usize) {
        let counter =
            if cfg!(target_os = "linux") { File::open("/proc/thread-self/schedstat").ok() } else { None };
        *self.0[worker].lock().unwrap_or_else(PoisonError::into_inner) = counter;
    }

    /// Time that a worker's thread has waited for a CPU since it started.
    pub(super) fn of(&self, worker: usize) -> Option<Duration> {
        let counter = self.0[worker].lock().unwrap_or_else(PoisonError::into_inner);
        // Three numbers of at most twenty digits. Reading from offset 0 makes the kernel generate
        // the text again, so the file stays open.
        let mut text = [0; 96];
        let length = read_from_start(counter.as_ref()?, &mut text)?;
        // Fields: nanoseconds on a CPU, nanoseconds waiting for one, number of time slices.
        let waited = std::str::from_utf8(&text[..length]).ok()?.split_ascii_whitespace().nth(1)?;
        Some(Duration::from_nanos(waited.parse().ok()?))
    }
}

#[cfg(unix)]
fn read_from_start(file: &File, text: &mut [u8]) -> Option<usize> {
    std::os::unix::fs::FileExt::read_at(file, text, 0).ok()
}

#[cfg(not(unix))]
fn read_from_start(_file: &File, _text: &mut [u8]) -> Option<usize> {
    None
}
