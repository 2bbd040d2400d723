//! The GPU backend against Hugging Face's logits: every fixture in every formulation. Where no
//! driver offers an adapter, each test says that it was skipped; `REQUIRE_GPU=1` makes that an
//! error.
#![allow(missing_docs, clippy::print_stdout, reason = "tests, and what is skipped is named")]

use crate::support;
use crate::support::{
    all_logits, bits, checkpoint, error, fixture, fixture_models, folder, model_of_each_weight_type,
    sample_of, shared_and_shifted,
};
use latent_backend_wgpu::{GpuBackend, GpuError};
use latent_engine::cache::{Sequence, StateOptions};
use latent_engine::sampling::SamplingParams;
use latent_engine::{Draft, Engine, EngineOptions, Listener, LogitsRequest, Request, SeqInput, Session};
use latent_formats::Checkpoint;
use latent_graph::passes::{CacheForm, FORMS, MlaChoice, Precision};
use latent_text::{EncodeOptions, Tokenizer};
use latent_types::CacheType;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Mean relative square error of a row's logits against Hugging Face's f32, and largest one against
/// the CPU in exact precision.
const EXACT: f64 = 1e-9;

/// The first adapter, opened once for all tests, so that the shaders are compiled only once.
fn gpu() -> Option<&'static GpuBackend> {
    static GPU: OnceLock<Option<GpuBackend>> = OnceLock::new();
    let opened = GPU.get_or_init(|| match GpuBackend::open(0) {
        Ok(backend) => Some(backend),
        Err(GpuError::NoAdapter) if std::env::var_os("REQUIRE_GPU").is_none() => None,
        Err(error) => panic!("{error}"),
    });
    if opened.is_none() {
        println!("SKIPPED: no adapter");
    }
    opened.as_ref()
}

struct SilentListener;
impl Listener for SilentListener {}

fn options(mla: MlaChoice, form: CacheForm) -> EngineOptions {
    EngineOptions {
        mla,
        form,
        context: Some(256),
        max_batch_tokens: Some(128),
        threads: Some(1),
        precision: Precision::Exact,
        ..EngineOptions::default()
    }
}

fn engine(backend: &GpuBackend, checkpoint: &Arc<Checkpoint>, options: &EngineOptions) -> Engine {
    Engine::load(backend, checkpoint, options, &mut |_, _| {}).unwrap()
}

#[test]
fn logits_agree_with_every_fixture_in_every_formulation() {
    let Some(gpu) = gpu() else { return };
    agrees_with_every_fixture(gpu, 32);
}

#[test]
fn plans_as_circuits_state_them_agree_too() {
    if gpu().is_some() {
        agrees_with_every_fixture(&GpuBackend::open(0).unwrap().unfused(), 24);
    }
}

/// The logits of the first tokens of every fixture in every formulation.
fn agrees_with_every_fixture(gpu: &GpuBackend, most: usize) {
    for (number, (case, path)) in fixture_models().enumerate() {
        let (expected, checkpoint) = (fixture(case), checkpoint(&path));
        // Software adapters are slow.
        let tokens = &expected.tokens[..expected.tokens.len().min(most)];
        for (mla, form) in sample_of(FORMS, number, 4) {
            let mut engine = engine(gpu, &checkpoint, &options(mla, form));
            let chunk = if mla == MlaChoice::Auto { 20 } else { usize::MAX };
            let mean = expected.mean_error(&all_logits(&mut engine, tokens, chunk));
            assert!(mean <= EXACT, "{case} {mla} {form:?}: {mean:e}");
            println!("{case} {mla} {form:?}: {mean:.1e}");
        }
    }
}

#[test]
fn every_weight_type_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let tokens: Vec<u32> = (0..12).map(|i| i * 11 % 250).collect();
    // The kernel cases test every type too, so that a part of the models is enough here.
    for (model, checkpoint) in sample_of(model_of_each_weight_type(folder.path()), 0, 3) {
        let exact = options(MlaChoice::Auto, CacheForm::Latent);
        let cpu = all_logits(&mut support::engine(&checkpoint, &exact), &tokens, 64);
        let found = all_logits(&mut engine(gpu, &checkpoint, &exact), &tokens, 64);
        for (row, (a, b)) in found.iter().zip(&cpu).enumerate() {
            let error = error(a, b);
            assert!(error <= EXACT, "{model}, row {row}: {error:e}");
        }
    }
}

#[test]
fn a_shared_and_a_shifted_context_are_those_of_the_reference() {
    let Some(gpu) = gpu() else { return };
    // Models with a rotated key, with an unrotated key, and without a shared key.
    for case in ["youtu", "kimi-linear", "nope-gate"] {
        let checkpoint = checkpoint(&folder(case));
        let options = options(MlaChoice::Absorbed, CacheForm::Latent);
        let reference = latent_backends::reference();
        let reference = Engine::load(&*reference, &checkpoint, &options, &mut |_, _| {}).unwrap();
        let expected = shared_and_shifted(reference);
        let run = || shared_and_shifted(engine(gpu, &checkpoint, &options));
        let found = run();
        assert_eq!(bits(&found), bits(&run()), "{case}: other bits");
        for (a, b) in found.iter().zip(&expected) {
            assert!(error(a, b) <= EXACT, "{case}: {:e}", error(a, b));
        }
    }
}

#[test]
fn the_largest_logits_give_the_tokens_of_whole_rows() {
    let Some(gpu) = gpu() else { return };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/mla-demo-Q4_K_M.gguf");
    let checkpoint = checkpoint(&path);
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint).unwrap());
    let how = EncodeOptions { add_special: true, parse_special: false };
    let options = EngineOptions { context: Some(128), ..options(MlaChoice::Auto, CacheForm::Latent) };
    let drafting = EngineOptions { draft: Draft::Mtp, ..options.clone() };
    let mut engines = [engine(gpu, &checkpoint, &drafting), support::engine(&checkpoint, &options)];
    let penalised = SamplingParams { repeat_penalty: 1.2, repeat_last_n: 16, ..SamplingParams::default() };
    for sampling in [SamplingParams::greedy(), SamplingParams::default(), penalised] {
        let answers = engines.each_mut().map(|engine| {
            // A request for log-probabilities needs whole rows of logits.
            [None, Some(0)].map(|logprobs| {
                let prompt = tokenizer.encode("Once upon a time", how).unwrap();
                let sampling = sampling.clone();
                let request =
                    Request { prompt, sampling, logprobs, max_tokens: Some(6), ..Request::default() };
                engine
                    .generate(&mut Session::default(), &request, &tokenizer, &mut SilentListener)
                    .unwrap()
                    .tokens
            })
        });
        for answer in &answers {
            assert_eq!(answer[0], answer[1], "{sampling:?}");
        }
        assert_eq!(answers[0], answers[1], "{sampling:?}: other tokens than on the CPU");
    }
}

#[test]
fn embeddings_in_place_of_tokens_give_the_bits_of_the_tokens() {
    let Some(gpu) = gpu() else { return };
    // This model multiplies its embedding by a factor.
    let checkpoint = checkpoint(&folder("minicpm3"));
    let mut engine = engine(gpu, &checkpoint, &options(MlaChoice::Absorbed, CacheForm::Latent));
    let tokens: Vec<u32> = (0..12).map(|i| i * 7 % 90).collect();
    let activations = engine.activations(&checkpoint).unwrap();
    let trace = engine.trace(&activations, 0..0, &tokens, &mut |_| true).unwrap();
    let embed = activations.list().iter().position(|activation| activation.name == "embed").unwrap();
    let values = trace.values(embed).unwrap().numbers.clone();
    let width = engine.config().hidden_size;
    let mut run = |embedded: bool| {
        let mut sequences: [Sequence; 2] = Default::default();
        let [first, second] = &mut sequences;
        let second = match embedded {
            true => SeqInput::embeddings(second, &values, width, LogitsRequest::All),
            false => SeqInput::tokens(second, &tokens, LogitsRequest::All),
        };
        // Embeddings and tokens in one step.
        let mut inputs = [SeqInput::tokens(first, &tokens[..5], LogitsRequest::All), second];
        let mut logits = Vec::new();
        engine.step(&mut inputs, &mut |_, _, row| logits.push(row.to_vec())).unwrap().all().unwrap();
        bits(&logits)
    };
    let looked_up = run(false);
    assert_eq!(looked_up.len(), 17);
    assert!(run(true) == looked_up, "other bits");
}

/// Layers with a recurrent state and layers with latent attention: prompts in steps, forks,
/// snapshots within a step, drafts, saved states.
#[test]
fn layers_with_a_state_agree_with_the_fixtures_and_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let often = StateOptions { sequences: 4, snapshots: 4, every: 64 };
    for case in ["kimi-linear-kda", "ling-3-kda", "kimi-linear-joined", "ling-3-joined"] {
        let (expected, checkpoint) = (fixture(case), checkpoint(&folder(case)));
        let options = EngineOptions {
            states: often,
            cache_tokens: Some(1024),
            ..options(MlaChoice::Auto, CacheForm::Latent)
        };
        let mut engine = engine(gpu, &checkpoint, &options);
        for chunk in [usize::MAX, 50, 1] {
            let tokens = &expected.tokens[..expected.tokens.len().min(if chunk == 1 { 20 } else { 150 })];
            let mean = expected.mean_error(&all_logits(&mut engine, tokens, chunk));
            assert!(mean <= EXACT, "{case} in steps of {chunk}: {mean:e}");
        }
        let mut cpu = support::engine(&checkpoint, &options);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let tokens = &expected.tokens;
        let (mut last, half) = ([Vec::new(), Vec::new()], tokens.len() / 2);
        for (engine, last) in [&mut engine, &mut cpu].into_iter().zip(&mut last) {
            let mut feed = |engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]| {
                let hear = &mut |_: usize, l: &[f32]| last.push(l.to_vec());
                engine.prefill(sequence, tokens, 128, LogitsRequest::Last, hear, &mut |_| true).unwrap();
            };
            let mut sequence = Sequence::default();
            engine.snapshot_at(&mut sequence, 20).unwrap();
            feed(engine, &mut sequence, &tokens[..half]);
            let mut fork = engine.share(&sequence, half);
            let mut inputs = [
                SeqInput::drafted(&mut sequence, &[5, 9, 31]),
                SeqInput::tokens(&mut fork, &tokens[half..], LogitsRequest::Last),
            ];
            engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
            assert_eq!(engine.truncate(&mut sequence, half + 2), half + 2, "{case}");
            feed(engine, &mut sequence, &[7]);
            feed(engine, &mut fork, &[3]);
            let snapshot = if half > 64 { 64 } else { 20 };
            assert_eq!(engine.truncate(&mut sequence, half - 1), snapshot, "{case}");
            feed(engine, &mut sequence, &tokens[snapshot..half]);
            // The CPU continues a sequence that the GPU saved.
            if !path.exists() {
                engine.save(&fork, &path).unwrap();
            }
            let (mut restored, _) = engine.restore(&path).unwrap();
            feed(engine, &mut restored, &[11]);
        }
        for (step, (a, b)) in last[0].iter().zip(&last[1]).enumerate() {
            assert!(error(a, b) <= EXACT, "{case} {step}: {:e}", error(a, b));
        }
    }
}

/// Sparse attention: logits, greedy bits, a fork, a shift and a saved cache over both streams, in
/// every type of the cache.
#[test]
fn sparse_attention_agrees_with_the_fixtures_and_the_reference() {
    let Some(gpu) = gpu() else { return };
    for case in ["deepseek-v32-sparse", "glm-dsa-sparse", "axk2"] {
        let (expected, checkpoint) = (fixture(case), checkpoint(&folder(case)));
        for (mla, chunks) in
            [(MlaChoice::Auto, [usize::MAX, 33].as_slice()), (MlaChoice::SeparateScores, &[7])]
        {
            let mut engine = engine(gpu, &checkpoint, &options(mla, CacheForm::Latent));
            assert!(engine.summary().dense.is_none(), "{case}");
            for &chunk in chunks {
                let logits = all_logits(&mut engine, &expected.tokens, chunk);
                let mean = expected.mean_error(&logits);
                assert!(mean <= EXACT, "{case} {mla} in steps of {chunk}: {mean:e}");
                println!("{case} {mla} in steps of {chunk}: {mean:.1e}");
            }
        }
        // Naive attention has no sparse form on the GPU: it is dense, and the summary says so.
        let naive = engine(gpu, &checkpoint, &options(MlaChoice::Naive, CacheForm::Latent));
        assert!(naive.summary().dense.is_some(), "{case}");
        let options = options(MlaChoice::Absorbed, CacheForm::Latent);
        let reference = latent_backends::reference();
        let reference = Engine::load(&*reference, &checkpoint, &options, &mut |_, _| {}).unwrap();
        let pairs = shared_and_shifted(engine(gpu, &checkpoint, &options)).into_iter();
        for (step, (a, b)) in pairs.zip(shared_and_shifted(reference)).enumerate() {
            assert!(error(&a, &b) <= EXACT, "{case} {step}: {:e}", error(&a, &b));
        }
    }
}

/// With the quantized cache types that shaders read, nearly the same tokens are selected.
#[test]
fn caches_of_fewer_bits_select_nearly_the_same_tokens() {
    let Some(gpu) = gpu() else { return };
    let (expected, checkpoint) = (fixture("glm-dsa-sparse"), checkpoint(&folder("glm-dsa-sparse")));
    for (cache, bound) in [(CacheType::F16, 1e-3), (CacheType::Bf16, 3e-2), (CacheType::Int8, 0.1)] {
        let options = EngineOptions { cache: Some(cache), ..options(MlaChoice::Auto, CacheForm::Latent) };
        let logits = all_logits(&mut engine(gpu, &checkpoint, &options), &expected.tokens, 64);
        let rows = expected.rows.iter().zip(&expected.logits);
        let mut errors: Vec<f64> = rows.map(|(&row, truth)| error(&logits[row], truth)).collect();
        errors.sort_by(f64::total_cmp);
        assert!(errors[errors.len() / 2] <= bound, "{cache}: {:e}", errors[errors.len() / 2]);
    }
}
