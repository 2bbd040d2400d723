//! CPU time of a thread, read by itself or by another thread.

use std::time::{Duration, Instant};

/// CPU time of the calling thread.
#[cfg(unix)]
pub(crate) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Time that stands for the CPU time of the calling thread.
#[cfg(not(unix))]
pub(crate) fn thread_time() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// The start of some work of a thread, by which other threads see how much CPU time the work took.
pub(crate) struct WorkStart {
    wall: Instant,
    #[cfg(target_os = "linux")]
    cpu: Duration,
    #[cfg(target_os = "linux")]
    thread: rustix::thread::Pid,
}

impl WorkStart {
    /// Work of the calling thread that starts now.
    pub(crate) fn now() -> WorkStart {
        WorkStart {
            wall: Instant::now(),
            #[cfg(target_os = "linux")]
            cpu: thread_time(),
            #[cfg(target_os = "linux")]
            thread: rustix::thread::gettid(),
        }
    }

    /// Whether the work took this much CPU time. Where the system does not tell, elapsed time counts.
    pub(crate) fn has_taken(&self, limit: Duration) -> bool {
        // a thread takes no more CPU time than time passes, and the clock is cheaper to read
        self.wall.elapsed() >= limit && self.cpu_time().is_none_or(|taken| taken >= limit)
    }

    #[cfg(target_os = "linux")]
    fn cpu_time(&self) -> Option<Duration> {
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
        // another thread sees it; the kernel updates the figure when it switches or interrupts the thread
        std::thread::scope(|scope| {
            scope.spawn(|| while !start.has_taken(Duration::from_millis(20)) {});
        });
    }
}
