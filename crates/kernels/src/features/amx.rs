//! Detection of AMX: CPU, operating system, and the permission of the process.
#![allow(unsafe_code, reason = "cpuid, xgetbv and a system call")]

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether AMX counts as present regardless of detection.
static ASSUMED: AtomicBool = AtomicBool::new(false);

/// Makes AMX count as present from now on. The CPU must have the other features of the tier. For
/// tests that emulate AMX instructions in a signal handler; call it before plans are made.
///
/// # Safety
/// AMX instructions are emulated in every thread of this process, as by the handler of the crate
/// `latent-emulator` once its `install_amx` has returned true.
pub unsafe fn assume_amx() {
    ASSUMED.store(true, Ordering::Relaxed);
}

/// Whether [`assume_amx`] was called.
pub(super) fn assumed() -> bool {
    ASSUMED.load(Ordering::Relaxed)
}

/// Whether this process may use AMX with bf16 and int8 products. Requests Linux's permission, which
/// holds for all threads; the kernel allocates a thread's tile state on first use.
pub(super) fn found() -> bool {
    cpu_has_amx() && os_saves_tile_state() && request_permission()
}

fn cpu_has_amx() -> bool {
    use std::arch::x86_64::__cpuid_count;
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    let all = BF16 | TILE | INT8;
    // Leaf 0 returns the highest leaf. Reading leaf 7 of an older CPU returns the data of another
    // leaf.
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & all == all
}

/// Whether the operating system saves tile configuration (bit 17) and tile data (bit 18) on a
/// context switch.
fn os_saves_tile_state() -> bool {
    const TILES: u64 = 3 << 17;
    // Without OSXSAVE (leaf 1, ECX bit 27), `xgetbv` faults.
    if !std::arch::is_x86_feature_detected!("xsave") || std::arch::x86_64::__cpuid(1).ecx & (1 << 27) == 0 {
        return false;
    }
    // SAFETY: OSXSAVE is set, as just checked, so `xgetbv` is enabled.
    unsafe { std::arch::x86_64::_xgetbv(0) & TILES == TILES }
}

/// Linux lets a process use tile data only after a request: arch_prctl(ARCH_REQ_XCOMP_PERM, 18).
/// Without it the first tile instruction raises SIGILL. Kernels before 5.16 lack the call, so it
/// fails there.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const REQUEST: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    // SAFETY: this system call reads and writes no memory of the process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

/// No permission interface is known on other systems, so AMX counts as absent.
#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}
