//! Jobs of this test's ranks under mpirun.

use crate::faulty::RankFault;
use crate::stalls::StallWatch;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Environment variables of the ranks.
pub const PARTITION: &str = "LATENT_TEST_PARTITION";
pub const FAULT: &str = "LATENT_TEST_FAULT";
pub const PATIENCE: &str = "LATENT_TEST_PATIENCE";

/// A file that is written when the fault strikes.
pub const STRUCK: &str = "LATENT_TEST_STRUCK";

/// Time after which a job counts as hung and mpirun is killed.
const HANGS: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub struct MpiJob {
    pub partition: &'static str,
    pub fault: Option<RankFault>,
    /// Use TCP as between hosts, and not shared memory.
    pub tcp: bool,
}

/// The outcome of a job.
pub struct MpiJobResult {
    pub status: ExitStatus,
    pub out: String,
    pub errors: String,
    /// Time from the fault to the end of mpirun and all ranks. `None` if no fault has struck.
    pub after: Option<Duration>,
    /// Time for which the machine stalled during the job.
    pub stalled: Duration,
}

impl MpiJob {
    /// Runs the job to its end. Returns `None` if mpirun is not installed.
    pub fn run(&self, patience: Duration, stalls: &StallWatch) -> Option<MpiJobResult> {
        let ranks = self.partition.parse::<latent_graph::Partition>().unwrap().ranks();
        let folder = tempfile::tempdir().unwrap();
        let [out, errors, struck] = ["out", "errors", "struck"].map(|name| folder.path().join(name));
        let mut command = Command::new("mpirun");
        command.args([
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none",
            "-n",
            &ranks.to_string(),
        ]);
        command.args(["--mca", "btl_vader_single_copy_mechanism", "none"]);
        // Concurrent jobs would create and remove the same session folder.
        command.args(["--mca", "orte_tmpdir_base"]).arg(folder.path());
        if self.tcp {
            command.args(["--mca", "btl", "tcp,self"]);
        }
        command.arg(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "rank", "--nocapture", "--test-threads=1"]);
        command.env(PARTITION, self.partition).env(STRUCK, &struck).env_remove(FAULT);
        command.env(PATIENCE, patience.as_secs().to_string());
        if let Some(fault) = self.fault {
            command.env(FAULT, fault.to_string());
        }
        command.stdin(Stdio::null());
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&errors).unwrap());
        let before = stalls.total();
        let mut mpirun = match command.spawn() {
            Ok(mpirun) => mpirun,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => panic!("mpirun: {error}"),
        };
        let began = Instant::now();
        let mut forced = false;
        let status = loop {
            if let Some(status) = mpirun.try_wait().unwrap() {
                break status;
            }
            if !forced && began.elapsed() > HANGS + (stalls.total() - before) {
                // Its ranks end with it.
                mpirun.kill().unwrap();
                forced = true;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let now = SystemTime::now();
        let at = std::fs::metadata(&struck).ok().map(|file| file.modified().unwrap());
        let text = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
        Some(MpiJobResult {
            status,
            out: text(&out),
            errors: text(&errors),
            after: at.map(|at| now.duration_since(at).unwrap_or_default()),
            stalled: stalls.total() - before,
        })
    }
}

/// Waits until all ranks of this test have ended.
///
/// # Errors
/// The ranks that still run after `at_most`.
pub fn wait_until_none_is_left(at_most: Duration) -> Result<(), String> {
    let began = Instant::now();
    loop {
        let left = left();
        if left.is_empty() {
            return Ok(());
        }
        if began.elapsed() > at_most {
            return Err(format!("ranks outlive their jobs: {left:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn left() -> Vec<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let is_rank = |process: &Path| {
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe == own)
            && environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(PARTITION.as_bytes()))
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    processes.filter(|process| is_rank(process)).collect()
}
