//! The CPUs that a thread may run on. Only Linux lets us read and set them.

#[cfg(target_os = "linux")]
use libc::{CPU_ISSET, CPU_SET, CPU_SETSIZE, cpu_set_t, sched_getaffinity, sched_setaffinity};

/// CPUs that a set has places for.
#[cfg(target_os = "linux")]
const MAX_CPUS: usize = CPU_SETSIZE as usize;

#[cfg(target_os = "linux")]
fn no_cpus() -> cpu_set_t {
    // SAFETY: it consists of integers; all bits 0 is the empty set
    unsafe { std::mem::zeroed() }
}

/// The affinity of this thread.
#[cfg(target_os = "linux")]
fn affinity() -> Option<cpu_set_t> {
    let mut set = no_cpus();
    // SAFETY: the kernel writes at most the set, whose size it is told
    let result = unsafe { sched_getaffinity(0, size_of::<cpu_set_t>(), &raw mut set) };
    (result == 0).then_some(set)
}

/// Sets the affinity of this thread. Returns whether the system has accepted it.
#[cfg(target_os = "linux")]
fn set_affinity(set: &cpu_set_t) -> bool {
    // SAFETY: the kernel reads the set, whose size it is told
    unsafe { sched_setaffinity(0, size_of::<cpu_set_t>(), set) == 0 }
}

/// CPUs that this thread may run on; none where the system does not say.
#[cfg(target_os = "linux")]
pub(super) fn allowed() -> Option<Vec<usize>> {
    let set = affinity()?;
    // SAFETY: the set has a place for each of them
    Some((0..MAX_CPUS).filter(|&cpu| unsafe { CPU_ISSET(cpu, &set) }).collect())
}

/// As on Linux: systems of this kind do not say.
#[cfg(not(target_os = "linux"))]
pub(super) fn allowed() -> Option<Vec<usize>> {
    None
}

/// Binds the thread that made it to some CPUs; dropping it restores the affinity from before.
pub(super) struct AffinityGuard {
    #[cfg(target_os = "linux")]
    before: cpu_set_t,
}

impl AffinityGuard {
    /// Binds this thread to `cpus`; none where the system refuses.
    #[cfg(target_os = "linux")]
    pub(super) fn to(cpus: &[usize]) -> Option<AffinityGuard> {
        let (before, mut set) = (affinity()?, no_cpus());
        for &cpu in cpus.iter().filter(|&&cpu| cpu < MAX_CPUS) {
            // SAFETY: the set has a place for it
            unsafe { CPU_SET(cpu, &mut set) };
        }
        set_affinity(&set).then_some(AffinityGuard { before })
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
        set_affinity(&self.before);
    }
}
