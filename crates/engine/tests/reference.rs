//! The reference backend behind the same trait: every fixture in every formulation, and random models of every kind of weights.
#![allow(missing_docs, reason = "tests")]

mod support;

use latent_engine::{Engine, EngineOptions};
use latent_graph::passes::{CacheForm, FORMS, MlaChoice, Precision};
use latent_testing::{Kind, Recipe};
use latent_types::TensorType;
use std::sync::Arc;
use support::{CASES, WITH_GGUF, all_logits, bits, checkpoint, engine, error, fixture, folder};

/// Mean relative square error of a row against Hugging Face's logits.
const EXACT: f64 = 1e-9;

fn options(mla: MlaChoice, form: CacheForm) -> EngineOptions {
    EngineOptions { mla, form, context: Some(256), threads: Some(1), ..EngineOptions::default() }
}

fn reference(checkpoint: &Arc<latent_formats::Checkpoint>, options: &EngineOptions) -> Engine {
    Engine::load(&*latent_backends::reference(), checkpoint, options, &mut |_, _| {}).unwrap()
}

#[test]
fn its_logits_agree_with_those_of_every_fixture_in_every_formulation() {
    let folders = CASES.into_iter().map(|case| (case, folder(case)));
    let gguf = WITH_GGUF.into_iter().map(|case| (case, folder(case).join("model.f32.gguf")));
    for (case, path) in folders.chain(gguf) {
        let (expected, checkpoint) = (fixture(case), checkpoint(&path));
        // attention to all before it makes long prompts slow here
        let tokens = &expected.tokens[..expected.tokens.len().min(48)];
        let rows = || expected.rows.iter().zip(&expected.logits).filter(|(row, _)| **row < tokens.len());
        assert!(rows().count() > 0, "{case}");
        for (mla, form) in FORMS {
            let mut engine = reference(&checkpoint, &options(mla, form));
            for chunk in [usize::MAX, 5] {
                let logits = all_logits(&mut engine, tokens, chunk);
                let errors: Vec<f64> = rows().map(|(&row, truth)| error(&logits[row], truth)).collect();
                let mean = errors.iter().sum::<f64>() / errors.len() as f64;
                assert!(mean <= EXACT, "{case} {mla} {form:?} in chunks of {chunk}: {mean:e}");
            }
        }
    }
}

#[test]
fn it_agrees_with_the_cpu_on_every_shape_and_weight_type() {
    let folder = tempfile::tempdir().unwrap();
    let kinds = latent_quant::encodable().filter(|ty| *ty != TensorType::F8_E4M3 && *ty != TensorType::Q8_K);
    let shapes: Vec<&str> = latent_testing::shapes().filter(|shape| shape.starts_with("tiny")).collect();
    let tokens: Vec<u32> = (0..20).map(|i| i * 11 % 250).collect();
    for (n, ty) in kinds.enumerate() {
        let shape = shapes[n % shapes.len()];
        let path = folder.path().join(format!("{n}.gguf"));
        let recipe = Recipe::new(shape, Kind::from(ty));
        recipe.write_gguf(&path).unwrap();
        let checkpoint = checkpoint(&path);
        let exact =
            EngineOptions { precision: Precision::Exact, ..options(MlaChoice::Auto, CacheForm::Latent) };
        let cpu = all_logits(&mut engine(&checkpoint, &exact), &tokens, 64);
        let reference = all_logits(&mut reference(&checkpoint, &exact), &tokens, 64);
        for (row, (a, b)) in cpu.iter().zip(&reference).enumerate() {
            let error = error(a, b);
            assert!(error <= 1e-9, "{shape} of {ty}, row {row}: {error:e}");
        }
    }
}

#[test]
fn a_shared_and_a_shifted_context_are_those_of_the_cpu() {
    // with a rotated key, with one that is not rotated, and without one
    for case in ["youtu", "kimi-linear", "nope-gate"] {
        shared_and_shifted(case);
    }
}

fn shared_and_shifted(case: &str) {
    let checkpoint = checkpoint(&folder(case));
    let exact =
        EngineOptions { precision: Precision::Exact, ..options(MlaChoice::Absorbed, CacheForm::Latent) };
    let run = |mut engine: Engine| {
        let mut sequence = latent_engine::cache::Sequence::default();
        let tokens: Vec<u32> = (0..80).map(|i| i * 7 % 100).collect();
        let mut last = Vec::new();
        let mut feed = |engine: &mut Engine, sequence: &mut _, tokens: &[u32]| {
            let wanted = latent_engine::LogitsRequest::Last;
            engine
                .prefill(sequence, tokens, 64, wanted, &mut |_, l| last.push(l.to_vec()), &mut |_| true)
                .unwrap();
        };
        feed(&mut engine, &mut sequence, &tokens);
        let mut shared = engine.share(&sequence, 70);
        feed(&mut engine, &mut shared, &tokens[70..]);
        engine.shift(&mut sequence, 3..10).unwrap();
        feed(&mut engine, &mut sequence, &[5]);
        last
    };
    let (cpu, reference) = (run(engine(&checkpoint, &exact)), run(reference(&checkpoint, &exact)));
    assert_eq!(bits(&reference[..1]), bits(&reference[1..2]), "a shared prefix changes nothing");
    for (a, b) in cpu.iter().zip(&reference) {
        assert!(error(a, b) <= 1e-9, "{case}");
    }
}

#[test]
fn what_it_cannot_serve_is_an_error() {
    let checkpoint = checkpoint(&folder("youtu"));
    let f16 = EngineOptions { cache: Some(latent_types::CacheType::F16), ..EngineOptions::default() };
    let refused =
        Engine::load(&*latent_backends::reference(), &checkpoint, &f16, &mut |_, _| {}).err().unwrap();
    assert!(refused.to_string().contains("KV cache in f32, not f16"), "{refused}");
}
