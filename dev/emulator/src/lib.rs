//! Emulates AMX tile instructions on machines without them, for tests.
//!
//! A CPU without AMX raises an exception for such an instruction, which Linux turns into the signal
//! SIGILL. The handler that [`install_amx`] installs emulates the instruction on thread-local tiles
//! and continues with the next one. This takes microseconds per instruction: it tests the
//! correctness of kernels, not their speed.
//!
//! * `decode`: decodes instructions and memory operands.
//! * `tiles`: the semantics of each instruction, after Intel's manual (volume 2, and chapter 18 of
//!   volume 1).
//! * `handler`: the signal handler.
#![allow(unsafe_code, reason = "a signal handler that reads and writes the memory that an instruction names")]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod decode;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod handler;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;

/// Installs the handler for the process. Returns true if tile instructions are emulated from now
/// on. Other illegal instructions, and tile instructions that a processor would refuse too, end the
/// process as before.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn install_amx() -> bool {
    handler::install()
}

/// Installs nothing on this system.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn install_amx() -> bool {
    false
}

/// Number of tile instructions emulated for this thread so far.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn computed() -> u64 {
    handler::computed()
}

/// Always 0: this system emulates nothing.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn computed() -> u64 {
    0
}
