//! Runs a target on files, without cargo-fuzz: `cargo run --release -p latent-fuzz-targets
//! --example replay TARGET FILE…`
//!
//! Prints a line per file: milliseconds, and the peak memory of the process so far.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its answers")]

use latent_fuzz_targets::TARGETS;
use std::time::Instant;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().unwrap_or_default();
    let Some((_, run)) = TARGETS.iter().find(|(name, _)| *name == target) else {
        let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
        eprintln!("replay TARGET FILE…; targets are {}", names.join(", "));
        std::process::exit(64);
    };
    for file in arguments {
        let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let start = Instant::now();
        run(&bytes);
        println!("{} ms, {}: {file}", start.elapsed().as_millis(), peak());
    }
}

/// The peak memory of the process, if the operating system reports it.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or_else(|| "memory not known".into(), |size| size.trim().to_owned())
}
