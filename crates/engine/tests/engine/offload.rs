//! A model divided between two backends gives the bits of one, wherever it is cut.

use crate::support;
use crate::support::demo;
use crate::support::{CASES, all_logits, bits, checkpoint, error, fixture, folder, shared_and_shifted};
use latent_backend::Backend;
use latent_engine::cache::Sequence;
use latent_engine::sampling::SamplingParams;
use latent_engine::{
    DeviceLayers, Draft, Engine, EngineError, EngineOptions, Hosts, LogitsRequest, Offload, Session,
    SparseAttention, StepSize,
};
use latent_formats::Checkpoint;
use latent_graph::Partition;
use latent_graph::passes::{CacheForm, FORMS, MlaChoice, Precision};
use std::sync::Arc;

fn options(mla: MlaChoice, form: CacheForm) -> EngineOptions {
    EngineOptions {
        mla,
        form,
        context: Some(128),
        cache_tokens: Some(512),
        threads: Some(1),
        precision: Precision::Exact,
        ..EngineOptions::default()
    }
}

fn offloaded(options: EngineOptions, front: Box<dyn Backend>, layers: usize) -> EngineOptions {
    EngineOptions {
        offload: Some(Offload { front: front.into(), layers: DeviceLayers::Count(layers) }),
        ..options
    }
}

fn load(backend: &dyn Backend, file: &Arc<Checkpoint>, options: &EngineOptions) -> Engine {
    Engine::load(backend, file, options, &mut |_, _| {}).unwrap()
}

/// The model with `layers` layers behind the cut, the CPU on both sides.
fn cut(file: &Arc<Checkpoint>, options: &EngineOptions, layers: usize) -> Engine {
    load(&*latent_backends::cpu(), file, &offloaded(options.clone(), latent_backends::cpu(), layers))
}

#[test]
fn a_model_cut_at_any_layer_gives_the_bits_of_one_backend() {
    for (n, case) in CASES.into_iter().enumerate() {
        let (file, fixture) = (checkpoint(&folder(case)), fixture(case));
        let tokens = &fixture.tokens[..fixture.tokens.len().min(12)];
        let (mla, form) = FORMS[n % FORMS.len()];
        // The layers of this model share selected tokens, which do not cross a cut. It would fall
        // back to dense attention.
        let sparse = if case == "glm-dsa" { SparseAttention::Off } else { SparseAttention::On };
        let options = EngineOptions { sparse, ..options(mla, form) };
        let mut alone = support::engine(&file, &options);
        let layers = alone.config().layers;
        let expected = [usize::MAX, 5].map(|chunk| all_logits(&mut alone, tokens, chunk));
        // The second backend has nothing, only the output, some layers, all layers, and more than
        // the model has.
        for count in 0..=layers + 2 {
            let mut engine = cut(&file, &options, count);
            let found = [usize::MAX, 5].map(|chunk| all_logits(&mut engine, tokens, chunk));
            for (found, expected) in found.iter().zip(&expected) {
                assert!(bits(found) == bits(expected), "{case} {mla} {form:?}, {count} of {layers} layers");
            }
            let front = engine.summary().front.as_ref().map(|front| front.layers);
            let before = (layers + 1).saturating_sub(count);
            assert_eq!(front, Some(before).filter(|before| (1..=layers).contains(before)), "{case} {count}");
            assert_eq!(engine.summary().parameters, alone.summary().parameters, "{case} {count}");
            assert_eq!(engine.summary().token_bytes, alone.summary().token_bytes, "{case} {count}");
        }
    }
}

#[test]
fn layers_with_a_state_run_on_both_sides() {
    for case in ["kimi-linear-kda", "ling-3-kda"] {
        let (file, tokens) = (checkpoint(&folder(case)), fixture(case).tokens);
        let options = EngineOptions { context: Some(512), ..options(MlaChoice::Auto, CacheForm::Latent) };
        let mut alone = support::engine(&file, &options);
        let layers = alone.config().layers;
        let expected = [64, 5].map(|chunk| bits(&all_logits(&mut alone, &tokens, chunk)));
        for count in 0..=layers + 1 {
            let mut engine = cut(&file, &options, count);
            let found = [64, 5].map(|chunk| bits(&all_logits(&mut engine, &tokens, chunk)));
            assert!(found == expected, "{case}, {count} of {layers} layers");
            assert_eq!(engine.kv_cache().layout(), alone.kv_cache().layout(), "{case} {count}");
            // The file of a sequence has the states of both backends.
            assert!(saved(&mut engine) == saved(&mut alone), "{case} {count}: another file");
            let reference = offloaded(options.clone(), latent_backends::reference(), count);
            let mut mixed = load(&*latent_backends::cpu(), &file, &reference);
            let found = all_logits(&mut mixed, &tokens, 64);
            let expected = all_logits(&mut alone, &tokens, 64);
            let worst = found.iter().zip(&expected).map(|(a, b)| error(a, b)).fold(0.0, f64::max);
            assert!(worst <= 1e-9, "{case} {count}: {worst:e}");
        }
    }
}

#[test]
fn two_kinds_of_backends_agree_with_one() {
    let (file, fixture) = (checkpoint(&folder("v3")), fixture("v3"));
    let options = options(MlaChoice::Auto, CacheForm::Latent);
    let expected = all_logits(&mut support::engine(&file, &options), &fixture.tokens, 20);
    for count in [1, 2] {
        let reference = offloaded(options.clone(), latent_backends::reference(), count);
        let mut engine = load(&*latent_backends::cpu(), &file, &reference);
        let found = all_logits(&mut engine, &fixture.tokens, 20);
        let worst = found.iter().zip(&expected).map(|(a, b)| error(a, b)).fold(0.0, f64::max);
        assert!(worst <= 1e-9, "{count}: {worst:e}");
    }
}

/// A prompt's file, as an engine saves it.
fn saved(engine: &mut Engine) -> Vec<u8> {
    let (folder, tokens) = (tempfile::tempdir().unwrap(), [5, 9, 100, 31, 7]);
    let mut sequence = Sequence::default();
    engine.prefill(&mut sequence, &tokens, 64, LogitsRequest::Last, &mut |_, _| {}, &mut |_| true).unwrap();
    engine.save(&sequence, &folder.path().join("saved")).unwrap();
    std::fs::read(folder.path().join("saved")).unwrap()
}

#[test]
fn forks_shifts_and_files_are_those_of_one_backend() {
    for case in ["youtu", "kimi-linear"] {
        let file = checkpoint(&folder(case));
        let options = options(MlaChoice::Absorbed, CacheForm::Latent);
        let expected = shared_and_shifted(support::engine(&file, &options));
        let file_of_one = saved(&mut support::engine(&file, &options));
        for count in [1, 2] {
            let found = shared_and_shifted(cut(&file, &options, count));
            assert!(bits(&found) == bits(&expected), "{case} {count}");
            assert!(saved(&mut cut(&file, &options, count)) == file_of_one, "{case} {count}: another file");
        }
    }
}

#[test]
fn a_profile_has_the_phases_of_both_sides() {
    let file = checkpoint(&folder("v3"));
    let options = options(MlaChoice::Auto, CacheForm::Latent);
    let cost = |engine: &Engine| engine.cost(StepSize::decode(1, 10));
    let (alone, mut engine) = (support::engine(&file, &options), cut(&file, &options, 2));
    // The values that cross the cut count like a row of the embedding.
    let (more, row) = (cost(&engine).weight_bytes - cost(&alone).weight_bytes, engine.config().hidden_size);
    assert!((0.0..=4.0 * row as f64).contains(&more), "{more}");
    engine.start_phase_times();
    all_logits(&mut engine, &[1, 2, 3], 64);
    let names: Vec<String> = engine.take_phase_times().into_iter().map(|time| time.name).collect();
    assert!(names.iter().any(|name| name.contains("embed")), "{names:?}");
    assert!(names.iter().any(|name| name.contains("head")), "{names:?}");
}

#[test]
fn drafts_are_those_of_one_backend() {
    let options =
        EngineOptions { threads: Some(2), context: Some(512), draft: Draft::Mtp, ..EngineOptions::default() };
    let ask = |options: &EngineOptions| {
        let mut demo = demo::demo(options);
        let answer = demo.ask(&mut Session::default(), "Who are you?", 60, &SamplingParams::greedy());
        assert!(answer.drafts.accepted > 0, "{:?}", answer.drafts);
        (answer.tokens, answer.drafts)
    };
    let expected = ask(&options);
    for count in [1, 3] {
        assert_eq!(ask(&offloaded(options.clone(), latent_backends::cpu(), count)), expected, "{count}");
    }
}

#[test]
fn options_that_exclude_two_backends_are_refused() {
    let file = checkpoint(&folder("v3"));
    let options = options(MlaChoice::Auto, CacheForm::Latent);
    let rank = latent_hosts::local_ranks(1).pop().unwrap();
    let hosts = Some(Hosts { partition: Partition::pipeline(1), communicator: Arc::new(rank) });
    let on_hosts = EngineOptions { hosts, ..offloaded(options.clone(), latent_backends::cpu(), 1) };
    let refused = Engine::load(&*latent_backends::cpu(), &file, &on_hosts, &mut |_, _| {}).err().unwrap();
    assert!(
        refused.to_string().contains("option `offload` cannot be combined with option `hosts`"),
        "{refused}"
    );
    // This model has no MTP layer, whether it is cut or not.
    let drafting =
        EngineOptions { draft: Draft::Mtp, ..offloaded(options.clone(), latent_backends::cpu(), 1) };
    let refused = Engine::load(&*latent_backends::cpu(), &file, &drafting, &mut |_, _| {}).err().unwrap();
    assert!(matches!(refused, EngineError::Graph(_)), "{refused}");
    let mut engine = cut(&file, &options, 1);
    let activations = engine.activations(&file).unwrap();
    let recorded = engine.trace(&activations, 0..1, &[1, 2, 3], &mut |_| true).err().unwrap().to_string();
    assert!(recorded.contains("layers on two devices are not recorded"), "{recorded}");
}
