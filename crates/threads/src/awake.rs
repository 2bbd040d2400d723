//! Number of awake workers over all thread pools of the process.
//!
//! If more workers are awake than there are CPUs, a spinning waiter takes the CPU from a worker that it may wait for. Several pools are awake
//! at once when a process runs several engines.

use std::sync::atomic::{AtomicIsize, Ordering};

/// Wraps below 0 for a moment if a caller that is not counted parks.
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

/// Runs `park`, during which the current thread does not count as awake.
pub(super) fn while_parked(park: impl FnOnce()) {
    AWAKE.fetch_sub(1, Ordering::Relaxed);
    park();
    AWAKE.fetch_add(1, Ordering::Relaxed);
}

/// Whether more workers are awake than `cpus`.
pub(super) fn crowded(cpus: usize) -> bool {
    AWAKE.load(Ordering::Relaxed) > isize::try_from(cpus).unwrap_or(isize::MAX)
}
