//! Commands over several processes of mpirun: sequences in flight, what crosses, and commands other
//! than `run` and `serve`. Built with the feature `mpi`; without mpirun, each test reports that it
//! is skipped.
#![allow(missing_docs, clippy::print_stderr, reason = "tests")]

use crate::support::mpirun::{LATENT, fixture, mpirun, ranks, stderr, stdout};
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};

const TOKENS: &str = "1,5,9,2,7,3,8,11,40,41,42,43,44,45,46,47,48,49";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The same command in one process and over ranks.
fn both(count: usize, partition: &str, args: &[&str]) -> Option<(Output, Output)> {
    let shared =
        ranks(count, &[args, &["--partition", partition]].concat())?.stdin(Stdio::null()).output().unwrap();
    let alone = Command::new(LATENT).args(args).stdin(Stdio::null()).output().unwrap();
    Some((alone, shared))
}

#[test]
fn several_sequences_are_measured_over_two_and_three_ranks() {
    let model = fixture("v3");
    for (count, partition) in [(2, "pipeline=2"), (3, "pipeline=3")] {
        // Prompts in chunks, and as many sequences as ranks or more.
        let args = ["bench", "-m", &model, "-p", "24", "-b", "8", "-n", "6", "--sequences", "1,2,5"];
        let args = [&args[..], &["-r", "1", "-t", "1", "--json", "--partition", partition]].concat();
        let Some(mut command) = ranks(count, &args) else { return };
        let rows = json(&stdout(&command.output().unwrap()));
        let measured: Vec<_> = rows
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (row["n_prompt"].as_u64().unwrap(), row["n_sequences"].as_u64().unwrap()))
            .collect();
        assert_eq!(measured, [(24, 1), (0, 1), (0, 2), (0, 5)], "{rows}");
        assert!(rows.as_array().unwrap().iter().all(|row| row["avg_ts"].as_f64().unwrap() > 0.0), "{rows}");
    }
}

fn logits(text: &str) -> Vec<f64> {
    let value = json(text);
    let rows = value["logits"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
    rows.map(|logit| logit.as_f64().unwrap()).collect()
}

#[test]
fn rows_cross_in_bf16_where_all_ranks_say_so() {
    let model = fixture("v3");
    let args = [
        "logits",
        "-m",
        &model,
        "--tokens",
        TOKENS,
        "--rows",
        "all",
        "--json",
        "--precision",
        "exact",
        "-t",
        "1",
    ];
    for partition in ["pipeline=2", "tensor=2"] {
        let halved = [&args[..], &["--wire", "bf16"]].concat();
        let Some((alone, shared)) = both(2, partition, &halved) else { return };
        let (alone, text) = (logits(&stdout(&alone)), stdout(&shared));
        let shared = logits(&text);
        let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
        let error =
            squares(&mut shared.iter().zip(&alone).map(|(a, b)| a - b)) / squares(&mut alone.iter().copied());
        // 8 bits per row that crosses, and not more than a few of them.
        assert!((1e-9..1e-3).contains(&error), "{partition}: {error:e}");
        let again = ranks(2, &[&halved[..], &["--partition", partition]].concat()).unwrap().output().unwrap();
        assert!(stdout(&again) == text, "{partition}: equal between runs");
    }
    let Some(mut command) = mpirun() else { return };
    command
        .args(["-n", "1", LATENT])
        .args(args)
        .args([":", "-n", "1", LATENT])
        .args(args)
        .args(["--wire", "bf16"]);
    let output = command.output().unwrap();
    let error = stderr(&output);
    assert!(
        !output.status.success()
            && error.contains("differs from rank 0 in type on the wire: bf16 instead of f32"),
        "{error}"
    );
}

#[test]
fn a_conversation_over_ranks_equals_that_of_one_process() {
    let chat = |mut command: Command| {
        command.args(["chat", "-q", "--precision", "exact", "--temp", "0", "-n", "12", "-t", "1"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = "Tell me a story about a fox and a lantern.\nAnd another one.\n/regen\n";
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        stdout(&child.wait_with_output().unwrap())
    };
    let Some(command) = ranks(3, &[]) else { return };
    let shared = chat(command);
    assert_eq!(shared, chat(Command::new(LATENT)));
    assert_eq!(shared.lines().count(), 3, "{shared}");
}

#[test]
fn a_profile_shows_what_every_rank_does() {
    let args = ["profile", "-m", &fixture("v3"), "-n", "2", "-p", "20", "-t", "1"];
    for partition in ["pipeline=3", "tensor=3"] {
        let args = [&args[..], &["--json", "--partition", partition]].concat();
        let Some(mut command) = ranks(3, &args) else { return };
        let profile = json(&stdout(&command.output().unwrap()));
        for step in profile["steps"].as_array().unwrap() {
            let ranks = step["ranks"].as_array().unwrap();
            assert_eq!(ranks.iter().map(|rank| rank["rank"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
            for rank in ranks {
                let (all, waited) =
                    (rank["millis"].as_f64().unwrap(), rank["collective_millis"].as_f64().unwrap());
                assert!(
                    0.0 < waited && waited < all && rank["idle_millis"].as_f64().unwrap() > 0.0,
                    "{rank}"
                );
                let operations = rank["operations"].as_array().unwrap();
                let has = |word: &str| operations.iter().any(|operation| operation[0] == word);
                let (there, absent) = match partition {
                    "tensor=3" => ("all_reduce", "receive_rows"),
                    _ => ("receive_rows", "all_reduce"),
                };
                assert!(has("linear") && has(there) && !has(absent), "{partition}: {rank}");
            }
        }
    }
    let Some((alone, shared)) = both(2, "pipeline=2", &args) else { return };
    assert!(stdout(&shared).contains("rank 1 on ") && stdout(&shared).contains("receive_rows"));
    assert!(!stdout(&alone).contains("rank 1 on "));
}

#[test]
fn a_perplexity_over_ranks_equals_that_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let (text, base) = (folder.path().join("text"), folder.path().join("base"));
    let (text, base) = (text.to_str().unwrap(), base.to_str().unwrap());
    std::fs::write(text, "A fox carried a lantern through the wood, and the owl asked it why. ".repeat(40))
        .unwrap();
    let common = ["--ctx-size", "64", "--chunks", "3", "--precision", "exact", "-t", "1", "--json"];
    let perplexity = [&["eval", "perplexity", text][..], &common].concat();
    let Some((alone, shared)) = both(2, "pipeline=2", &perplexity) else { return };
    let of = |output: &Output| json(&stdout(output))["found"].clone();
    assert_eq!(of(&alone), of(&shared));
    // Compared with a base in a file. A base that would run first is refused.
    let written = [&perplexity[..], &["--kl-divergence-base", base]].concat();
    stdout(&Command::new(LATENT).args(&written).output().unwrap());
    let kl = ["eval", "kl", "--kl-divergence-base", base, "--precision", "exact", "-t", "1", "--json"];
    let (alone, shared) = both(2, "pipeline=2", &kl).unwrap();
    assert_eq!(of(&alone), of(&shared));
    let refused = ranks(2, &["eval", "kl", text, "--ctx-size", "64", "-t", "1"]).unwrap().output().unwrap();
    assert!(
        !refused.status.success() && stderr(&refused).contains("several ranks cannot load a base model"),
        "{}",
        stderr(&refused)
    );
}
