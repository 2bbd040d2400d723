//! The program under test.

use assert_cmd::Command;

/// `latent` with these arguments, without a model from the environment, for at most 100 seconds.
pub fn latent(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("latent").unwrap();
    command.args(args).env_remove("LATENT_MODEL").timeout(std::time::Duration::from_secs(100));
    command
}
