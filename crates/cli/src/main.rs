//! The `latent` program: thin commands over the engine.

mod args;
mod commands;
mod exit;
mod input;
mod interrupt;
mod model;
mod output;
mod progress;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match args::Cli::try_parse() {
        Ok(args) => args,
        Err(error) => return exit::usage(&error),
    };
    interrupt::watch();
    exit::code(commands::execute(args))
}
