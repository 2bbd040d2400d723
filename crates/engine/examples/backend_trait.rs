//! Backends behind one trait: the logits of each backend against those of the reference
//! interpreter.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use latent_backend::Backend;
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineError, EngineOptions, LogitsRequest};
use latent_formats::Checkpoint;
use std::path::Path;
use std::sync::Arc;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");

/// Logits after each token, by any backend.
fn logits(backend: &dyn Backend, checkpoint: &Arc<Checkpoint>) -> Result<Vec<Vec<f32>>, EngineError> {
    let options = EngineOptions { context: Some(64), ..EngineOptions::default() };
    let mut engine = Engine::load(backend, checkpoint, &options, &mut |_, _| {})?;
    let mut rows = Vec::new();
    let (tokens, all) = ([1, 40, 7, 300, 12], LogitsRequest::All);
    engine.prefill(
        &mut Sequence::default(),
        &tokens,
        8,
        all,
        &mut |_, row| rows.push(row.to_vec()),
        &mut |_| true,
    )?;
    Ok(rows)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let checkpoint = Arc::new(Checkpoint::open(Path::new(DEMO))?);
    let reference = logits(&*latent_backends::reference(), &checkpoint)?;
    for name in latent_backends::NAMES {
        let backend = latent_backends::by_name(name)?;
        let found = logits(&*backend, &checkpoint)?;
        let worst = found.iter().zip(&reference).map(|(row, truth)| {
            let difference: f64 = row.iter().zip(truth).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let size: f64 = truth.iter().map(|b| f64::from(*b).powi(2)).sum();
            (difference / size).sqrt()
        });
        println!("{name}: worst relative error of a row {:.1e}", worst.fold(0.0, f64::max));
    }
    Ok(())
}
