//! The CPUs that a thread may run on. Only Linux lets us read and set them.

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs that this thread may run on; none where the system does not say.
#[cfg(target_os = "linux")]
pub(super) fn allowed() -> Option<Vec<usize>> {
    let set = sched_getaffinity(None).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// As on Linux: systems of this kind do not say.
#[cfg(not(target_os = "linux"))]
pub(super) fn allowed() -> Option<Vec<usize>> {
    None
}

/// Binds the thread that made it to some CPUs; dropping it restores the affinity from before.
pub(super) struct AffinityGuard {
    #[cfg(target_os = "linux")]
    before: CpuSet,
}

impl AffinityGuard {
    /// Binds this thread to `cpus`; none where the system refuses.
    #[cfg(target_os = "linux")]
    pub(super) fn to(cpus: &[usize]) -> Option<AffinityGuard> {
        let before = sched_getaffinity(None).ok()?;
        let mut set = CpuSet::new();
        cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
        sched_setaffinity(None, &set).ok()?;
        Some(AffinityGuard { before })
    }

    /// None: systems of this kind do not bind threads.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn to(_cpus: &[usize]) -> Option<AffinityGuard> {
        None
    }
}

#[cfg(target_os = "linux")]
impl Drop for AffinityGuard {
    fn drop(&mut self) {
        // fails when a cpuset has shrunk meanwhile: then the thread stays bound, which is slow but right
        let _ = sched_setaffinity(None, &self.before);
    }
}
