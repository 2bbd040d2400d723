//! Several answers at once: steps that mix prompts and decoding, and sampling in parallel.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineOptions, Request, RunningAnswer};
use latent_formats::Checkpoint;
use latent_text::{EncodeOptions, Tokenizer};
use std::path::Path;
use std::sync::Arc;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let checkpoint = Arc::new(Checkpoint::open(Path::new(DEMO))?);
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint)?);
    let backend = latent_backends::cpu();
    let options = EngineOptions { context: Some(512), ..EngineOptions::default() };
    let mut engine = Engine::load(&*backend, &checkpoint, &options, &mut |_, _| {})?;

    let prompts = ["Once upon a time", "The little cat", "One day a boy found a box and"];
    let mut answers = Vec::new();
    for prompt in prompts {
        let prompt = tokenizer.encode(prompt, EncodeOptions { add_special: true, parse_special: false })?;
        let request = Request { prompt, max_tokens: Some(20), ..Request::default() };
        // A sequence frees its KV cache blocks when it is dropped.
        answers.push((Sequence::default(), engine.start(&request, &tokenizer)?));
    }
    let mut steps = 0;
    while answers.iter().any(|(_, generation)| !generation.is_finished()) {
        let mut running: Vec<RunningAnswer<'_>> = answers
            .iter_mut()
            .map(|(sequence, generation)| RunningAnswer::new(sequence, generation))
            .collect();
        // Each answer has its own result: an error ends that answer only. The outer `?` is for
        // errors of the whole step.
        for result in engine.advance(&mut running)? {
            result?;
        }
        steps += 1;
    }
    for (prompt, (_, generation)) in prompts.iter().zip(&answers) {
        println!("{prompt}{} [{:?}]", generation.text(), generation.stop_reason());
    }
    println!("{} answers in {steps} steps", answers.len());
    Ok(())
}
