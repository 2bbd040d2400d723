//! Fixtures: small models with logits and greedy tokens computed by Hugging Face transformers (see
//! fixtures/README.md).
#![allow(
    dead_code,
    missing_docs,
    clippy::print_stderr,
    reason = "each test file uses a part of it, and skipped tiers are named"
)]

pub mod adapters;
pub mod demo;
pub mod jobs;
pub mod ranks;

use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineOptions, LogitsRequest, SeqInput};
use latent_formats::Checkpoint;
use latent_graph::passes::Precision;
use latent_testing::{ModelRecipe, RandomWeightTypes};
use latent_types::{TensorType, Tier};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub const CASES: [&str; 20] = [
    "v2-lite",
    "v2-lite-yarn",
    "v2-groups",
    "v3",
    "v3-yarn",
    "moonlight",
    "glm-4.7-flash",
    "youtu",
    "minicpm3",
    "ling-3",
    "kimi-linear",
    "nope-gate",
    "glm-dsa",
    "deepseek32",
    "mistral4",
    "axk1",
    "v3-bias",
    "v3-tiny-latents",
    "minicpm3-long",
    "plm",
];

pub const WITH_GGUF: [&str; 3] = ["v3", "v3-yarn", "youtu"];

/// The tiers of this machine, the best first. The tier of tiles follows if the processor lacks only
/// the tile instructions: a signal handler emulates them. Other tiers are reported as skipped.
/// Engines without a choice of tier never take the emulated one.
#[allow(unsafe_code, reason = "tiles are computed by a signal handler")]
pub fn tiers() -> Vec<Tier> {
    let own = latent_kernels::native_tier();
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if own < Tier::Amx && latent_emulator::install_amx() {
        // SAFETY: the handler is installed.
        unsafe { latent_kernels::assume_amx() };
    }
    let best = latent_kernels::features().tier();
    for tier in Tier::ALL.into_iter().filter(|tier| *tier > best) {
        eprintln!("skipped: this machine has no {tier}");
    }
    let all = || Tier::ALL.into_iter().filter(|tier| *tier <= best);
    all().rev().filter(|tier| *tier <= own).chain(all().filter(|tier| *tier > own)).collect()
}

pub struct Fixture {
    pub tokens: Vec<u32>,
    pub rows: Vec<usize>,
    pub greedy: Vec<u32>,
    pub margin: Vec<f64>,
    /// A row of logits for each of `rows`.
    pub logits: Vec<Vec<f32>>,
}

pub fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(case)
}

/// The folders of all fixtures, and the GGUF files of those that have one.
pub fn fixture_models() -> impl Iterator<Item = (&'static str, PathBuf)> {
    let folders = CASES.into_iter().map(|case| (case, folder(case)));
    folders.chain(WITH_GGUF.into_iter().map(|case| (case, folder(case).join("model.f32.gguf"))))
}

impl Fixture {
    /// Mean error of the logits of the first tokens, over those rows that the fixture has.
    pub fn mean_error(&self, logits: &[Vec<f32>]) -> f64 {
        let rows = self.rows.iter().zip(&self.logits).filter(|(row, _)| **row < logits.len());
        let errors: Vec<f64> = rows.map(|(&row, truth)| error(&logits[row], truth)).collect();
        assert!(!errors.is_empty(), "no row is expected within {} tokens", logits.len());
        errors.iter().sum::<f64>() / errors.len() as f64
    }
}

/// The weight types that matrices of a GGUF file can have.
pub fn weight_types() -> impl Iterator<Item = TensorType> {
    latent_quant::encodable().filter(|ty| *ty != TensorType::F8_E4M3 && *ty != TensorType::Q8_K)
}

/// A random model of each weight type, with a name. The models alternate between the shapes.
pub fn model_of_each_weight_type(folder: &Path) -> impl Iterator<Item = (String, Arc<Checkpoint>)> {
    let shapes: Vec<&str> = latent_testing::shapes().filter(|shape| shape.starts_with("tiny")).collect();
    weight_types().enumerate().map(move |(n, ty)| {
        let shape = shapes[n % shapes.len()];
        let path = folder.join(format!("{n}.gguf"));
        ModelRecipe::new(shape, RandomWeightTypes::from(ty)).write_gguf(&path).unwrap();
        (format!("{shape} of {ty}"), checkpoint(&path))
    })
}

/// A prompt for a random model with which no router is near a tie. Near a tie, the rounding of an
/// int8 activation decides, which depends on the machine and on how the work is divided. Other
/// experts give entirely different logits.
///
/// The search takes seconds per model, so that its results are in `sure_prompts.txt`. They are
/// checked with `LATENT_TEST_EXHAUSTIVE`.
pub fn sure_prompt(model: &str, checkpoint: &Arc<Checkpoint>, tokens: usize) -> Vec<u32> {
    let options = EngineOptions {
        precision: Precision::Exact,
        context: Some(512),
        threads: Some(1),
        ..EngineOptions::default()
    };
    let mut engine = engine(checkpoint, &options);
    let known = include_str!("sure_prompts.txt").lines().filter_map(|line| line.split_once(": "));
    let known = known.filter(|(name, _)| *name == model).map(|(_, prompt)| prompt).next();
    let mut prompt: Vec<u32> = match known {
        Some(known) => known.split(' ').map(|token| token.parse().unwrap()).collect(),
        None => (0..tokens as u32).map(|i| i * 11 % CANDIDATES).collect(),
    };
    assert_eq!(prompt.len(), tokens);
    if engine.config().moe.is_none() || known.is_some() && !exhaustive() {
        return prompt;
    }
    let activations = engine.activations(checkpoint).unwrap();
    let all: Vec<u32> = (0..CANDIDATES).collect();
    let trace = engine.trace(&activations, 0..0, &all, &mut |_| true).unwrap();
    let embed = activations.list().iter().position(|activation| activation.name == "embed").unwrap();
    let table = trace.values(embed).unwrap();
    for round in 0..CANDIDATES {
        let rows = prompt.iter().flat_map(|token| table.row(*token as usize).unwrap());
        let unsure = unsure_rows(&mut engine, &rows.copied().collect::<Vec<f32>>(), table.width);
        if unsure.is_empty() {
            if round > 0 || known.is_none() {
                let words: Vec<String> = prompt.iter().map(u32::to_string).collect();
                eprintln!("a line for sure_prompts.txt: {model}: {}", words.join(" "));
            }
            return prompt;
        }
        unsure.into_iter().for_each(|row| prompt[row] = (prompt[row] + 1) % CANDIDATES);
    }
    panic!("no prompt of {tokens} tokens is sure");
}

/// The number of tokens from which prompts are chosen.
const CANDIDATES: u32 = 250;

/// The relative disturbance of each element of the embeddings: twice the disturbance of the logits
/// by int8 activations.
const DISTURBANCE: f32 = 4e-2;

/// Rows whose logits change much more than most when the embeddings are disturbed, which means that
/// other experts were chosen.
fn unsure_rows(engine: &mut Engine, embeddings: &[f32], width: usize) -> Vec<usize> {
    let mut logits = |embeddings: &[f32]| {
        let mut sequence = Sequence::default();
        let mut rows = vec![Vec::new(); embeddings.len() / width];
        let mut items = [SeqInput::embeddings(&mut sequence, embeddings, width, LogitsRequest::All)];
        engine.step(&mut items, &mut |_, row, logits| rows[row] = logits.to_vec()).unwrap();
        engine.release(sequence);
        rows
    };
    let plain = logits(embeddings);
    let mut unsure = vec![false; plain.len()];
    for (pattern, by) in (0..6u64).flat_map(|pattern| [(pattern, DISTURBANCE), (pattern, -DISTURBANCE)]) {
        let disturb = |(i, value): (usize, &f32)| {
            let hash = (i as u64 ^ pattern << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            value * if (hash >> 29).count_ones().is_multiple_of(2) { 1.0 + by } else { 1.0 - by }
        };
        let disturbed: Vec<f32> = embeddings.iter().enumerate().map(disturb).collect();
        let errors: Vec<f64> = logits(&disturbed).iter().zip(&plain).map(|(a, b)| error(a, b)).collect();
        let mut sorted = errors.clone();
        sorted.sort_by(f64::total_cmp);
        let usual = sorted[sorted.len() / 2];
        errors.iter().zip(&mut unsure).for_each(|(error, unsure)| *unsure |= *error > 4.0 * usual);
    }
    (0..plain.len()).filter(|row| unsure[*row]).collect()
}

/// The last logits of a prompt, of one that shares most of it, and after a context shift.
pub fn shared_and_shifted(mut engine: Engine) -> Vec<Vec<f32>> {
    let mut sequence = Sequence::default();
    let tokens: Vec<u32> = (0..80).map(|i| i * 7 % 100).collect();
    let mut last = Vec::new();
    let mut feed = |engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]| {
        let hear = &mut |_: usize, logits: &[f32]| last.push(logits.to_vec());
        engine.prefill(sequence, tokens, 64, LogitsRequest::Last, hear, &mut |_| true).unwrap();
    };
    feed(&mut engine, &mut sequence, &tokens);
    let mut shared = engine.share(&sequence, 70);
    feed(&mut engine, &mut shared, &tokens[70..]);
    engine.shift(&mut sequence, 3..10).unwrap();
    feed(&mut engine, &mut sequence, &[5]);
    last
}

pub fn fixture(case: &str) -> Fixture {
    let text = std::fs::read_to_string(folder(case).join("expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let numbers = |key: &str| -> Vec<f64> {
        json[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let rows: Vec<usize> = numbers("rows").iter().map(|v| *v as usize).collect();
    let logits = npy(&folder(case).join("logits.npy"));
    let width = logits.len() / rows.len();
    Fixture {
        tokens: numbers("tokens").iter().map(|v| *v as u32).collect(),
        greedy: numbers("greedy").iter().map(|v| *v as u32).collect(),
        margin: numbers("margin"),
        logits: logits.chunks_exact(width).map(<[f32]>::to_vec).collect(),
        rows,
    }
}

/// The f32 elements of a .npy file.
pub fn npy(path: &Path) -> Vec<f32> {
    let npy = std::fs::read(path).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    npy[start..].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The f32 elements of a .npy file, as rows of `width` elements.
pub fn npy_rows(path: &Path, width: usize) -> Vec<Vec<f32>> {
    npy(path).chunks_exact(width).map(<[f32]>::to_vec).collect()
}

pub fn checkpoint(path: &Path) -> Arc<Checkpoint> {
    Arc::new(Checkpoint::open(path).unwrap())
}

pub fn engine(checkpoint: &Arc<Checkpoint>, options: &EngineOptions) -> Engine {
    Engine::load(&*latent_backends::cpu(), checkpoint, options, &mut |_, _| {}).unwrap()
}

/// Logits of all tokens, prefilled in chunks.
pub fn all_logits(engine: &mut Engine, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let mut sequence = Sequence::default();
    let mut logits = vec![Vec::new(); tokens.len()];
    engine
        .prefill(
            &mut sequence,
            tokens,
            chunk,
            LogitsRequest::All,
            &mut |row, l| logits[row] = l.to_vec(),
            &mut |_| true,
        )
        .unwrap();
    engine.release(sequence);
    logits
}

/// Greedy tokens after a prompt.
pub fn greedy(engine: &mut Engine, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut sequence = Sequence::default();
    let mut next = 0;
    let mut take = |logits: &[f32]| next = best(logits);
    engine
        .prefill(&mut sequence, prompt, 64, LogitsRequest::Last, &mut |_, l| take(l), &mut |_| true)
        .unwrap();
    let mut found = vec![next];
    while found.len() < count {
        let token = [found[found.len() - 1]];
        let mut items = [SeqInput::tokens(&mut sequence, &token, LogitsRequest::Last)];
        engine.step(&mut items, &mut |_, _, l| next = best(l)).unwrap();
        found.push(next);
    }
    engine.release(sequence);
    found
}

pub fn best(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, l) in logits.iter().enumerate() {
        if *l > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// Σ(a−b)² / Σb² of one row.
pub fn error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let (mut difference, mut size) = (0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        difference += (f64::from(*a) - f64::from(*b)).powi(2);
        size += f64::from(*b).powi(2);
    }
    difference / size
}

/// Runs all cases on all cores, for tests whose engines have one thread.
pub fn side_by_side<T: Sync>(cases: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(case);
                }
            });
        }
    });
}

pub use latent_testing::{exhaustive, sample_of};

pub fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|v| v.to_bits()).collect()).collect()
}
