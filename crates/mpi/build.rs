//! Fails with an explanation if the feature `mpi` is enabled and no MPI library is installed.
#![allow(clippy::print_stdout, reason = "what a build script prints is for cargo")]

use std::process::Command;

fn main() {
    if std::env::var_os("CARGO_FEATURE_MPI").is_none() {
        // Without the feature, a change of the environment must not run this script again.
        println!("cargo::rerun-if-changed=build.rs");
        return;
    }
    println!("cargo::rerun-if-env-changed=MPICC");
    println!("cargo::rerun-if-env-changed=PATH");
    let mpicc = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    if !Command::new(&mpicc).arg("-show").output().is_ok_and(|shown| shown.status.success()) {
        println!(
            "cargo::error=the feature `mpi` needs an MPI with its C headers, and {mpicc} does not run: install openmpi-bin, libopenmpi-dev and \
             libclang-dev (Debian), or build without the feature"
        );
    }
}
