//! `latent serve --restart`: ranks that are gone come back, with their cache on disk, and end with
//! the process that started them. Built with the feature `mpi`; without mpirun, each test reports
//! that it is skipped.
#![allow(missing_docs, clippy::print_stderr, reason = "tests")]

use crate::support::mpirun;
use crate::support::mpirun::{ENDED, LATENT, MPIRUN, children, nothing_is_left, post, started_by};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Within what time a request hears that a rank is gone.
const WITHIN: Duration = Duration::from_secs(5);

/// How long anything else may take on a machine that has other work.
const PATIENCE: Duration = Duration::from_secs(60);

const RANKS: usize = 2;

struct MpiServer {
    child: Child,
    /// What it prints, line by line.
    lines: Receiver<String>,
    folder: tempfile::TempDir,
    address: String,
}

impl Drop for MpiServer {
    fn drop(&mut self) {
        // one that has ended needs no end
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl MpiServer {
    /// Serves the demo model over ranks; none without mpirun.
    fn start() -> Option<MpiServer> {
        mpirun::mpirun()?;
        let folder = tempfile::tempdir().unwrap();
        // one port for all jobs that follow on each other
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let launch = format!("mpirun -n {RANKS} {}", MPIRUN.join(" "));
        let errors = std::fs::File::create(folder.path().join("errors")).unwrap();
        let mut child = Command::new(LATENT)
            .args(["serve", "-t", "1", "--ctx-size", "2048", "--partition", "pipeline=2", "--restart"])
            .args(["--launch", &launch, "--port", &port.to_string(), "--cache-disk"])
            .arg(folder.path().join("cache"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap();
        let (tell, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            // a test that has ended hears nothing
            out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        let server = MpiServer { child, lines, folder, address: format!("127.0.0.1:{port}") };
        server.wait_until_it_serves();
        Some(server)
    }

    fn wait_until_it_serves(&self) {
        let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{}", self.errors()));
        assert!(line.ends_with(&format!(" at http://{}", self.address)), "{line}");
    }

    fn errors(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.path().join("errors")).unwrap()).into_owned()
    }

    fn mpirun(&self) -> Pid {
        let started = started_by(self.child.id());
        assert_eq!(started.len(), 1, "{started:?}");
        started[0]
    }

    /// mpirun and its ranks.
    fn processes(&self) -> (Pid, Vec<Pid>) {
        let mpirun = self.mpirun();
        (mpirun, children(mpirun.as_raw().unsigned_abs(), RANKS))
    }

    /// The text that follows on a long prompt, and how much of the prompt was cached.
    fn complete(&self) -> (String, u64) {
        let mut answer = String::new();
        post(&self.address, &body(12, false)).read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let json = &answer[answer.find('{').unwrap()..=answer.rfind('}').unwrap()];
        let value: Value = serde_json::from_str(json).unwrap();
        let cached = value["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (value["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
    }

    /// Sends a signal to a rank, or to mpirun, while an answer is streamed; what the client still
    /// gets, and how long after.
    fn disturb(&self, rank: Option<usize>, signal: Signal) -> (String, Duration) {
        let (mpirun, ranks) = self.processes();
        let mut stream = BufReader::new(post(&self.address, &body(1800, true)));
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert!(stream.read_line(&mut line).unwrap() > 0, "no answer: {}", self.errors());
        }
        kill(rank.map_or(mpirun, |rank| ranks[rank]), signal).unwrap();
        let sent = Instant::now();
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => {}
            // the process at its other end is gone
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
        let after = sent.elapsed();
        self.wait_until_it_serves();
        nothing_is_left(&ranks);
        (String::from_utf8(rest).unwrap(), after)
    }

    fn end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < ENDED, "it does not end: {}", self.errors());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn body(max_tokens: usize, stream: bool) -> String {
    // some blocks of the cache
    let prompt = "A fox carried a lantern through the wood, and the owl asked it why. ".repeat(16);
    let body = json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": stream, "ignore_eos": true});
    body.to_string()
}

/// Bytes of the files in a folder, and below.
fn bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            if entry.path().is_dir() { bytes(&entry.path()) } else { entry.metadata().map_or(0, |m| m.len()) }
        })
        .sum()
}

fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

#[test]
fn failed_ranks_restart_with_their_cache() {
    let Some(server) = MpiServer::start() else { return };
    let (text, cached) = server.complete();
    assert!(!text.is_empty() && cached == 0, "{text}, {cached}");
    let start = Instant::now();
    while bytes(&server.folder.path().join("cache")) == 0 {
        assert!(start.elapsed() < PATIENCE, "nothing is kept on disk");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (killed, stopped) = (Signal::SIGKILL, Signal::SIGSTOP);
    let faults = [(Some(1), killed), (Some(1), stopped), (Some(0), killed), (None, killed)];
    for (rank, signal) in faults {
        let (rest, after) = server.disturb(rank, signal);
        let end = rest.get(rest.len().saturating_sub(600)..).unwrap_or(&rest);
        eprintln!("{signal} to {rank:?}: heard after {:.2} s: {}", after.as_secs_f64(), end.trim());
        assert!(after < WITHIN, "{after:?}: {end}");
        // Without mpirun the ranks end in order, and the answer may complete first.
        assert!(rank.is_none() || !rest.contains(r#""finish_reason":"length""#), "ran to its end: {end}");
        // Otherwise rank 0 ends, which serves the client.
        let told = end.contains(r#"{"error":"#) && end.contains("rank 1 on host ");
        assert!(told || rank != Some(1), "{end}\n{}", server.errors());
        let (again, cached) = server.complete();
        assert!(again == text && cached > 0, "{again}, {cached}");
    }
    let errors = server.errors();
    assert_eq!(errors.matches("restarting them").count(), faults.len(), "{errors}");
}

#[test]
fn no_rank_outlives_the_process_that_started_it() {
    let Some(mut server) = MpiServer::start() else { return };
    let (mpirun, ranks) = server.processes();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    nothing_is_left(&ranks);
    let start = Instant::now();
    while is_running(mpirun) {
        assert!(start.elapsed() < ENDED, "mpirun outlives the process that started it");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn ctrl_c_lets_answers_finish_and_ends_restarts() {
    let Some(mut server) = MpiServer::start() else { return };
    let (mpirun, ranks) = server.processes();
    let mut stream = BufReader::new(post(&server.address, &body(1000, true)));
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "no answer: {}", server.errors());
    }
    kill(Pid::from_raw(server.child.id().cast_signed()), Signal::SIGINT).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"), "the answer was cut: {rest}");
    assert_eq!(server.end().code(), Some(130), "{}", server.errors());
    nothing_is_left(&ranks);
    let errors = server.errors();
    assert!(!is_running(mpirun) && !errors.contains("error") && !errors.contains("again:"), "{errors}");
}

#[test]
fn final_failures_are_not_restarted() {
    let wrong = |launch: &str| {
        let flags = ["-m", "a=/no/such.gguf", "-m", "b=/no/such.gguf"];
        let output = Command::new(LATENT)
            .args(["serve", "--restart", "--launch", launch])
            .args(flags)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{text}");
        text
    };
    let absent = wrong("/no/such/launcher -n 2");
    assert!(absent.contains("--launch: /no/such/launcher cannot be started"), "{absent}");
    let refused = wrong("env");
    assert!(refused.matches("file not found").count() == 1 && !refused.contains("again"), "{refused}");
}
