//! Runs a custom circuit, the model's architecture as data, and shows that a circuit that reads an
//! undefined value is refused.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineError, EngineOptions, LogitsRequest, SeqInput};
use latent_formats::Checkpoint;
use latent_graph::{Circuit, ModelConfig};
use std::path::Path;
use std::sync::Arc;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");

/// The logits after three tokens.
fn logits(checkpoint: &Arc<Checkpoint>, circuit: Option<Circuit>) -> Result<Vec<f32>, EngineError> {
    let options = EngineOptions { circuit: circuit.map(Arc::new), ..EngineOptions::default() };
    let backend = latent_backends::cpu();
    let mut engine = Engine::load(&*backend, checkpoint, &options, &mut |_, _| {})?;
    for doubt in &engine.summary().doubts {
        println!("the audit doubts: {doubt}");
    }
    let (mut sequence, mut last) = (Sequence::default(), Vec::new());
    let mut inputs = [SeqInput::tokens(&mut sequence, &[1, 2, 3], LogitsRequest::Last)];
    engine.step(&mut inputs, &mut |_, _, row| last = row.to_vec())?.all()?;
    Ok(last)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let checkpoint = Arc::new(Checkpoint::open(Path::new(DEMO))?);
    let name = ModelConfig::from_checkpoint(&checkpoint)?.circuit;
    let own = serde_json::to_value(Circuit::named(&name)?)?;

    // A circuit that was written as JSON and read again gives the same bits.
    let usual = logits(&checkpoint, None)?;
    let again = logits(&checkpoint, Some(Circuit::parse(&own.to_string())?))?;
    assert!(usual.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()));
    println!("circuit {name}, {} logits: the same from JSON", usual.len());

    // An operation that reads an undefined value is refused when the model is loaded.
    let mut broken = own.clone();
    broken["blocks"]["mla"]["ops"][0]["in"] = serde_json::json!(["undefined_value"]);
    let refused = Circuit::parse(&broken.to_string())
        .map_err(|error| error.to_string())
        .and_then(|circuit| logits(&checkpoint, Some(circuit)).map_err(|error| error.to_string()));
    println!("refused: {}", refused.err().ok_or("a broken circuit ran")?);
    Ok(())
}
