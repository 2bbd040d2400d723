//! Thread affinity: the CPUs that a thread may run on. Implemented for Linux only.

#[cfg(target_os = "linux")]
use libc::{CPU_ISSET, CPU_SET, CPU_SETSIZE, cpu_set_t, sched_getaffinity, sched_setaffinity};

/// Capacity of a CPU set.
#[cfg(target_os = "linux")]
const MAX_CPUS: usize = CPU_SETSIZE as usize;

#[cfg(target_os = "linux")]
fn no_cpus() -> cpu_set_t {
    // SAFETY: the type consists of integers; all bits 0 is the empty set.
    unsafe { std::mem::zeroed() }
}

/// The affinity of this thread.
#[cfg(target_os = "linux")]
fn affinity() -> Option<cpu_set_t> {
    let mut set = no_cpus();
    // SAFETY: the kernel writes at most the size that it is given, which is that of the set.
    let result = unsafe { sched_getaffinity(0, size_of::<cpu_set_t>(), &raw mut set) };
    (result == 0).then_some(set)
}

/// Sets the affinity of this thread. Returns whether the system accepted it.
#[cfg(target_os = "linux")]
fn set_affinity(set: &cpu_set_t) -> bool {
    // SAFETY: the kernel reads at most the size that it is given, which is that of the set.
    unsafe { sched_setaffinity(0, size_of::<cpu_set_t>(), set) == 0 }
}

/// CPUs that this thread may run on; `None` if the system does not report them.
#[cfg(target_os = "linux")]
pub(super) fn allowed() -> Option<Vec<usize>> {
    let set = affinity()?;
    // SAFETY: each index is below the capacity of the set.
    Some((0..MAX_CPUS).filter(|&cpu| unsafe { CPU_ISSET(cpu, &set) }).collect())
}

/// `None`: not implemented for this system.
#[cfg(not(target_os = "linux"))]
pub(super) fn allowed() -> Option<Vec<usize>> {
    None
}

/// Binds the thread that creates it to some CPUs. Dropping it restores the previous affinity.
pub(super) struct AffinityGuard {
    #[cfg(target_os = "linux")]
    before: cpu_set_t,
}

impl AffinityGuard {
    /// Binds this thread to `cpus`; `None` if the system refuses.
    #[cfg(target_os = "linux")]
    pub(super) fn to(cpus: &[usize]) -> Option<AffinityGuard> {
        let (before, mut set) = (affinity()?, no_cpus());
        for &cpu in cpus.iter().filter(|&&cpu| cpu < MAX_CPUS) {
            // SAFETY: the index is below the capacity of the set.
            unsafe { CPU_SET(cpu, &mut set) };
        }
        set_affinity(&set).then_some(AffinityGuard { before })
    }

    /// `None`: not implemented for this system.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn to(_cpus: &[usize]) -> Option<AffinityGuard> {
        None
    }
}

#[cfg(target_os = "linux")]
impl Drop for AffinityGuard {
    fn drop(&mut self) {
        // Fails if the cpuset has shrunk in the meantime. The thread then stays bound, which is
        // slow but correct.
        set_affinity(&self.before);
    }
}
