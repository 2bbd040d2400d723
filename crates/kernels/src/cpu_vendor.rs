//! CPU vendor detection. The best prefetch order and blocking depend on the memory system, which no
//! feature flag describes.

use std::sync::OnceLock;

/// CPUs whose memory systems need different kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CpuVendor {
    // Zen 5 keeps enough requests to L1 in flight to prefetch there, Zen 4 does not: see
    // `PrefetchOrder`.
    AmdZen5,
    /// AMD before Zen 5, and Hygon, whose cores are derived from Zen 1.
    Amd,
    /// Intel and all others.
    Other,
}

impl CpuVendor {
    /// The vendor of this CPU, detected once.
    pub fn detect() -> CpuVendor {
        static FOUND: OnceLock<CpuVendor> = OnceLock::new();
        *FOUND.get_or_init(|| match &name() {
            b"AuthenticAMD" if family() >= ZEN5_FAMILY => CpuVendor::AmdZen5,
            b"AuthenticAMD" | b"HygonGenuine" => CpuVendor::Amd,
            _ => CpuVendor::Other,
        })
    }
}

/// The vendor string of CPUID leaf 0.
#[cfg(target_arch = "x86_64")]
fn name() -> [u8; 12] {
    let found = std::arch::x86_64::__cpuid(0);
    let mut name = [0; 12];
    // The string is in EBX, EDX, ECX, in this order.
    for (part, register) in name.chunks_exact_mut(4).zip([found.ebx, found.edx, found.ecx]) {
        part.copy_from_slice(&register.to_le_bytes());
    }
    name
}

/// Unknown on other architectures.
#[cfg(not(target_arch = "x86_64"))]
fn name() -> [u8; 12] {
    [0; 12]
}

/// Zen 1 and 2 are family 0x17, Zen 3 and 4 family 0x19.
const ZEN5_FAMILY: u32 = 0x1A;

/// The family of CPUID leaf 1.
#[cfg(target_arch = "x86_64")]
fn family() -> u32 {
    let version = std::arch::x86_64::__cpuid(1).eax;
    // The extended family counts only if the base family is 15 (AMD64 Architecture Programmer's
    // Manual, CPUID Fn0000_0001).
    let (base, extended) = (version >> 8 & 0xF, version >> 20 & 0xFF);
    if base == 0xF { base + extended } else { base }
}

/// Unknown on other architectures.
#[cfg(not(target_arch = "x86_64"))]
fn family() -> u32 {
    0
}
