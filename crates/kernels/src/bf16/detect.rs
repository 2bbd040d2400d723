//! Whether there are tiles: processor, operating system, permission.
#![allow(unsafe_code, reason = "processor and system are asked in their own ways")]

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether tiles count as there, whatever processor and system say.
static ASSUMED: AtomicBool = AtomicBool::new(false);

/// From now on tiles count as there, on a processor that has what else the tier needs. For tests, which have their instructions
/// computed by a signal handler; to be called before plans are made.
///
/// # Safety
/// Something computes the instructions of tiles in every thread of this process, as the handler of the crate `emulator` does once its
/// `install_amx` has returned true.
pub unsafe fn assume_amx() {
    ASSUMED.store(true, Ordering::Relaxed);
}

/// Whether [`assume_amx`] was called.
pub fn assumed() -> bool {
    ASSUMED.load(Ordering::Relaxed)
}

/// Whether this process may use tiles with products of bf16 and of bytes. On Linux the system is asked for permission, which holds for all threads; it
/// gives memory for a thread's tiles when they are used first.
pub(crate) fn found() -> bool {
    processor_has_tiles() && system_keeps_tiles() && permitted()
}

fn processor_has_tiles() -> bool {
    use std::arch::x86_64::__cpuid_count;
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    let all = BF16 | TILE | INT8;
    // leaf 7, of which the first leaf says whether it is there
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & all == all
}

/// Whether the operating system saves the configuration (bit 17) and the contents (bit 18) of tiles when it switches threads.
fn system_keeps_tiles() -> bool {
    const TILES: u64 = 3 << 17;
    // a processor without the instruction has no tiles either
    if !std::arch::is_x86_feature_detected!("xsave") || std::arch::x86_64::__cpuid(1).ecx & (1 << 27) == 0 {
        return false;
    }
    // SAFETY: the system has switched the instruction on, as just asked.
    unsafe { std::arch::x86_64::_xgetbv(0) & TILES == TILES }
}

/// Linux lets a process use tiles after it has asked: arch_prctl(ARCH_REQ_XCOMP_PERM, 18).
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const REQUEST: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    // SAFETY: a request that touches no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

/// Other systems are not known to let tiles be used.
#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}
