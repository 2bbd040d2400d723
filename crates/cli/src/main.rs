//! The `latent` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    latent_cli::main()
}
