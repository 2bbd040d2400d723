//! A barrier that spins for a while and then sleeps.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Rounds of spinning before a waiter gives its core away. About 20 µs: longer than the spread of a phase, shorter than a
/// time slice that another thread would need.
const SPINS: usize = 4000;

/// Waits for a fixed number of threads, again and again.
pub(super) struct Barrier {
    threads: usize,
    spins: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    broken: AtomicBool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Barrier {
    pub(super) fn new(threads: usize) -> Barrier {
        // more threads than cores: whoever spins keeps the core from whoever it waits for
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Barrier {
            threads,
            spins: if threads > cores { 0 } else { SPINS },
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Waits until all threads are here; false when the barrier was broken open instead.
    pub(super) fn wait(&self) -> bool {
        let generation = self.generation.load(Ordering::SeqCst);
        if self.broken.load(Ordering::SeqCst) {
            return false;
        }
        if self.arrived.fetch_add(1, Ordering::SeqCst) + 1 == self.threads {
            self.arrived.store(0, Ordering::SeqCst);
            self.generation.fetch_add(1, Ordering::SeqCst);
            self.wake_sleepers();
            return true;
        }
        let passed = || self.generation.load(Ordering::SeqCst) != generation;
        for _ in 0..self.spins {
            if passed() {
                return true;
            }
            if self.broken.load(Ordering::SeqCst) {
                return false;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // announced before the check: whoever changes the generation later sees a sleeper and takes the lock to wake it
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !passed() && !self.broken.load(Ordering::SeqCst) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        passed()
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    /// Lets everybody through for good: somebody will never come.
    pub(super) fn break_open(&self) {
        self.broken.store(true, Ordering::SeqCst);
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }

    /// Makes a broken barrier whole, once nobody waits at it.
    pub(super) fn reset(&self) {
        self.arrived.store(0, Ordering::SeqCst);
        self.broken.store(false, Ordering::SeqCst);
    }
}
