//! The `latent` program: thin commands over the engine.
//!
//! A library with one function, so that it is compiled in parallel with the kernels: a binary waits for all of its libraries.

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

/// The command tree, for tests that go through it.
#[doc(hidden)]
pub fn command() -> clap::Command {
    args::command()
}

/// Whether a command lacks a flag that the group of its model's flags has, for the same tests.
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
    interrupt::watch();
    latent_formats::install_sigbus_handler();
    let code = exit::code(commands::execute(args));
    ExitCode::from(ranks::end(code, code != 0 && !interrupt::asked()))
}
