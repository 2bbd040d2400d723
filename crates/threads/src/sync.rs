//! Synchronization primitives of the barrier and the work queues. `tests/loom.rs` compiles the same
//! files with loom's types instead, and runs them through every interleaving.

#[cfg(not(target_os = "linux"))]
pub(super) use std::sync::{Condvar, Mutex};
pub(super) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Instant,
};

pub(super) use super::awake::{crowded, while_parked};

/// Polls of the word between two reads of the clock: about a microsecond. Reading the clock takes
/// longer than a poll.
pub(super) const POLLS: usize = 16;

#[cfg(target_os = "linux")]
pub(super) use super::futex::Parking;
#[cfg(not(target_os = "linux"))]
pub(super) use super::park::Parking;
