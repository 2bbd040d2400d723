//! The allocator's free memory.
//!
//! ```
//! latent_heap::trim();
//! ```
#![allow(unsafe_code, reason = "a call of the C library")]

/// Returns the allocator's free memory to the system. glibc keeps it while a single allocation
/// behind it is in use. Without glibc it does nothing.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: no pointer is passed, and the allocator locks what it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}
