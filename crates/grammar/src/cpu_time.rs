//! CPU time of a thread, read by the thread itself or by another one.

use std::time::{Duration, Instant};

/// CPU time of the calling thread.
#[cfg(unix)]
pub(crate) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Elapsed time, as a substitute for the CPU time of the calling thread.
#[cfg(not(unix))]
pub(crate) fn thread_time() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// Start of a thread's work. Other threads can read how much CPU time the work took since.
pub(crate) struct WorkStart {
    wall: Instant,
    #[cfg(target_os = "linux")]
    cpu: Duration,
    #[cfg(target_os = "linux")]
    thread: rustix::thread::Pid,
}

impl WorkStart {
    /// Starts measuring the calling thread.
    pub(crate) fn now() -> WorkStart {
        WorkStart {
            wall: Instant::now(),
            #[cfg(target_os = "linux")]
            cpu: thread_time(),
            #[cfg(target_os = "linux")]
            thread: rustix::thread::gettid(),
        }
    }

    /// Whether the work took at least `limit` of CPU time. Uses elapsed time if the system does not
    /// report another thread's CPU time.
    pub(crate) fn has_taken(&self, limit: Duration) -> bool {
        // CPU time never exceeds elapsed time, and the clock is cheaper to read than /proc.
        self.wall.elapsed() >= limit && self.cpu_time().is_none_or(|taken| taken >= limit)
    }

    #[cfg(target_os = "linux")]
    fn cpu_time(&self) -> Option<Duration> {
        // First field: time on the CPU in nanoseconds. On a busy machine elapsed time would cancel
        // masks that merely waited for a core.
        let path = format!("/proc/self/task/{}/schedstat", self.thread.as_raw_nonzero());
        let nanoseconds = std::fs::read_to_string(path).ok()?.split_whitespace().next()?.parse().ok()?;
        Some(Duration::from_nanos(nanoseconds).saturating_sub(self.cpu))
    }

    #[cfg(not(target_os = "linux"))]
    fn cpu_time(&self) -> Option<Duration> {
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_thread_takes_time_but_no_cpu_time() {
        let start = WorkStart::now();
        std::thread::sleep(Duration::from_millis(40));
        assert!(start.cpu_time().unwrap() < start.wall.elapsed());
        assert!(!start.has_taken(start.wall.elapsed()));
        while thread_time() < start.cpu + Duration::from_millis(20) {}
        // The kernel updates schedstat only when it switches or interrupts the thread, so poll.
        std::thread::scope(|scope| {
            scope.spawn(|| while !start.has_taken(Duration::from_millis(20)) {});
        });
    }
}
