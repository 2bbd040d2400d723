//! Emulates AMX instructions on CPUs that lack them: for tests alone.
//!
//! A CPU without AMX raises an exception, which Linux turns into SIGILL. The handler that [`install_amx`]
//! installs computes the result of the instruction, with tiles per thread, and resumes the program after it.
//! Microseconds per instruction: it proves kernels right and says nothing about their speed.
//!
//! * `decode`: from bytes to an instruction and its memory operand.
//! * `tiles`: tile state, and the effect of each instruction, after Intel's manual (volume 2, and chapter 18
//!   of volume 1).
//! * `handler`: the signal handler.
#![allow(unsafe_code, reason = "a signal handler that reads and writes the memory that an instruction names")]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod decode;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod handler;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;

/// Installs the handler for the process. True where AMX instructions are emulated from now on. Other illegal
/// instructions, and AMX instructions that a CPU would refuse too, end the process as before.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn install_amx() -> bool {
    handler::install()
}

/// Installs nothing on this system.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn install_amx() -> bool {
    false
}

/// Number of AMX instructions emulated on this thread.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn computed() -> u64 {
    handler::computed()
}

/// None on this system.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn computed() -> u64 {
    0
}
