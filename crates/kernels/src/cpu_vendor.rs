//! Who made the processor: what no feature flag tells, and memory and caches depend on.

use std::sync::OnceLock;

/// The maker of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vendor {
    /// AMD, or Hygon, which builds the same cores.
    Amd,
    /// Intel and all others.
    Other,
}

impl Vendor {
    /// That of this processor, asked once.
    pub fn detect() -> Vendor {
        static FOUND: OnceLock<Vendor> = OnceLock::new();
        *FOUND.get_or_init(|| match &name() {
            b"AuthenticAMD" | b"HygonGenuine" => Vendor::Amd,
            _ => Vendor::Other,
        })
    }
}

/// The maker's name, as the processor gives it.
#[cfg(target_arch = "x86_64")]
fn name() -> [u8; 12] {
    let found = std::arch::x86_64::__cpuid(0);
    let mut name = [0; 12];
    for (part, register) in name.chunks_exact_mut(4).zip([found.ebx, found.edx, found.ecx]) {
        part.copy_from_slice(&register.to_le_bytes());
    }
    name
}

/// Other architectures do not tell it.
#[cfg(not(target_arch = "x86_64"))]
fn name() -> [u8; 12] {
    [0; 12]
}
