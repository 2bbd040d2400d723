//! The engine's fixtures: small models with the results of transformers.
#![allow(dead_code, missing_docs, reason = "each test file uses a part of it")]

use latent_convert::quantize::{Mix, Options};
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineOptions, LogitsRequest, SeqInput};
use latent_formats::gguf::Metadata;
use latent_formats::{Checkpoint, CheckpointSource};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Fixtures whose architecture has a name in GGUF files.
pub const GGUF_CASES: [&str; 21] = [
    "v2-lite",
    "v2-lite-yarn",
    "v2-groups",
    "v3",
    "v3-yarn",
    "v3-mtp",
    "moonlight",
    "glm-4.7-flash",
    "youtu",
    "minicpm3",
    "glm-dsa",
    "deepseek32",
    "mistral4",
    "axk1",
    "axk2",
    "deepseek-v32-sparse",
    "glm-dsa-sparse",
    "v3-bias",
    "v3-tiny-latents",
    "minicpm3-long",
    "plm",
];

pub fn case_folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures").join(case)
}

fn expected(case: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(case_folder(case).join("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The ids in the field `tokens` or `greedy`.
pub fn tokens(case: &str, key: &str) -> Vec<u32> {
    expected(case)[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

pub fn margin(case: &str) -> Vec<f64> {
    expected(case)["margin"].as_array().unwrap().iter().map(|margin| margin.as_f64().unwrap()).collect()
}

pub fn metadata(checkpoint: &Checkpoint) -> &Metadata {
    match checkpoint.source() {
        CheckpointSource::Gguf(source) => &source.metadata,
        CheckpointSource::HuggingFace(_) => panic!("a GGUF file was expected"),
    }
}

/// Default options with this mix.
pub fn types(mix: &str) -> Options {
    Options::new(Mix::from_name(mix).unwrap())
}

/// The bits of a tensor's values in f32.
pub fn numbers(checkpoint: &Checkpoint, name: &str) -> Vec<u32> {
    let tensor = checkpoint.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
    let mut numbers = vec![0.0; tensor.info.shape.iter().product()];
    latent_quant::decode(tensor.info.ty, tensor.data, &mut numbers).unwrap();
    numbers.into_iter().map(f32::to_bits).collect()
}

pub fn engine(path: &Path, options: &EngineOptions) -> Engine {
    let checkpoint = Arc::new(Checkpoint::open(path).unwrap());
    Engine::load(&*latent_backends::cpu(), &checkpoint, options, &mut |_, _| {}).unwrap()
}

/// Logits of all tokens.
pub fn all_logits(engine: &mut Engine, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut sequence = Sequence::default();
    let mut logits = vec![Vec::new(); tokens.len()];
    let mut keep = |row: usize, l: &[f32]| logits[row] = l.to_vec();
    engine.prefill(&mut sequence, tokens, 64, LogitsRequest::All, &mut keep, &mut |_| true).unwrap();
    engine.release(sequence);
    logits
}

/// Greedy tokens after a prompt.
pub fn greedy(engine: &mut Engine, prompt: &[u32], count: usize) -> Vec<u32> {
    let best =
        |logits: &[f32]| (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32;
    let mut sequence = Sequence::default();
    let mut next = 0;
    let mut take = |_: usize, l: &[f32]| next = best(l);
    engine.prefill(&mut sequence, prompt, 64, LogitsRequest::Last, &mut take, &mut |_| true).unwrap();
    let mut found = Vec::new();
    while found.len() < count {
        found.push(next);
        let mut items = [SeqInput::tokens(&mut sequence, &found[found.len() - 1..], LogitsRequest::Last)];
        engine.step(&mut items, &mut |_, _, l| next = best(l)).unwrap();
    }
    engine.release(sequence);
    found
}

/// Relative square error of a row of logits.
pub fn error(found: &[f32], truth: &[f32]) -> f64 {
    let squares = |of: &mut dyn Iterator<Item = f64>| of.map(|d| d * d).sum::<f64>();
    let difference = squares(&mut found.iter().zip(truth).map(|(a, b)| f64::from(a - b)));
    difference / squares(&mut truth.iter().map(|t| f64::from(*t)))
}
