//! Bounds on the CPU time and the memory of one input.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// With the sanitizer everything takes longer, and memory that was freed stays.
const SLOWER: u32 = if cfg!(fuzzing) { 8 } else { 1 };

const MAX_CPU: Duration = Duration::from_secs(4);
const MAX_MEMORY: u64 = 320 << 20;

static MEMORY: AtomicBool = AtomicBool::new(cfg!(fuzzing));

/// Bounds memory from now on, too: for a process that runs one input at a time.
pub fn bound_memory() {
    MEMORY.store(true, Ordering::Relaxed);
}

/// Runs the work of one input.
///
/// # Panics
/// If it takes more than its bounds.
pub(crate) fn within<T>(work: impl FnOnce() -> T) -> T {
    let memory = MEMORY.load(Ordering::Relaxed);
    let before = if memory { reset_peak() } else { None };
    let (cpu, start) = (cpu_time(), Instant::now());
    let result = work();
    // of the process: what other tests take meanwhile is no more than the time that passes
    let cpu = cpu_time().map_or(start.elapsed(), |now| (now - cpu.unwrap_or_default()).min(start.elapsed()));
    assert!(cpu <= MAX_CPU * SLOWER, "{:.1} s of CPU time, more than {MAX_CPU:?}", cpu.as_secs_f64());
    if let (Some(before), Some(peak)) = (before, status("VmHWM:")) {
        let grown = peak.saturating_sub(before);
        assert!(
            grown <= MAX_MEMORY * u64::from(SLOWER),
            "{} MB, more than {}",
            grown >> 20,
            MAX_MEMORY >> 20
        );
    }
    result
}

#[cfg(unix)]
fn cpu_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).ok()?))
}

#[cfg(not(unix))]
fn cpu_time() -> Option<Duration> {
    None
}

/// Bytes in memory, from which on the peak counts; none where the system does not say.
fn reset_peak() -> Option<u64> {
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    status("VmRSS:")
}

fn status(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}
