//! Thread priorities.

/// Lowers the priority of the current thread permanently: `steps` is added to its nice value. If
/// all CPUs are busy, a thread at 5 gets a third of the time of a thread at 0. Has no effect if the
/// system refuses, and on systems other than Linux, whose nice values apply to whole processes.
pub fn lower_priority(steps: u8) {
    #[cfg(target_os = "linux")]
    // SAFETY: `nice` has no preconditions. On Linux it applies to the current thread.
    unsafe {
        libc::nice(i32::from(steps));
    }
    #[cfg(not(target_os = "linux"))]
    let _ = steps;
}
