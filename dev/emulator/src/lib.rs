//! Emulates AMX tile instructions on machines without them, for tests.
//!
//! A CPU without AMX raises an exception for such an instruction, which Linux turns into the signal SIGILL. The handler that
//! [`install_amx`] installs emulates the instruction with thread-local tiles and continues behind it.
//! It takes microseconds per instruction: it tests the correctness of kernels, not their speed.
//!
//! * `decode`: instructions and memory operands from bytes.
//! * `tiles`: the semantics of each instruction, from Intel's manual (volume 2, and chapter 18 of volume 1).
//! * `handler`: the signal.
#![allow(unsafe_code, reason = "a signal handler that reads and writes the memory that an instruction names")]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod decode;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod handler;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;

/// Installs the handler for the process; true if tile instructions are emulated from now on. Other illegal instructions, and tile
/// instructions that a processor would refuse too, end the process as before.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn install_amx() -> bool {
    handler::install()
}

/// Installs nothing on this system.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn install_amx() -> bool {
    false
}

/// Tile instructions emulated for this thread so far.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn computed() -> u64 {
    handler::computed()
}

/// None on this system.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn computed() -> u64 {
    0
}
