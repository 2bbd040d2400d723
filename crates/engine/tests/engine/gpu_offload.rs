//! Models whose last layers are on a GPU, and models that do not fit there. Where no driver offers
//! an adapter, each test says that it was skipped; `REQUIRE_GPU=1` makes that an error.
#![allow(missing_docs, clippy::print_stdout, reason = "tests, and what is skipped is named")]

use crate::support;
use crate::support::demo;
use crate::support::jobs;
use crate::support::{CASES, all_logits, bits, checkpoint, error, fixture, folder};
use latent_backend_wgpu::{GpuBackend, GpuError};
use latent_engine::cache::{Sequence, StateOptions};
use latent_engine::memory::FittingLayers;
use latent_engine::scheduler::{Job, Scheduler, SchedulerOptions};
use latent_engine::{DeviceLayers, Engine, EngineError, EngineOptions, LogitsRequest, Offload};
use latent_formats::Checkpoint;
use latent_graph::passes::{FORMS, Precision};
use latent_types::CacheType;
use std::sync::{Arc, OnceLock};

/// Mean relative square error of a row's logits against Hugging Face's f32.
const EXACT: f64 = 1e-9;

fn open() -> Option<GpuBackend> {
    match GpuBackend::open(0) {
        Ok(backend) => Some(backend),
        Err(GpuError::NoAdapter) if std::env::var_os("REQUIRE_GPU").is_none() => {
            println!("SKIPPED: no adapter");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The first adapter, opened once for most tests, so that the shaders are compiled only once.
fn gpu() -> Option<&'static GpuBackend> {
    static GPU: OnceLock<Option<GpuBackend>> = OnceLock::new();
    GPU.get_or_init(open).as_ref()
}

fn options(layers: DeviceLayers) -> EngineOptions {
    EngineOptions {
        offload: Some(Offload { front: latent_backends::cpu().into(), layers }),
        context: Some(256),
        max_batch_tokens: Some(128),
        threads: Some(1),
        precision: Precision::Exact,
        ..EngineOptions::default()
    }
}

fn load(gpu: &GpuBackend, file: &Arc<Checkpoint>, options: &EngineOptions) -> Result<Engine, EngineError> {
    Engine::load(gpu, file, options, &mut |_, _| {})
}

#[test]
fn fixtures_cut_at_any_layer_give_hugging_faces_logits() {
    let Some(gpu) = gpu() else { return };
    for (n, case) in CASES.into_iter().enumerate() {
        let (expected, file) = (fixture(case), checkpoint(&folder(case)));
        // Software adapters are slow.
        let tokens = &expected.tokens[..expected.tokens.len().min(24)];
        let layers = latent_graph::ModelConfig::from_checkpoint(&file).unwrap().layers;
        // Two cuts of each fixture, so that all fixtures together try every layer and formulation.
        let mut counts = vec![1 + n % layers, layers];
        counts.dedup();
        for count in counts {
            let (mla, form) = FORMS[(n + count) % FORMS.len()];
            let options = EngineOptions { mla, form, ..options(DeviceLayers::Count(count)) };
            let mut engine = load(gpu, &file, &options).unwrap();
            let front = engine.summary().front.clone().unwrap();
            assert_eq!((front.backend, front.layers, front.of), ("cpu", layers + 1 - count, layers));
            let mean = expected.mean_error(&all_logits(&mut engine, tokens, 20));
            assert!(mean <= EXACT, "{case} {mla} {form:?}, {count} of {layers} layers: {mean:e}");
            println!("{case} {mla} {form:?}, {count} of {layers} layers and the output: {mean:.1e}");
        }
    }
}

/// Layers with a recurrent state on both devices: logits, and texts that go back to a snapshot.
#[test]
fn layers_with_a_state_are_cut_between_devices() {
    let Some(gpu) = gpu() else { return };
    let states = StateOptions { sequences: 4, snapshots: 4, every: 64 };
    for case in ["kimi-linear-kda", "ling-3-kda"] {
        let (expected, file) = (fixture(case), checkpoint(&folder(case)));
        let layers = latent_graph::ModelConfig::from_checkpoint(&file).unwrap().layers;
        let tokens = &expected.tokens[..expected.tokens.len().min(80)];
        for count in [2, layers] {
            let options = EngineOptions { states, ..options(DeviceLayers::Count(count)) };
            let mut engine = load(gpu, &file, &options).unwrap();
            let front = engine.summary().front.clone().unwrap();
            assert_eq!((front.backend, front.layers, front.of), ("cpu", layers + 1 - count, layers));
            let logits = all_logits(&mut engine, tokens, 20);
            let mean = expected.mean_error(&logits);
            assert!(mean <= EXACT, "{case}, {count} of {layers} layers: {mean:e}");
            // The states of both devices go back to the same row.
            let mut sequence = Sequence::default();
            let feed = |engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]| {
                let mut last = Vec::new();
                let hear = &mut |_: usize, row: &[f32]| last = row.to_vec();
                engine.prefill(sequence, tokens, 128, LogitsRequest::Last, hear, &mut |_| true).unwrap();
                last
            };
            feed(&mut engine, &mut sequence, tokens);
            assert_eq!(engine.truncate(&mut sequence, 70), 64, "{case}");
            let again = feed(&mut engine, &mut sequence, &tokens[64..]);
            let worst = error(&again, &logits[tokens.len() - 1]);
            assert!(worst <= EXACT, "{case}, {count} of {layers} layers: {worst:e}");
        }
    }
}

#[test]
fn a_saved_cache_continues_on_one_device_and_on_two() {
    let Some(gpu) = gpu() else { return };
    let (file, saved) = (checkpoint(&folder("v3")), tempfile::tempdir().unwrap());
    let tokens: Vec<u32> = (0..70).map(|i| i * 7 % 100).collect();
    let on = |layers| load(gpu, &file, &options(layers)).unwrap();
    let next = |engine: &mut Engine, sequence: &mut Sequence| {
        let mut last = Vec::new();
        let hear = &mut |_: usize, l: &[f32]| last = l.to_vec();
        engine.prefill(sequence, &[9], 64, LogitsRequest::Last, hear, &mut |_| true).unwrap();
        last
    };
    let places = [DeviceLayers::All, DeviceLayers::Count(1), DeviceLayers::Count(2), DeviceLayers::Count(0)];
    let mut expected = None;
    for (n, from) in places.into_iter().enumerate() {
        let (mut engine, mut sequence, path) =
            (on(from), Sequence::default(), saved.path().join(n.to_string()));
        engine
            .prefill(&mut sequence, &tokens, 64, LogitsRequest::Last, &mut |_, _| {}, &mut |_| true)
            .unwrap();
        engine.save(&sequence, &path).unwrap();
        let own = next(&mut engine, &mut sequence);
        let (mut restored, _) = engine.restore(&path).unwrap();
        assert_eq!(
            bits(std::slice::from_ref(&own)),
            bits(&[next(&mut engine, &mut restored)]),
            "{from}: other bits"
        );
        let expected = expected.get_or_insert(own);
        for to in places {
            let mut engine = on(to);
            let (mut restored, _) = engine.restore(&path).unwrap();
            let error = error(&next(&mut engine, &mut restored), expected);
            assert!(error <= EXACT, "{from} to {to}: {error:e}");
        }
    }
}

#[test]
fn a_model_that_does_not_fit_says_by_how_much_and_auto_leaves_layers_on_the_cpu() {
    let Some(backend) = open() else { return };
    let file = checkpoint(&folder("v3"));
    let cached = |layers| EngineOptions { context: Some(1024), ..options(layers) };
    let whole = load(&backend, &file, &cached(DeviceLayers::All)).unwrap();
    let needed = whole.needed().total();
    let layers = whole.config().layers;
    let taken = backend.memory_in_use();
    drop(whole);
    let room = needed - 1;
    let small = backend.with_memory_limit(room);
    let refused = load(&small, &file, &cached(DeviceLayers::All)).err().unwrap();
    let EngineError::Memory(problem) = &refused else { panic!("{refused}") };
    let fitting = problem.layers.unwrap();
    assert_eq!(fitting, FittingLayers { layers, of: layers + 1, smaller_cache: true });
    let message = refused.to_string();
    for part in [
        "the memory of the device",
        "missing",
        &format!("option `offload: {layers}` (of {}", layers + 1),
        "option `context: ",
        "f16",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // The number of layers in the error fits, and `auto` takes it.
    for layers in [DeviceLayers::Count(fitting.layers), DeviceLayers::Auto] {
        let mut engine = load(&small, &file, &cached(layers)).unwrap();
        assert_eq!(engine.summary().front.as_ref().unwrap().layers, 1, "{layers}");
        assert_eq!(all_logits(&mut engine, &[1, 2, 3], 64).len(), 3);
    }
    let f16 = EngineOptions { cache: Some(CacheType::F16), ..cached(DeviceLayers::All) };
    assert!(load(&small, &file, &f16).is_ok(), "a smaller cache makes room");
    // With `force`, loading is tried, and the device refuses the allocation.
    let tight = small.with_memory_limit(taken / 3);
    let forced = EngineOptions { force: true, ..cached(DeviceLayers::All) };
    let refused = load(&tight, &file, &forced).err().unwrap().to_string();
    assert!(refused.contains("`offload") && refused.contains("device memory"), "{refused}");
    // If nothing fits, the CPU takes all layers.
    let none = tight.with_memory_limit(1);
    let engine = load(&none, &file, &cached(DeviceLayers::Auto)).unwrap();
    assert_eq!((engine.summary().backend, engine.summary().front.clone()), ("cpu", None));
    let refused = load(&none, &file, &cached(DeviceLayers::All)).err().unwrap().to_string();
    assert!(refused.contains("not even the output layer fits: use option `device: cpu`"), "{refused}");
}

/// Devices limit the size of one buffer. The KV cache of a layer and the values of a step can
/// exceed that limit before the memory is full.
#[test]
fn contexts_and_steps_are_chosen_so_that_each_piece_fits() {
    let Some(backend) = open() else { return };
    let file = checkpoint(&folder("v3"));
    let chosen = |layers| EngineOptions { context: None, max_batch_tokens: None, ..options(layers) };
    let whole = load(&backend, &file, &chosen(DeviceLayers::All)).unwrap();
    let (context, steps) = (whole.context(), whole.max_batch_tokens());
    assert_eq!(context, whole.config().context_length);
    let row = (whole.summary().token_bytes / whole.config().layers) as u64;
    drop((whole, backend));
    let most = (row * context as u64 / 3).next_multiple_of(256);
    let limited = GpuBackend::open(0).unwrap().with_piece_limit(most);
    for layers in [DeviceLayers::All, DeviceLayers::Count(2)] {
        let mut engine = load(&limited, &file, &chosen(layers)).unwrap();
        let fits = (most / row) as usize / 64 * 64;
        assert_eq!((engine.context(), engine.largest_context()), (fits, fits), "{layers}");
        assert!(engine.max_batch_tokens() < steps, "{layers}: {}", engine.max_batch_tokens());
        assert_eq!(all_logits(&mut engine, &[1, 2, 3], 64).len(), 3);
    }
    let refused = |options: EngineOptions| {
        let refused = load(&limited, &file, &options).err().unwrap();
        let EngineError::Piece(piece) = &refused else { panic!("{refused}") };
        (piece.clone(), refused.to_string())
    };
    let (piece, text) = refused(EngineOptions { context: Some(context), ..chosen(DeviceLayers::All) });
    assert_eq!((piece.bytes, piece.fits()), (row * context as u64, (most / row) as usize));
    for part in ["the KV cache of a layer takes", "per buffer", "option `context`", "option `cache: f16`"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let large = EngineOptions { max_batch_tokens: Some(1 << 16), ..options(DeviceLayers::All) };
    let (piece, text) = refused(large);
    assert!(text.contains("a value of a step takes") && text.contains("option `max_batch_tokens`"), "{text}");
    // The size in the error can be loaded.
    let fits = EngineOptions { max_batch_tokens: Some(piece.fits()), ..options(DeviceLayers::All) };
    load(&limited, &file, &fits).unwrap();
}

#[test]
fn the_planned_memory_is_that_of_the_device() {
    if open().is_none() {
        return;
    }
    let file = checkpoint(&folder("v3"));
    for layers in [DeviceLayers::All, DeviceLayers::Count(1)] {
        // With a limit, even one that is never reached, the memory of the device is counted apart
        // from that of the host.
        let backend = GpuBackend::open(0).unwrap().with_memory_limit(u64::MAX - 1);
        let engine =
            load(&backend, &file, &EngineOptions { cache_tokens: Some(8192), ..options(layers) }).unwrap();
        let (planned, given) = (engine.needed(), backend.memory_in_use());
        assert!(given <= planned.total(), "{layers}: {given} of {planned:?}");
        // The host may have most of the weights. Scratch memory is planned at its maximum, so that
        // only weights and cache are a lower bound.
        let least = if engine.summary().front.is_none() { planned.weights + planned.cache } else { 1 };
        assert!(given >= least, "{layers}: {given} of {planned:?}");
    }
}

#[test]
fn a_lost_device_is_an_error_of_its_own_and_another_can_be_opened() {
    let Some(backend) = open() else { return };
    let file = checkpoint(&folder("v3"));
    for layers in [DeviceLayers::All, DeviceLayers::Count(2)] {
        let backend = GpuBackend::open(0).unwrap();
        let mut engine = load(&backend, &file, &options(layers)).unwrap();
        let before = all_logits(&mut engine, &[1, 2, 3], 64);
        backend.destroy();
        let mut sequence = Sequence::default();
        let lost = engine
            .prefill(&mut sequence, &[1, 2, 3], 64, LogitsRequest::Last, &mut |_, _| {}, &mut |_| true)
            .err()
            .unwrap();
        assert!(matches!(lost, EngineError::Backend(latent_backend::BackendError::Lost(_))), "{lost:?}");
        assert!(lost.to_string().contains("was lost"), "{lost}");
        assert!(load(&backend, &file, &options(layers)).is_err(), "nothing is loaded there any more");
        drop(engine);
        let again = GpuBackend::open(0).unwrap();
        let after = all_logits(&mut load(&again, &file, &options(layers)).unwrap(), &[1, 2, 3], 64);
        assert_eq!(bits(&before), bits(&after));
    }
    drop(backend);
}

#[test]
fn jobs_of_a_lost_device_continue_on_the_cpu() {
    if open().is_none() {
        return;
    }
    let path = demo::models().join("mla-demo-Q4_K_M.gguf");
    let (file, options) = (checkpoint(&path), jobs::options(512, 2048));
    let demo::DemoEngine { engine: mut cpu, tokenizer, .. } = demo::demo(&options);
    let requests = [(1, 20, 12), (2, 70, 9)]
        .map(|(kind, prompt, tokens)| jobs::request(&tokenizer, jobs::prompt(kind, prompt), tokens));
    let expected = requests.clone().map(|request| jobs::alone(&mut cpu, &tokenizer, &request));
    for destroyed_after in [0, 3] {
        let gpu = GpuBackend::open(0).unwrap();
        let engine = load(&gpu, &file, &options).unwrap();
        let scheduling = SchedulerOptions { outlives_device: true, ..SchedulerOptions::default() };
        let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), scheduling.clone());
        let ids =
            requests.clone().map(|request| scheduler.submit(Job { request, ..Job::default() }).unwrap());
        let mut heard = jobs::HeardEvents::default();
        heard.steps(&mut scheduler, destroyed_after);
        gpu.destroy();
        let lost = scheduler.step(&mut |id, event| heard.hear(id, event)).err().unwrap();
        assert!(lost.is_lost(), "{lost:?}");
        let (engine, suspended) = scheduler.suspend();
        drop(engine);
        assert_eq!(suspended.ids().collect::<Vec<_>>(), ids);
        let engine = support::engine(&file, &options);
        let mut scheduler = Scheduler::resume(engine, Arc::clone(&tokenizer), scheduling, suspended);
        heard.run(&mut scheduler);
        for (id, answer) in ids.iter().zip(&expected) {
            heard.is_answer(*id, answer);
        }
        jobs::nothing_is_left(&mut scheduler);
    }
}
