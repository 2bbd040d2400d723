//! The reference backend: every fixture in every formulation, and random models of every weight
//! type.

use crate::support::{
    all_logits, bits, checkpoint, engine, error, fixture, fixture_models, folder, model_of_each_weight_type,
    shared_and_shifted,
};
use latent_engine::{Draft, Engine, EngineOptions};
use latent_formats::Checkpoint;
use latent_graph::activations::Activations;
use latent_graph::circuit::Circuit;
use latent_graph::passes::{CacheForm, FORMS, MlaChoice, Precision};
use latent_graph::{CheckpointTensors, ModelConfig};
use latent_testing::{ModelRecipe, MtpLayer};
use latent_types::TensorType;
use std::sync::Arc;

/// Mean relative square error of a row against Hugging Face's logits.
const EXACT: f64 = 1e-9;

fn options(mla: MlaChoice, form: CacheForm) -> EngineOptions {
    EngineOptions { mla, form, context: Some(256), threads: Some(1), ..EngineOptions::default() }
}

fn reference(checkpoint: &Arc<Checkpoint>, options: &EngineOptions) -> Engine {
    Engine::load(&*latent_backends::reference(), checkpoint, options, &mut |_, _| {}).unwrap()
}

#[test]
fn logits_agree_with_every_fixture_in_every_formulation() {
    for (case, path) in fixture_models() {
        let (expected, checkpoint) = (fixture(case), checkpoint(&path));
        // Attention takes quadratic time, so that long prompts are slow on this backend.
        let tokens = &expected.tokens[..expected.tokens.len().min(48)];
        for (mla, form) in FORMS {
            let mut engine = reference(&checkpoint, &options(mla, form));
            for chunk in [usize::MAX, 5] {
                let mean = expected.mean_error(&all_logits(&mut engine, tokens, chunk));
                assert!(mean <= EXACT, "{case} {mla} {form:?} in chunks of {chunk}: {mean:e}");
            }
        }
    }
}

#[test]
fn every_shape_and_weight_type_agrees_with_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let tokens: Vec<u32> = (0..20).map(|i| i * 11 % 250).collect();
    for (model, checkpoint) in model_of_each_weight_type(folder.path()) {
        let exact =
            EngineOptions { precision: Precision::Exact, ..options(MlaChoice::Auto, CacheForm::Latent) };
        let cpu = all_logits(&mut engine(&checkpoint, &exact), &tokens, 64);
        let reference = all_logits(&mut reference(&checkpoint, &exact), &tokens, 64);
        for (row, (a, b)) in cpu.iter().zip(&reference).enumerate() {
            let error = error(a, b);
            assert!(error <= 1e-9, "{model}, row {row}: {error:e}");
        }
    }
}

#[test]
fn a_shared_and_a_shifted_context_are_those_of_the_cpu() {
    // Models with a rotated key, with an unrotated key, and without a shared key.
    for case in ["youtu", "kimi-linear", "nope-gate"] {
        let checkpoint = checkpoint(&folder(case));
        let exact =
            EngineOptions { precision: Precision::Exact, ..options(MlaChoice::Absorbed, CacheForm::Latent) };
        let cpu = shared_and_shifted(engine(&checkpoint, &exact));
        let reference = shared_and_shifted(reference(&checkpoint, &exact));
        assert_eq!(bits(&reference[..1]), bits(&reference[1..2]), "a shared prefix changes nothing");
        for (a, b) in cpu.iter().zip(&reference) {
            assert!(error(a, b) <= 1e-9, "{case}");
        }
    }
}

#[test]
fn a_trace_of_the_mtp_layer_reads_the_cache_of_that_layer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let recipe = ModelRecipe { mtp: MtpLayer::Own, ..ModelRecipe::new("tiny-v3", TensorType::F32.into()) };
    recipe.write_gguf(&path).unwrap();
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    let options = EngineOptions {
        precision: Precision::Exact,
        draft: Draft::Mtp,
        ..options(MlaChoice::Absorbed, CacheForm::Latent)
    };
    let tokens: Vec<u32> = (0..40).map(|i| (i * 29 + 3) % 500).collect();
    let [reference, cpu] =
        [reference(&checkpoint, &options), engine(&checkpoint, &options)].map(|mut engine| {
            // Only the layers of the backbone have activations. With a layer more, they include
            // those of the MTP layer.
            let mtp = engine.config().layers;
            let config = ModelConfig { layers: mtp + 1, ..engine.config().clone() };
            let circuit = Circuit::named(&config.circuit).unwrap();
            let activations = Activations::of(circuit, &config, &CheckpointTensors(&checkpoint)).unwrap();
            let trace = engine.trace(&activations, 0..mtp + 1, &tokens, &mut |_| true).unwrap();
            [0, mtp].map(|layer| {
                let point = activations.find(&format!("layers.{layer}.latent")).unwrap();
                trace.values(point).unwrap().clone()
            })
        });
    // The MTP layer runs all rows but the last.
    for row in 0..tokens.len() - 1 {
        let ([first, mtp], [_, other]) = (
            [&reference[0], &reference[1]].map(|values| values.row(row).unwrap()),
            [&cpu[0], &cpu[1]].map(|values| values.row(row).unwrap()),
        );
        assert!(error(mtp, first) > 0.1, "row {row} has the latent of layer 0");
        assert!(error(other, mtp) <= 1e-9, "row {row}: {:e}", error(other, mtp));
    }
}

#[test]
fn unsupported_options_are_refused() {
    let checkpoint = checkpoint(&folder("youtu"));
    let f16 = EngineOptions { cache: Some(latent_types::CacheType::F16), ..EngineOptions::default() };
    let refused =
        Engine::load(&*latent_backends::reference(), &checkpoint, &f16, &mut |_, _| {}).err().unwrap();
    assert!(refused.to_string().contains("only an f32 KV cache, not f16"), "{refused}");
}
