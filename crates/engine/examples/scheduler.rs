//! A scheduler: a job with three answers, a job that is submitted while others run, and a common
//! prefix that runs once.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use latent_engine::scheduler::{Job, JobChoice, JobEvent, Scheduler, SchedulerOptions};
use latent_engine::{Engine, EngineOptions, Request};
use latent_formats::Checkpoint;
use latent_text::{EncodeOptions, Tokenizer};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let checkpoint = Arc::new(Checkpoint::open(Path::new(DEMO))?);
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint)?);
    // `context` limits one sequence. All sequences share the cache of `cache_tokens`.
    let options = EngineOptions { context: Some(512), cache_tokens: Some(4096), ..EngineOptions::default() };
    let engine = Engine::load(&*latent_backends::cpu(), &checkpoint, &options, &mut |_, _| {})?;
    let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());

    let job = |text: &str| -> Result<Job, Box<dyn std::error::Error>> {
        let prompt = tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false })?;
        Ok(Job { request: Request { prompt, max_tokens: Some(20), ..Request::default() }, ..Job::default() })
    };
    let mut texts = BTreeMap::new();
    scheduler.submit_choices(
        job("Once upon a time, there was a little girl who lived in a small house near the big forest. One day")?,
        vec![JobChoice { seed: 1, ..JobChoice::default() }, JobChoice { seed: 2, ..JobChoice::default() }],
    )?;
    for step in 0.. {
        if step == 5 {
            scheduler.submit(job("Once upon a time, there was a little girl who had a red ball.")?)?;
        }
        let more = scheduler.step(&mut |id, event| match event {
            JobEvent::Started { cached_tokens, .. } => {
                println!("{id:?} starts in step {step}, {cached_tokens} tokens cached");
            }
            JobEvent::Token(chosen) => texts.entry(id).or_insert_with(String::new).push_str(&chosen.text),
            JobEvent::Finished { reason, rest, usage } => {
                println!("{id:?} [{reason:?}, {} tokens]:{}{rest}", usage.completion, texts[&id]);
            }
            _ => {}
        })?;
        if !more {
            break;
        }
    }
    let stats = scheduler.stats();
    println!("{} jobs in {} steps, {} tokens of prompts ran", stats.finished, stats.steps, stats.tokens_in);
    Ok(())
}
