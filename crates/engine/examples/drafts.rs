//! An answer with drafts of the model's MTP layer, and the same answer without:
//! `cargo run --release -p latent-engine --example drafts -- MODEL "question"`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use latent_engine::{Draft, Engine, EngineOptions, Listener, Request, Session};
use latent_formats::Checkpoint;
use latent_text::{EncodeOptions, Tokenizer};
use std::path::Path;
use std::sync::Arc;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");

struct QuietListener;

impl Listener for QuietListener {}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().unwrap_or_else(|| DEMO.into());
    let prompt = args.next().unwrap_or_else(|| "Once upon a time".into());

    let checkpoint = Arc::new(Checkpoint::open(Path::new(&model))?);
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint)?);
    let backend = latent_backends::cpu();
    // The weights of the MTP layer are loaded only with this option.
    let options = EngineOptions { draft: Draft::Mtp, ..EngineOptions::default() };
    let mut engine = Engine::load(&*backend, &checkpoint, &options, &mut |_, _| {})?;

    let request = Request {
        prompt: tokenizer.encode(&prompt, EncodeOptions { add_special: true, parse_special: false })?,
        max_tokens: Some(60),
        ..Request::default()
    };
    let drafted = engine.generate(&mut Session::default(), &request, &tokenizer, &mut QuietListener)?;
    let plain = Request { max_drafts: Some(0), ..request };
    let plain = engine.generate(&mut Session::default(), &plain, &tokenizer, &mut QuietListener)?;
    println!("{}", drafted.text);
    println!(
        "[{} of {} drafts accepted; the same text without: {}]",
        drafted.drafts.accepted,
        drafted.drafts.drafted,
        drafted.tokens == plain.tokens
    );
    Ok(())
}
