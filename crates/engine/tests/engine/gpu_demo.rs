//! The demo model on a GPU, asked its evaluation questions. Where no driver offers an adapter, the
//! test says that it was skipped; `REQUIRE_GPU=1` makes that an error.
#![allow(missing_docs, clippy::print_stdout, reason = "tests, and what is skipped is named")]

use latent_backend_wgpu::{GpuBackend, GpuError};
use latent_engine::sampling::SamplingParams;
use latent_engine::{EngineOptions, Session};
use latent_graph::passes::Precision;
use serde_json::Value;

use crate::support::demo::{demo, demo_on, models};
use crate::support::exhaustive;

/// Maximum number of tokens of an answer.
const ANSWER: usize = 300;

/// Seven questions of every kind (twenty with `LATENT_TEST_EXHAUSTIVE`). Few of them have long
/// prompts, since software adapters are slow.
fn questions() -> Vec<Value> {
    let text = std::fs::read_to_string(models().join("eval.jsonl")).unwrap();
    let all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| -> Vec<Value> { all.iter().filter(|q| q["kind"] == kind).cloned().collect() };
    let shortest = |kind: &str, count: usize| {
        let mut found = of(kind);
        found.sort_by_key(|question| question["prompt"].as_str().unwrap().len());
        found.truncate(count);
        found
    };
    let mut asked: Vec<Value> = of("task").into_iter().step_by(if exhaustive() { 6 } else { 20 }).collect();
    asked.extend(shortest("retrieval", if exhaustive() { 2 } else { 1 }));
    asked.extend(shortest("story", 1));
    asked
}

#[test]
fn it_answers_questions_as_the_cpu_does() {
    let gpu = match GpuBackend::open(0) {
        Ok(gpu) => gpu,
        Err(GpuError::NoAdapter) if std::env::var_os("REQUIRE_GPU").is_none() => {
            println!("SKIPPED: no adapter");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let options = EngineOptions { threads: Some(1), precision: Precision::Exact, ..EngineOptions::default() };
    let (mut cpu, mut gpu) = (demo(&options), demo_on(&gpu, &options));
    let (mut of_cpu, mut of_gpu) = (Session::default(), Session::default());
    let (mut right, mut alike, mut tokens) = (0, 0, 0);
    let asked = questions();
    let questions = asked.len();
    assert!(questions == if exhaustive() { 20 } else { 7 });
    for question in asked {
        let prompt = question["prompt"].as_str().unwrap();
        let expected = cpu.ask(&mut of_cpu, prompt, ANSWER, &SamplingParams::greedy());
        let found = gpu.ask(&mut of_gpu, prompt, ANSWER, &SamplingParams::greedy());
        right += usize::from(found.text == question["expected"].as_str().unwrap());
        alike += usize::from(found.text == expected.text);
        tokens += found.tokens.len();
    }
    println!("{right} of {questions} questions, {alike} answers as on the CPU, {tokens} tokens");
    // Another order of sums may change one answer.
    assert!(alike + 1 >= questions, "{alike} of {questions} answers");
    assert!(right * 100 >= questions * 85, "{right} of {questions} questions");
}
