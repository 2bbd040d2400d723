//! Number of awake workers over all thread pools of the process.
//!
//! If more workers are awake than the machine has CPUs, a spinning waiter may take the CPU of a
//! worker that it waits for. This happens when a process runs several engines: two engines of two
//! threads took 1.9 times as long concurrently as one after the other (Zen 3).
// measured: docs/notes/threads-and-placement.md "Sharing cores with another program"

use std::sync::atomic::{AtomicIsize, Ordering};

/// Signed, since it is negative for a moment if a caller without a guard parks.
// Relaxed: the count is a heuristic and protects no data.
static AWAKE: AtomicIsize = AtomicIsize::new(0);

/// Counts the current thread as awake until it is dropped.
pub(super) struct AwakeGuard(());

impl AwakeGuard {
    pub(super) fn new() -> AwakeGuard {
        AWAKE.fetch_add(1, Ordering::Relaxed);
        AwakeGuard(())
    }
}

impl Drop for AwakeGuard {
    fn drop(&mut self) {
        AWAKE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `park`, not counting the current thread as awake meanwhile.
pub(super) fn while_parked(park: impl FnOnce()) {
    AWAKE.fetch_sub(1, Ordering::Relaxed);
    park();
    AWAKE.fetch_add(1, Ordering::Relaxed);
}

/// Whether more workers are awake than `cpus`.
pub(super) fn crowded(cpus: usize) -> bool {
    AWAKE.load(Ordering::Relaxed) > isize::try_from(cpus).unwrap_or(isize::MAX)
}
