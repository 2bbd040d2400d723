//! Threads that keep CPUs busy, to measure with other programs on the machine.

use anyhow::{Context, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Threads that compute nothing until this is dropped.
pub(crate) struct BusyThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyThreads {
    pub(crate) fn start(count: usize) -> Result<BusyThreads> {
        let mut busy = BusyThreads { stop: Arc::default(), threads: Vec::new() };
        for _ in 0..count {
            let stop = Arc::clone(&busy.stop);
            let spin = move || while !stop.load(Ordering::Relaxed) {};
            let thread = std::thread::Builder::new().name("busy".into()).spawn(spin);
            busy.threads.push(thread.context("starting a busy thread")?);
        }
        Ok(busy)
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // a thread that only spins cannot have panicked
            let _ = thread.join();
        }
    }
}
