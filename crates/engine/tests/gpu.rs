//! The GPU backend against Hugging Face's logits: every fixture in every formulation. Where no driver offers an adapter, each test says that it
//! was skipped; `REQUIRE_GPU=1` makes that an error.
#![allow(missing_docs, clippy::print_stdout, reason = "tests, and what is skipped is named")]

mod support;

use latent_backend_wgpu::{GpuBackend, GpuError};
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineOptions, LogitsRequest};
use latent_formats::Checkpoint;
use latent_graph::passes::{CacheForm, FORMS, MlaChoice, Precision};
use latent_testing::{Kind, Recipe};
use latent_types::TensorType;
use std::sync::{Arc, OnceLock};
use support::{CASES, WITH_GGUF, all_logits, bits, checkpoint, error, fixture, folder};

/// Mean relative square error of a row's logits against Hugging Face's f32, and largest one against the CPU in exact precision.
const EXACT: f64 = 1e-9;

/// The first adapter, opened once for all tests: shaders are compiled once.
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
fn its_logits_agree_with_those_of_every_fixture_in_every_formulation() {
    let Some(gpu) = gpu() else { return };
    let folders = CASES.into_iter().map(|case| (case, folder(case)));
    let gguf = WITH_GGUF.into_iter().map(|case| (case, folder(case).join("model.f32.gguf")));
    for (case, path) in folders.chain(gguf) {
        let (expected, checkpoint) = (fixture(case), checkpoint(&path));
        // a software adapter takes its time
        let tokens = &expected.tokens[..expected.tokens.len().min(32)];
        let rows = || expected.rows.iter().zip(&expected.logits).filter(|(row, _)| **row < tokens.len());
        assert!(rows().count() > 0, "{case}");
        for (mla, form) in FORMS {
            let mut engine = engine(gpu, &checkpoint, &options(mla, form));
            let chunk = if mla == MlaChoice::Auto { 20 } else { usize::MAX };
            let logits = all_logits(&mut engine, tokens, chunk);
            let errors: Vec<f64> = rows().map(|(&row, truth)| error(&logits[row], truth)).collect();
            let mean = errors.iter().sum::<f64>() / errors.len() as f64;
            assert!(mean <= EXACT, "{case} {mla} {form:?}: {mean:e}");
            println!("{case} {mla} {form:?}: {mean:.1e}");
        }
    }
}

#[test]
fn it_agrees_with_the_cpu_on_every_weight_type() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let kinds = latent_quant::encodable().filter(|ty| *ty != TensorType::F8_E4M3 && *ty != TensorType::Q8_K);
    let shapes: Vec<&str> = latent_testing::shapes().filter(|shape| shape.starts_with("tiny")).collect();
    let tokens: Vec<u32> = (0..12).map(|i| i * 11 % 250).collect();
    for (n, ty) in kinds.enumerate() {
        let shape = shapes[n % shapes.len()];
        let path = folder.path().join(format!("{n}.gguf"));
        Recipe::new(shape, Kind::from(ty)).write_gguf(&path).unwrap();
        let checkpoint = checkpoint(&path);
        let exact = options(MlaChoice::Auto, CacheForm::Latent);
        let cpu = all_logits(&mut support::engine(&checkpoint, &exact), &tokens, 64);
        let found = all_logits(&mut engine(gpu, &checkpoint, &exact), &tokens, 64);
        for (row, (a, b)) in found.iter().zip(&cpu).enumerate() {
            let error = error(a, b);
            assert!(error <= EXACT, "{shape} of {ty}, row {row}: {error:e}");
        }
    }
}

#[test]
fn a_shared_and_a_shifted_context_are_those_of_the_reference() {
    let Some(gpu) = gpu() else { return };
    // with a rotated key, with one that is not rotated, and without one
    for case in ["youtu", "kimi-linear", "nope-gate"] {
        let checkpoint = checkpoint(&folder(case));
        let options = options(MlaChoice::Absorbed, CacheForm::Latent);
        let run = |mut engine: Engine| {
            let mut sequence = Sequence::default();
            let tokens: Vec<u32> = (0..80).map(|i| i * 7 % 100).collect();
            let mut last = Vec::new();
            let mut feed = |engine: &mut Engine, sequence: &mut _, tokens: &[u32]| {
                let mut hear = |_: usize, logits: &[f32]| last.push(logits.to_vec());
                let wanted = LogitsRequest::Last;
                engine.prefill(sequence, tokens, 64, wanted, &mut hear, &mut |_| true).unwrap();
            };
            feed(&mut engine, &mut sequence, &tokens);
            let mut shared = engine.share(&sequence, 70);
            feed(&mut engine, &mut shared, &tokens[70..]);
            engine.shift(&mut sequence, 3..10).unwrap();
            feed(&mut engine, &mut sequence, &[5]);
            last
        };
        let reference = latent_backends::reference();
        let expected = run(Engine::load(&*reference, &checkpoint, &options, &mut |_, _| {}).unwrap());
        let found = run(engine(gpu, &checkpoint, &options));
        assert_eq!(bits(&found), bits(&run(engine(gpu, &checkpoint, &options))), "{case}: other bits");
        for (a, b) in found.iter().zip(&expected) {
            assert!(error(a, b) <= EXACT, "{case}: {:e}", error(a, b));
        }
    }
}
