//! The tile instructions of AMX on machines that lack them: for tests alone.
//!
//! A processor without tiles answers such an instruction with an exception, of which Linux makes the signal SIGILL. The handler that
//! [`install_amx`] installs computes what the instruction would have, with tiles that belong to the thread, and lets the program go on behind it.
//! Microseconds an instruction: it proves kernels right and says nothing of their speed.
//!
//! * `decode`: which instruction bytes are, and where its memory lies.
//! * `tiles`: what each instruction does to the tiles, by Intel's manual (volume 2, and chapter 18 of volume 1).
//! * `handler`: the signal.
#![allow(unsafe_code, reason = "a signal handler that reads and writes the memory that an instruction names")]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod decode;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod handler;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;

/// Installs the handler for the process; true where tile instructions are computed from now on. Other illegal instructions, and tile
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

/// Tile instructions that this thread has had computed.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn computed() -> u64 {
    handler::computed()
}

/// None on this system.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn computed() -> u64 {
    0
}
