//! Answers a question and prints the answer while it is generated:
//! `cargo run --release -p latent-engine --example generate -- MODEL "question"`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use latent_engine::{Engine, EngineOptions, Listener, Request, Session, TokenEvent};
use latent_formats::Checkpoint;
use latent_text::{EncodeOptions, Tokenizer};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");

/// Prints each piece of text.
struct TerminalListener;

impl Listener for TerminalListener {
    fn token(&mut self, event: &TokenEvent<'_>) -> bool {
        print!("{}", event.text);
        // Returning false ends the answer, here when the terminal is closed.
        std::io::stdout().flush().is_ok()
    }

    fn rest(&mut self, text: &str) {
        print!("{text}");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().unwrap_or_else(|| DEMO.into());
    let prompt = args.next().unwrap_or_else(|| "Once upon a time".into());

    let checkpoint = Arc::new(Checkpoint::open(Path::new(&model))?);
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint)?);
    let backend = latent_backends::cpu();
    let mut engine = Engine::load(&*backend, &checkpoint, &EngineOptions::default(), &mut |_, _| {})?;

    let request = Request {
        prompt: tokenizer.encode(&prompt, EncodeOptions { add_special: true, parse_special: false })?,
        max_tokens: Some(40),
        ..Request::default()
    };
    let answer = engine.generate(&mut Session::default(), &request, &tokenizer, &mut TerminalListener)?;
    println!("\n[{} tokens, {:?}]", answer.tokens.len(), answer.stop);
    Ok(())
}
