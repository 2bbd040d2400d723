//! Measures stalls of the machine, whose time must not count against ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval of the measurement.
const LOOK: Duration = Duration::from_millis(10);

/// A thread that only sleeps, and sums by how much it wakes too late.
pub struct StallWatch {
    micros: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StallWatch {
    pub fn watch() -> StallWatch {
        let (micros, end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (add, ended) = (Arc::clone(&micros), Arc::clone(&end));
        let look = move || {
            while !ended.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(LOOK);
                let late = began.elapsed().saturating_sub(LOOK);
                add.fetch_add(u64::try_from(late.as_micros()).unwrap(), Ordering::Relaxed);
            }
        };
        StallWatch { micros, end, thread: Some(std::thread::spawn(look)) }
    }

    /// The sum of all stalls so far.
    pub fn total(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
