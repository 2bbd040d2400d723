//! The switch for AVX-VNNI in AVX2 kernels.

use std::sync::atomic::{AtomicBool, Ordering};

static AVX_VNNI: AtomicBool = AtomicBool::new(true);

/// Allows or forbids AVX-VNNI in AVX2 matmuls, for the whole process; it is allowed by default.
/// Both forms give the same bits. For tests and measurements of the form without it on a CPU that
/// has it.
pub fn allow_avx_vnni(allowed: bool) {
    AVX_VNNI.store(allowed, Ordering::Relaxed);
}

/// Whether AVX2 matmuls may use AVX-VNNI if the CPU has it.
#[cfg(target_arch = "x86_64")]
pub(super) fn avx_vnni_allowed() -> bool {
    AVX_VNNI.load(Ordering::Relaxed)
}
