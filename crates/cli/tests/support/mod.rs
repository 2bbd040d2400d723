//! The program under test.
#![allow(dead_code, reason = "each test file uses a part of it")]

use assert_cmd::Command;
use std::path::{Path, PathBuf};

/// `latent` with these arguments, without a model from the environment, for at most 100 seconds.
pub fn latent(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("latent").unwrap();
    command.args(args).env_remove("LATENT_MODEL").timeout(std::time::Duration::from_secs(100));
    command
}

/// The demo model's file.
pub fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/mla-demo-Q4_K_M.gguf")
}
