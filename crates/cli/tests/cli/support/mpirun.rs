//! `latent` over several processes of mpirun.
#![allow(dead_code, reason = "each test file uses a part of it")]

#[path = "signals.rs"]
mod signals;

use nix::unistd::Pid;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

pub const LATENT: &str = env!("CARGO_BIN_EXE_latent");

/// Arguments of mpirun for processes on this machine, however many cores it has.
pub const MPIRUN: [&str; 7] = [
    "--allow-run-as-root",
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "btl_vader_single_copy_mechanism",
    "none",
];

/// Timeout of a job on a machine with other load.
pub const ENDED: Duration = Duration::from_secs(15);

/// mpirun; `None` if it is not installed.
pub fn mpirun() -> Option<Command> {
    signals::prepare();
    if Command::new("mpirun").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no mpirun");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.args(MPIRUN);
    Some(command)
}

/// `ranks` processes of one command.
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

/// The child processes of a process.
pub fn started_by(pid: u32) -> Vec<Pid> {
    let pids = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    pids.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap())).collect()
}

/// The ranks that an mpirun has started.
pub fn children(mpirun: u32, count: usize) -> Vec<Pid> {
    let start = Instant::now();
    loop {
        let mut found: Vec<(usize, Pid)> = Vec::new();
        for pid in started_by(mpirun) {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let rank = environment
                .split(|byte| *byte == 0)
                .find_map(|entry| entry.strip_prefix(b"OMPI_COMM_WORLD_RANK="));
            if let Some(rank) = rank.filter(|_| is_latent(pid)) {
                found.push((String::from_utf8_lossy(rank).parse().unwrap(), pid));
            }
        }
        if found.len() == count {
            found.sort_by_key(|(rank, _)| *rank);
            return found.into_iter().map(|(_, pid)| pid).collect();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "mpirun started {} of {count} ranks", found.len());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_latent(pid: Pid) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(LATENT))
}

/// Checks that no rank outlives its job.
pub fn nothing_is_left(pids: &[Pid]) {
    let start = Instant::now();
    while pids.iter().any(|pid| is_latent(*pid)) {
        assert!(start.elapsed() < ENDED, "a rank outlives its job");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Requests a completion of a text.
pub fn post(address: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close";
    stream.write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    stream
}
