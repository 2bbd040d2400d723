//! The primitives of the barrier and the work queues. `tests/loom.rs` compiles the same files with loom's
//! types in place of these, and runs them through every interleaving.

#[cfg(not(target_os = "linux"))]
pub(super) use std::sync::{Condvar, Mutex};
pub(super) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Instant,
};

pub(super) use super::awake::{crowded, while_parked};

/// Polls between two looks at the clock: about a microsecond.
pub(super) const LOOKS: usize = 16;

#[cfg(target_os = "linux")]
pub(super) use super::futex::Parking;
#[cfg(not(target_os = "linux"))]
pub(super) use super::park::Parking;
