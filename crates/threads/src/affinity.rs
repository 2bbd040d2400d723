//! The CPUs that threads may run on. Systems other than Linux leave threads where they are.

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs that this thread may run on; none where the system does not say.
#[cfg(target_os = "linux")]
pub(super) fn allowed() -> Option<Vec<usize>> {
    let set = sched_getaffinity(None).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// CPUs that this thread may run on; none where the system does not say.
#[cfg(not(target_os = "linux"))]
pub(super) fn allowed() -> Option<Vec<usize>> {
    None
}

/// While this lives, the thread that made it runs on some CPUs alone.
pub(super) struct Bound {
    #[cfg(target_os = "linux")]
    before: CpuSet,
}

impl Bound {
    /// Binds this thread to `cpus`; none where the system refuses.
    #[cfg(target_os = "linux")]
    pub(super) fn to(cpus: &[usize]) -> Option<Bound> {
        let before = sched_getaffinity(None).ok()?;
        let mut set = CpuSet::new();
        cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
        sched_setaffinity(None, &set).ok()?;
        Some(Bound { before })
    }

    /// Binds this thread to `cpus`; none where the system refuses.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn to(_cpus: &[usize]) -> Option<Bound> {
        None
    }
}

#[cfg(target_os = "linux")]
impl Drop for Bound {
    fn drop(&mut self) {
        // the set was in force before; where it no longer may be, the thread stays where it is
        let _ = sched_setaffinity(None, &self.before);
    }
}
