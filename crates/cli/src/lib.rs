//! The `latent` program: thin commands over the engine.
//!
//! It is a library with one function. A binary is compiled only after all of its libraries; a
//! library is compiled in parallel with the kernels.

mod args;
mod commands;
mod cpu_info;
mod exit;
mod flags;
mod hosts_file;
mod hub;
mod input;
mod interrupt;
mod job;
mod markdown;
mod model;
mod output;
mod pack_cache;
mod prediction;
mod progress;
mod ranks;
mod server;
mod target;

use std::process::ExitCode;

/// The command tree, for tests that walk it.
#[doc(hidden)]
pub fn command() -> clap::Command {
    args::command()
}

/// Whether a command omits a flag of the shared model flags, for the same tests.
#[doc(hidden)]
pub fn is_absent(path: &str, id: &str) -> bool {
    args::is_absent(path, id)
}

/// Flags of other servers and what they mean, for the same tests and for docs/switching.md.
#[doc(hidden)]
pub use args::{CompatRow, compat_rows, read_line};

/// Runs the command given by the process's arguments and returns its exit code.
pub fn main() -> ExitCode {
    let args = match args::Cli::read(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => return exit::usage(&error),
    };
    // Signals are blocked per thread, and threads inherit the mask: this call comes before any
    // other thread exists.
    interrupt::watch();
    // Weights are memory-mapped: reading a file that another program has truncated raises SIGBUS.
    latent_formats::install_sigbus_handler();
    let code = exit::code(commands::execute(args));
    // A failed rank aborts the MPI job, because the other ranks would wait for it. After a signal
    // this rank leaves the job in order instead.
    ExitCode::from(ranks::end(code, code != 0 && !interrupt::asked()))
}
