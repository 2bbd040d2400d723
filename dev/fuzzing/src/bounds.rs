//! Bounds on the CPU time and the memory of one input.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Factor on both bounds under cargo-fuzz: AddressSanitizer slows everything down and keeps freed
/// memory in quarantine.
const SLOWER: u32 = if cfg!(fuzzing) { 8 } else { 1 };

// SECURITY.md promises 2 s of CPU time and 256 MB for the compilation of a grammar. The masks that
// the target computes afterwards come on top.
const MAX_CPU: Duration = Duration::from_secs(4);
const MAX_MEMORY: u64 = 320 << 20;

static MEMORY: AtomicBool = AtomicBool::new(cfg!(fuzzing));

/// Bounds memory, too, from now on. Only for a process that runs one input at a time, because the
/// peak is one of the whole process.
pub fn bound_memory() {
    MEMORY.store(true, Ordering::Relaxed);
}

/// Runs the work of one input and checks its CPU time and memory.
///
/// # Panics
/// If the work exceeds a bound.
pub(crate) fn run_bounded<T>(work: impl FnOnce() -> T) -> T {
    let memory = MEMORY.load(Ordering::Relaxed);
    let before = if memory { reset_peak() } else { None };
    let (cpu, start) = (cpu_time(), Instant::now());
    let result = work();
    // The clock counts the whole process, so tests that run in parallel add to it. Capping it at
    // the elapsed time keeps a short input below the bound, whatever the other tests do.
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

/// Resets the peak of the process's resident memory and returns its current size. `None` if the
/// system does not report it.
fn reset_peak() -> Option<u64> {
    // Writing 5 resets VmHWM to the current size (proc(5)).
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    status("VmRSS:")
}

fn status(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}
