//! Every example runs and prints the expected results. `cargo test` builds them first.

use std::path::PathBuf;
use std::process::Command;

/// The output of an example.
fn output(name: &str) -> String {
    let test = std::env::current_exe().unwrap();
    // The test is target/release/deps/examples-…, and the examples are in target/release/examples.
    let folder: PathBuf = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples");
    let file = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let out = Command::new(&file).output().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{name}: {text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

#[test]
fn one_answer_is_printed_as_it_comes() {
    let text = output("generate");
    assert!(text.split_whitespace().count() > 10 && text.contains("[40 tokens, Length]"), "{text}");
}

#[test]
fn several_answers_share_their_steps() {
    let text = output("batch");
    assert!(text.contains("3 answers in 20 steps"), "{text}");
}

#[test]
fn jobs_come_while_others_run_and_share_a_prefix() {
    let text = output("scheduler");
    assert!(text.contains("4 jobs in ") && text.matches("Length, 20 tokens").count() == 4, "{text}");
    // The other answers to the first prompt share its rows. A later job runs concurrently.
    for shared in ["JobId(1) starts", "JobId(2) starts"] {
        let line = text.lines().find(|line| line.starts_with(shared)).unwrap_or_default();
        assert!(line.ends_with("tokens cached") && !line.ends_with(", 0 tokens cached"), "{text}");
    }
    assert!(text.contains("JobId(3) starts in step 5"), "{text}");
}

#[test]
fn drafts_do_not_change_the_text() {
    let text = output("drafts");
    assert!(
        text.contains("drafts accepted; the same text without: true") && !text.contains("[0 of"),
        "{text}"
    );
}

#[test]
fn a_letter_can_be_forbidden() {
    let text = output("custom_sampler");
    assert!(text.contains("without e:") && text.contains("second best:"), "{text}");
}

#[test]
fn a_circuit_of_ones_own_runs_and_a_broken_one_is_refused() {
    let text = output("own_circuit");
    assert!(text.contains("the same from JSON") && text.contains("undefined_value"), "{text}");
}

#[test]
fn both_backends_compute_the_same() {
    let text = output("backend_trait");
    let error = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(error("reference"), 0.0, "{text}");
    assert!(error("cpu") < 0.05, "{text}");
}
