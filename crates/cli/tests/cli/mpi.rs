//! One model over several processes of mpirun: bits, texts, what differs at start, ranks that die
//! or stop. Built with the feature `mpi`; without mpirun, each test reports that it is skipped.
#![allow(missing_docs, clippy::print_stderr, reason = "tests")]

use crate::support::mpirun::{
    ENDED, LATENT, children, fixture, mpirun, nothing_is_left, post, ranks, stderr, stdout,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const TOKENS: &str = "1,5,9,2,7,3,8,11,40,41,42,43,44,45,46,47,48,49";

fn logits_args(model: &str) -> Vec<&str> {
    vec![
        "logits",
        "-m",
        model,
        "--tokens",
        TOKENS,
        "--rows",
        "all",
        "--json",
        "--precision",
        "exact",
        "-t",
        "1",
    ]
}

fn logits(text: &str) -> Vec<f64> {
    let value: Value = serde_json::from_str(text).unwrap();
    let rows = value["logits"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
    rows.map(|logit| logit.as_f64().unwrap()).collect()
}

#[test]
fn one_to_three_ranks_give_the_logits_of_one_process() {
    let model = fixture("v3");
    let alone = stdout(&Command::new(LATENT).args(logits_args(&model)).output().unwrap());
    for (count, partition) in [
        (1, "pipeline=1"),
        (2, "pipeline=2"),
        (3, "pipeline=3"),
        (2, "tensor=2"),
        (3, "experts=3"),
        (2, "tensor=2,experts=2"),
    ] {
        let Some(mut command) =
            ranks(count, &[&logits_args(&model)[..], &["--partition", partition]].concat())
        else {
            return;
        };
        let shared = stdout(&command.output().unwrap());
        if partition.starts_with("pipeline") {
            assert!(shared == alone, "{partition}: not the bits of one process");
            continue;
        }
        let (shared, alone) = (logits(&shared), logits(&alone));
        let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
        let error =
            squares(&mut shared.iter().zip(&alone).map(|(a, b)| a - b)) / squares(&mut alone.iter().copied());
        assert!(error <= 1e-9, "{partition}: {error:e}");
    }
}

#[test]
fn only_rank_0_prints_and_its_text_equals_that_of_one_process() {
    let args = ["run", "--temp", "0", "-n", "24", "-t", "1", "Tell me a story about a fox and a lantern."];
    let alone = Command::new(LATENT).args(args).output().unwrap();
    // Without --partition, a pipeline over all ranks.
    let Some(mut command) = ranks(2, &args) else { return };
    let shared = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(stdout(&shared), stdout(&alone));
    let ready = stderr(&shared).matches(" parameters, ").count();
    assert_eq!(ready, 1, "{}", stderr(&shared));
    let bench = ["bench", "-p", "8", "-n", "4", "-r", "1", "-t", "1", "--json"];
    let measured = stdout(&ranks(2, &bench).unwrap().output().unwrap());
    let rows: Value = serde_json::from_str(&measured).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2, "{measured}");
}

#[test]
fn incompatible_ranks_end_with_an_error() {
    let (v3, other) = (fixture("v3"), fixture("moonlight"));
    let Some(mut command) = ranks(3, &[&logits_args(&v3)[..], &["--partition", "pipeline=2"]].concat())
    else {
        return;
    };
    let output = command.output().unwrap();
    assert!(
        !output.status.success()
            && stderr(&output).contains("needs 2 ranks, but the job has 3: start mpirun -n 2"),
        "{}",
        stderr(&output)
    );
    let precise = logits_args(&v3);
    let quick: Vec<&str> =
        precise.iter().copied().filter(|arg| !["--precision", "exact"].contains(arg)).collect();
    for (second, part) in [
        (logits_args(&other), "differs from rank 0 in model file"),
        (quick, "differs from rank 0 in precision"),
    ] {
        let mut command = mpirun().unwrap();
        command.args(["-n", "1", LATENT]).args(&precise).args([":", "-n", "1", LATENT]).args(second);
        let output = command.output().unwrap();
        let error = stderr(&output);
        assert!(
            !output.status.success() && error.contains("rank 1 on host ") && error.contains(part),
            "{error}"
        );
    }
}

#[test]
fn a_rank_needs_only_the_shards_with_its_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let made = Command::new(LATENT)
        .args(["make-model", "tiny-v3", "Q8_0", &at("m.gguf"), "--layers", "4", "--shards", "8"])
        .output();
    stdout(&made.unwrap());
    let shard = |number: usize| format!("m-{number:05}-of-00008.gguf");
    let alone = Command::new(LATENT).args(logits_args(&at(&shard(1)))).output().unwrap();
    let alone = stdout(&alone);
    let hosts = "[link]\ngbit_per_s = 1\nlatency_us = 1\n".to_owned()
        + &"[[host]]\nname = \"a\"\nread_gb_per_s = 10\n".repeat(2);
    std::fs::write(at("hosts.toml"), hosts).unwrap();
    let planned = Command::new(LATENT)
        .args(["plan-hosts", "-m", &at(&shard(1)), &at("hosts.toml"), "--partition", "pipeline=2", "--json"])
        .output();
    let planned: Value = serde_json::from_str(&stdout(&planned.unwrap())).unwrap();
    let mut opened = Vec::new();
    for rank in ["0", "1"] {
        let files = planned["ranks"][rank.parse::<usize>().unwrap()]["files"].as_array().unwrap();
        assert!(files.len() < 8, "{planned}");
        std::fs::create_dir(at(rank)).unwrap();
        for file in files.iter().filter_map(Value::as_str) {
            std::fs::copy(at(file), at(&format!("{rank}/{file}"))).unwrap();
        }
        opened.push(at(&format!("{rank}/{}", shard(1))));
    }
    let Some(mut command) = mpirun() else { return };
    command.args(["-n", "1", LATENT]).args(logits_args(&opened[0])).args([":", "-n", "1", LATENT]);
    let shared = command.args(logits_args(&opened[1])).output().unwrap();
    assert!(stdout(&shared) == alone, "not the bits of one process");
    // Two ranks with the same folder, in which rank 1 lacks files.
    let output = ranks(2, &logits_args(&opened[0])).unwrap().output().unwrap();
    let error = stderr(&output);
    assert!(!output.status.success() && error.contains("no rank has m-0000"), "{error}");
}

/// Sends a signal to a rank in the middle of its steps. Returns how mpirun ended, and after which
/// time.
fn disturb(rank: usize, signal: Signal) -> Option<(Output, Duration, Vec<Pid>)> {
    // More steps than can run while the test waits.
    let mut command =
        ranks(3, &["bench", "-m", &fixture("v3"), "-p", "0", "-n", "64", "-r", "60000", "-t", "1"])?;
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pids = children(child.id(), 3);
    std::thread::sleep(Duration::from_secs(2));
    assert!(child.try_wait().unwrap().is_none(), "it is still running");
    kill(pids[rank], signal).unwrap();
    let sent = Instant::now();
    let output = child.wait_with_output().unwrap();
    Some((output, sent.elapsed(), pids))
}

/// The body of an answer to a request for the end of a text.
fn completion(address: &str) -> String {
    let body = r#"{"model":"any","prompt":"A fox","max_tokens":12,"temperature":0}"#;
    let mut stream = post(address, body);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let value: Value =
        serde_json::from_str(&answer[answer.find('{').unwrap()..=answer.rfind('}').unwrap()]).unwrap();
    value["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// Serves with this command until `text` was requested twice, then ends rank 0 as a user would.
fn served(mut command: Command, count: usize) -> Vec<String> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit_once("http://").unwrap().1.to_owned();
    // One after the other, and two concurrently.
    let first = completion(&address);
    let both = [address.clone(), address].map(|address| std::thread::spawn(move || completion(&address)));
    let texts = [first].into_iter().chain(both.into_iter().map(|thread| thread.join().unwrap())).collect();
    let rank0 = if count == 0 { Pid::from_raw(child.id() as i32) } else { children(child.id(), count)[0] };
    kill(rank0, Signal::SIGTERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = stderr(&output);
    assert!(!error.contains("error:") && !error.contains("MPI_ABORT"), "{error}");
    texts
}

#[test]
fn a_server_over_ranks_answers_as_one_process_does() {
    let args = ["serve", "--port", "0", "-t", "1", "--ctx-size", "512"];
    let Some(command) = ranks(2, &[&args[..], &["--partition", "pipeline=2"]].concat()) else { return };
    let shared = served(command, 2);
    let mut alone = Command::new(LATENT);
    alone.args(args);
    assert_eq!(shared, served(alone, 0));
    assert!(!shared[0].is_empty() && shared[0] == shared[1], "{shared:?}");
}

#[test]
fn a_rank_that_is_killed_ends_the_others() {
    for rank in [0, 2] {
        let Some((output, after, pids)) = disturb(rank, Signal::SIGKILL) else { return };
        eprintln!("rank {rank} killed: ended after {:.2} s", after.as_secs_f64());
        let error = stderr(&output);
        assert!(!output.status.success() && after < ENDED, "{after:?}: {error}");
        assert!(error.contains(&format!("rank {rank}")) && error.contains("Killed"), "{error}");
        nothing_is_left(&pids);
    }
}

#[test]
fn a_stopped_rank_is_detected() {
    let Some((output, after, pids)) = disturb(1, Signal::SIGSTOP) else { return };
    eprintln!("rank 1 stopped: ended after {:.2} s", after.as_secs_f64());
    let error = stderr(&output);
    assert!(!output.status.success() && after < ENDED, "{after:?}: {error}");
    assert!(
        error.contains("lost rank 1 on host ") && error.contains(": it has not responded for 3 s"),
        "{error}"
    );
    nothing_is_left(&pids);
}

#[test]
fn four_ranks_each_hold_a_part_of_a_sparse_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.gguf");
    let model = path.to_str().unwrap();
    let made =
        Command::new(LATENT).args(["make-model", "tiny-v3", "Q2_K", model, "--sparse"]).output().unwrap();
    stdout(&made);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::metadata(&path).unwrap();
        assert!(
            found.blocks() * 512 < found.len() / 2,
            "{} of {} bytes on disk",
            found.blocks() * 512,
            found.len()
        );
    }
    let hosts = folder.path().join("hosts.toml");
    let host = "[[host]]\nname = \"a\"\nmemory_gb = 1\nread_gb_per_s = 10\ngflops = 100\n";
    std::fs::write(&hosts, format!("[link]\ngbit_per_s = 10\nlatency_us = 20\n{}", host.repeat(4))).unwrap();
    let bench = ["bench", "-m", model, "-p", "16", "-n", "4", "-r", "1", "-t", "1", "--json", "--hosts-file"];
    let bench = [&bench[..], &[hosts.to_str().unwrap(), "--partition", "pipeline=2,experts=2"]].concat();
    let Some(mut command) = ranks(4, &bench) else { return };
    let rows: Value = serde_json::from_str(&stdout(&command.output().unwrap())).unwrap();
    for row in rows.as_array().unwrap() {
        assert!(
            row["avg_ts"].as_f64().unwrap() > 0.0 && row["predicted_ts"].as_f64().unwrap() > 0.0,
            "{row}"
        );
    }
    // Measured on two of them.
    let measure = ["plan-hosts", "-m", model, "-t", "1", "-p", "16", "--ctx-size", "64", "--measure"];
    let measure = [&measure[..], &[hosts.to_str().unwrap(), "--force", "--json"]].concat();
    let found: Value = serde_json::from_str(&stdout(&ranks(2, &measure).unwrap().output().unwrap())).unwrap();
    assert!(found["tokens_per_second"].as_f64().unwrap() > 0.0, "{found}");
    let text = std::fs::read_to_string(&hosts).unwrap();
    assert!(text.contains("latency_us") && text.matches("[[host]]").count() == 2, "{text}");
}
