//! `latent` over several processes of mpirun.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub const LATENT: &str = env!("CARGO_BIN_EXE_latent");

/// mpirun for processes of this machine, however many cores it has; none where it is not installed.
pub fn mpirun() -> Option<Command> {
    if Command::new("mpirun").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no mpirun");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
        "--mca",
        "btl_vader_single_copy_mechanism",
        "none",
    ]);
    Some(command)
}

/// So many ranks of one command.
pub fn ranks(count: usize, args: &[&str]) -> Option<Command> {
    let mut command = mpirun()?;
    command.args(["-n", &count.to_string(), LATENT]).args(args);
    Some(command)
}

pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn fixture(name: &str) -> String {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures").join(name);
    folder.to_str().unwrap().to_owned()
}
