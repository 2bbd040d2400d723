//! Unusual arguments of the whole public API: 0, 1, the largest number, NaN, negative numbers,
//! empty and reversed ranges. Each call ends soon, with a value or an error, and without a panic.

use crate::support::demo::{DemoEngine, DemoListener, demo, models};
use latent_engine::cache::{
    CacheSalt, DiskCache, Sequence, StateOptions, block_hashes, block_hashes_of, whole_prefix_blocks,
};
use latent_engine::sampling::{Sampler, SamplerKind, SamplingParams, StopStrings, log_probabilities};
use latent_engine::scheduler::{FairnessKey, Job, JobChoice, JobEvent, JobId, Scheduler, SchedulerOptions};
use latent_engine::{
    CancelToken, ContextShift, DeviceLayers, DraftInput, Engine, EngineError, EngineOptions, Generation,
    InputRows, LogitsRequest, MAX_CACHE_TOKENS, Offload, PeakRates, Pooling, Request, RunningAnswer,
    SeqError, SeqInput, Session, StepSize, StopReason, memory,
};
use latent_formats::Checkpoint;
use latent_graph::MAX_STEP_ROWS;
use latent_graph::activations::Activations;
use latent_graph::passes::{CacheForm, MlaChoice};
use latent_text::Tokenizer;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZES: [usize; 7] = [0, 1, 2, 63, 65, 1 << 40, usize::MAX];
const TOKENS: [u32; 4] = [0, 1, 1 << 20, u32::MAX];
const FLOATS: [f32; 11] =
    [0.0, -0.0, 1.0, -1.0, 0.5, 100.0, f32::MAX, f32::MIN, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

const NO_RATES: PeakRates = PeakRates {
    read_bandwidth: 0.0,
    int8_macs: 0.0,
    f32_macs: 0.0,
    f16_macs: 0.0,
    bf16_macs: 0.0,
    amx_int8_macs: 0.0,
};

fn checkpoint() -> Arc<Checkpoint> {
    Arc::new(Checkpoint::open(&models().join("mla-demo-Q4_K_M.gguf")).unwrap())
}

fn small() -> EngineOptions {
    EngineOptions { context: Some(128), threads: Some(1), ..EngineOptions::default() }
}

fn load(checkpoint: &Arc<Checkpoint>, options: &EngineOptions) -> Result<Engine, EngineError> {
    Engine::load(&*latent_backends::cpu(), checkpoint, options, &mut |_, _| {})
}

/// A sequence of the demo model with this number of rows.
fn sequence(engine: &mut Engine, rows: u32) -> Sequence {
    let mut sequence = Sequence::default();
    let tokens: Vec<u32> = (24..24 + rows).collect();
    let mut inputs = [SeqInput::tokens(&mut sequence, &tokens, LogitsRequest::Nothing)];
    engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
    sequence
}

#[test]
fn numbers_of_the_engine_options() {
    let checkpoint = checkpoint();
    let large = [1 << 40, usize::MAX];
    type Set = fn(usize) -> EngineOptions;
    let sets: [(&str, Set, &[usize]); 8] = [
        ("threads", |n| EngineOptions { threads: Some(n), ..small() }, &[0]),
        ("context", |n| EngineOptions { context: Some(n), ..small() }, &[1, 63, 65]),
        ("cache_tokens", |n| EngineOptions { cache_tokens: Some(n), ..small() }, &[0, 1, 2, 63, 65]),
        ("max_batch_tokens", |n| EngineOptions { max_batch_tokens: Some(n), ..small() }, &[0, 1, 2, 63, 65]),
        ("first_layers", |n| EngineOptions { first_layers: Some(n), ..small() }, &[1]),
        (
            "states.sequences",
            |n| EngineOptions { states: StateOptions { sequences: n, ..StateOptions::default() }, ..small() },
            &[0, 1, 63],
        ),
        (
            "states.snapshots",
            |n| EngineOptions { states: StateOptions { snapshots: n, ..StateOptions::default() }, ..small() },
            &[0, 1, 63],
        ),
        (
            "states.every",
            |n| EngineOptions { states: StateOptions { every: n, ..StateOptions::default() }, ..small() },
            &[0, 1, 63, usize::MAX],
        ),
    ];
    for (name, set, works) in sets {
        for size in works {
            let mut engine =
                load(&checkpoint, &set(*size)).unwrap_or_else(|error| panic!("{name} {size}: {error}"));
            let mut sequence = Sequence::default();
            let mut inputs = [SeqInput::tokens(&mut sequence, &[24], LogitsRequest::Last)];
            engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
        }
        for size in large.into_iter().filter(|size| !works.contains(size)) {
            let plain = set(size);
            let forced = EngineOptions { force: true, ..plain.clone() };
            for options in [plain, forced] {
                // Planning without loading must not overflow either.
                drop(options.place());
                drop(options.target(&*latent_backends::cpu()));
                let loaded = load(&checkpoint, &options).map(drop);
                // In a model without recurrent layers, any number of states takes no memory.
                let states = name.starts_with("states");
                assert!(loaded.is_err() || states, "{name} {size} was taken");
                let Err(error) = loaded else { continue };
                let said = error.to_string();
                let number = states || said.contains(&size.to_string()) || name == "first_layers";
                assert!(number && !said.contains("overflow"), "{name} {size}: {said}");
            }
        }
    }
    for (size, options) in [
        (MAX_STEP_ROWS, EngineOptions { max_batch_tokens: Some(MAX_STEP_ROWS), ..small() }),
        (MAX_CACHE_TOKENS, EngineOptions { cache_tokens: Some(MAX_CACHE_TOKENS), ..small() }),
    ] {
        // Whether this fits depends on the memory of the machine.
        if let Err(error) = load(&checkpoint, &options) {
            assert!(matches!(error, EngineError::Memory(_)), "{size}: {error}");
        }
    }
    for threads in [100_000, usize::MAX] {
        let said = load(&checkpoint, &EngineOptions { threads: Some(threads), ..small() })
            .err()
            .unwrap()
            .to_string();
        assert!(said.contains(&threads.to_string()) && said.contains("the maximum is 2048"), "{said}");
    }
    for hung_after in [Duration::ZERO, Duration::MAX] {
        drop(load(&checkpoint, &EngineOptions { hung_after: Some(hung_after), ..small() }).unwrap());
    }
    for layers in [DeviceLayers::All, DeviceLayers::Auto].into_iter().chain(SIZES.map(DeviceLayers::Count)) {
        let offload = Some(Offload { front: Arc::from(latent_backends::cpu()), layers });
        let mut engine = load(&checkpoint, &EngineOptions { offload, ..small() }).unwrap();
        drop(sequence(&mut engine, 2));
        SIZES
            .into_iter()
            .for_each(|size| assert!(layers.first(size).is_none_or(|first| first <= size.saturating_add(1))));
    }
    let naive = EngineOptions { mla: MlaChoice::Naive, form: CacheForm::Expanded, ..small() };
    for tokens in large {
        assert!(load(&checkpoint, &EngineOptions { cache_tokens: Some(tokens), ..naive.clone() }).is_err());
    }
}

#[test]
fn numbers_of_the_engine() {
    let DemoEngine { mut engine, .. } = demo(&small());
    for size in SIZES {
        assert!((1..=engine.max_batch_tokens()).contains(&engine.chunk_for(size)));
        let calls = engine.kernel_calls(size, size);
        assert!(calls.is_ok() || size > 1 << 20, "{size}");
        for step in [
            StepSize::decode(size, size),
            StepSize::verify(size, size),
            StepSize::draft(size, size),
            StepSize { sequences: size, rows: size, cached: size, wanted: size, mtp: false },
        ] {
            assert!(engine.cost(step).flops >= 0.0);
            assert!(engine.routed_bytes(step, &|_| f64::NAN).cache >= 0.0);
            let _ = engine.roofline(&[step], &NO_RATES);
        }
        for other in SIZES {
            assert!(StepSize::prompt(size, other, other).take(3).count() <= 3);
        }
    }
    let _ = engine.roofline(&[], &NO_RATES);
    drop(engine.profile(&[], true, &NO_RATES, &mut |_| Ok(())).unwrap());
    let odd = StepSize {
        sequences: usize::MAX,
        rows: usize::MAX,
        cached: usize::MAX,
        wanted: usize::MAX,
        mtp: true,
    };
    drop(engine.profile(&[odd], false, &NO_RATES, &mut |_| Err(EngineError::Stopped)).err().unwrap());
    assert!(engine.steps_in_flight() == 1 && engine.submit(&mut []).is_err());
    engine.set_cancel_token(CancelToken::new());
    engine.wait_for_weights();
}

#[test]
fn positions_in_sequences() {
    // A cache with room for several sequences.
    let DemoEngine { mut engine, .. } = demo(&EngineOptions { context: Some(512), ..small() });
    let rows = 70;
    for position in SIZES {
        let mut one = sequence(&mut engine, rows);
        let shared = engine.share(&one, position);
        assert_eq!(shared.len(), position.min(70));
        assert_eq!(shared.tokens(), &one.tokens()[..shared.len()]);
        engine.snapshot_at(&mut one, position).unwrap();
        assert!(one.reusable(position) <= 70);
        assert_eq!(engine.truncate(&mut one, position), position.min(70));
        for other in SIZES {
            let mut one = sequence(&mut engine, rows);
            let shifted = engine.shift(&mut one, position..other);
            let within = position <= other && other <= 70;
            assert_eq!(
                (shifted.is_ok(), one.len()),
                (within, if within { 70 - (other - position) } else { 70 })
            );
            if !within {
                let said = shifted.unwrap_err().to_string();
                assert!(said.contains(&format!("{position}..{other}")) && said.contains("70 rows"), "{said}");
            }
        }
        for layer in SIZES {
            let row = engine.kv_cache().row(&one, layer, position);
            assert!(row.is_err() || position < 70, "{layer} {position}");
        }
        let shift = ContextShift { keep: position, discard: position };
        for len in SIZES {
            let discarded = shift.discarded(len);
            assert!(discarded.start <= discarded.end && discarded.end <= len);
        }
    }
    #[expect(clippy::reversed_empty_ranges, reason = "an odd argument")]
    let reversed = 100..2;
    let mut three = sequence(&mut engine, 3);
    assert!(matches!(engine.shift(&mut three, reversed), Err(EngineError::Stretch { .. })));
    // An empty range of an empty sequence.
    let mut none = Sequence::default();
    engine.shift(&mut none, 0..0).unwrap();
    assert!(engine.shift(&mut none, 0..1).is_err());
    engine.release(none);
    drop(three);
    assert_eq!(engine.kv_cache().available(), 512);
}

#[test]
fn inputs_of_steps() {
    let DemoEngine { mut engine, .. } = demo(&small());
    let hidden = engine.config().hidden_size;
    let mut none = |_: usize, _: usize, _: &[f32]| {};
    assert!(engine.step(&mut [], &mut none).is_err());
    for token in TOKENS {
        let mut one = Sequence::default();
        let tokens = [24, token];
        let mut inputs = [SeqInput::tokens(&mut one, &tokens, LogitsRequest::All)];
        let outcome = engine.step(&mut inputs, &mut none).unwrap();
        assert_eq!(outcome.all().is_ok(), token < 1 << 20, "{token}");
        let _ = engine.draft(&mut [DraftInput { sequence: &mut one, token }], &mut |_, _| {}).err().unwrap();
        engine.keep_drafts(&mut one, true);
    }
    for row in SIZES {
        let mut one = Sequence::default();
        let rows = [row, 0, row];
        for wanted in [LogitsRequest::Rows(&rows), LogitsRequest::Rows(&[])] {
            let mut inputs = [SeqInput { drafted: true, ..SeqInput::tokens(&mut one, &[24, 25], wanted) }];
            drop(engine.step(&mut inputs, &mut none).map(|outcome| outcome.all()));
        }
    }
    let values = vec![0.5; 2 * hidden];
    for width in SIZES.into_iter().chain([hidden, 2 * hidden]) {
        for values in [&values[..], &values[..hidden], &values[..1], &[]] {
            for drafted in [false, true] {
                let mut one = Sequence::default();
                let mut inputs = [SeqInput {
                    drafted,
                    ..SeqInput::embeddings(&mut one, values, width, LogitsRequest::Last)
                }];
                let ran = engine.step(&mut inputs, &mut none).and_then(|outcome| outcome.all());
                assert_eq!(
                    ran.is_ok(),
                    width == hidden && values.len() >= hidden,
                    "{width} {}",
                    values.len()
                );
                drop(block_hashes_of(1, &[InputRows::Embeddings { values, width }]));
            }
        }
    }
    let bad: Vec<f32> = FLOATS.into_iter().chain(std::iter::repeat(0.0)).take(hidden).collect();
    let mut one = Sequence::default();
    let mut inputs = [SeqInput::embeddings(&mut one, &bad, hidden, LogitsRequest::Last)];
    assert!(engine.step(&mut inputs, &mut none).unwrap().all().is_err());
    for chunk in SIZES {
        let mut one = Sequence::default();
        let ran = engine.prefill(
            &mut one,
            &[24; 70],
            chunk,
            LogitsRequest::Rows(&[0, 69, usize::MAX]),
            &mut |_, _| {},
            &mut |_| true,
        );
        drop(ran);
        let mut one = Sequence::default();
        engine.prefill(&mut one, &[], chunk, LogitsRequest::All, &mut |_, _| {}, &mut |_| true).unwrap();
        let _ = engine
            .prefill(&mut one, &[24; 999], chunk, LogitsRequest::Last, &mut |_, _| {}, &mut |_| true)
            .unwrap_err();
    }
    drop(block_hashes(u64::MAX, &[u32::MAX; 200]));
    drop(one);
    assert_eq!(engine.kv_cache().available(), 128);
}

#[test]
fn records_of_runs() {
    let checkpoint = checkpoint();
    let mut engine = load(&checkpoint, &small()).unwrap();
    let activations: Activations = engine.activations(&checkpoint).unwrap();
    for first in SIZES {
        for last in SIZES {
            let ran = engine.trace(&activations, first..last, &[24, 25], &mut |_| true);
            assert!(ran.is_ok() || first.max(last) > 2, "{first}..{last}: {}", ran.err().unwrap());
        }
    }
    for tokens in [&[][..], &[u32::MAX], &[24; 500]] {
        assert!(engine.trace(&activations, 0..1, tokens, &mut |_| true).is_err() || tokens.is_empty());
        assert!(engine.trace_routing(&activations, &mut Sequence::default(), tokens).is_err());
        drop(engine.input_squares(&[tokens], &mut |_| true));
    }
    drop(engine.input_squares(&[], &mut |_| true));
    // The engine still runs.
    drop(sequence(&mut engine, 2));
}

/// Parameters with one field set.
fn params(set: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
    let mut params = SamplingParams::default();
    set(&mut params);
    params
}

/// Every field of [`SamplingParams`] with odd values.
fn odd_params() -> Vec<SamplingParams> {
    type SetFloat = fn(&mut SamplingParams, f32);
    let floats: [SetFloat; 18] = [
        |p, v| p.temperature = v,
        |p, v| p.top_p = v,
        |p, v| p.min_p = v,
        |p, v| p.typical_p = v,
        |p, v| p.repeat_penalty = v,
        |p, v| p.presence_penalty = v,
        |p, v| p.frequency_penalty = v,
        |p, v| p.dry_multiplier = v,
        |p, v| (p.dry_multiplier, p.dry_base) = (1.0, v),
        |p, v| p.xtc_probability = v,
        |p, v| (p.xtc_probability, p.xtc_threshold) = (1.0, v),
        |p, v| p.top_n_sigma = v,
        |p, v| p.dynatemp_range = v,
        |p, v| (p.dynatemp_range, p.dynatemp_exponent) = (0.5, v),
        |p, v| (p.mirostat, p.mirostat_tau) = (1, v),
        |p, v| (p.mirostat, p.mirostat_eta) = (2, v),
        |p, v| p.adaptive_target = v,
        |p, v| (p.adaptive_target, p.adaptive_decay) = (0.5, v),
    ];
    type SetSize = fn(&mut SamplingParams, usize);
    let sizes: [SetSize; 7] = [
        |p, n| p.top_k = n,
        |p, n| (p.repeat_penalty, p.repeat_last_n) = (1.5, n),
        |p, n| (p.dry_multiplier, p.dry_allowed) = (1.0, n),
        |p, n| (p.dry_multiplier, p.dry_last) = (1.0, n),
        |p, n| (p.min_keep, p.xtc_probability) = (n, 1.0),
        |p, n| p.mirostat = n,
        |p, n| p.seed = n as u64,
    ];
    let mut all = Vec::new();
    for set in floats {
        all.extend(FLOATS.map(|value| params(|p| set(p, value))));
    }
    for set in sizes {
        all.extend(SIZES.map(|size| params(|p| set(p, size))));
    }
    for token in TOKENS {
        all.push(params(|p| p.allowed_tokens = Some(vec![token, token])));
        all.extend(FLOATS.map(|value| params(|p| p.logit_bias = vec![(token, value), (token, value)])));
    }
    all.push(params(|p| p.allowed_tokens = Some(Vec::new())));
    all.push(params(|p| p.samplers = Some(Vec::new())));
    all.push(params(|p| p.samplers = Some(vec![SamplerKind::Infill; 3])));
    let breakers = vec![String::new(), "\n".into(), "long ".repeat(1000), "\u{10ffff}".into()];
    all.push(params(|p| (p.dry_multiplier, p.dry_breakers) = (1.0, Some(breakers))));
    all
}

#[test]
fn parameters_of_samplers() {
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint()).unwrap());
    let rows: Vec<Vec<f32>> = vec![
        Vec::new(),
        vec![1.0],
        vec![f32::NAN; 5],
        vec![f32::INFINITY, f32::INFINITY, f32::NAN],
        FLOATS.to_vec(),
        (0..2000).map(|i| ((i * 37) % 101) as f32 / 10.0).collect(),
    ];
    let mut refused = 0;
    let all = odd_params();
    for params in &all {
        for vocab in [0, 2000, usize::MAX] {
            let mut sampler = match Sampler::of_tokenizer(params.clone(), vocab, &tokenizer) {
                Ok(sampler) => sampler,
                Err(error) => {
                    refused += usize::from(vocab == 2000);
                    assert!(!error.to_string().is_empty());
                    continue;
                }
            };
            for row in &rows {
                for token in TOKENS.into_iter().chain([5, 5, 5]) {
                    sampler.accept(token);
                }
                if let Ok(token) = sampler.sample(row) {
                    assert!((token as usize) < row.len());
                }
            }
        }
    }
    assert!(refused > 50 && refused < all.len() / 2, "{refused} of {}", all.len());
    drop(Sampler::new(SamplingParams::greedy(), usize::MAX, vec![u32::MAX, u32::MAX]).unwrap());
    for row in &rows {
        for top in SIZES {
            for token in TOKENS {
                assert!(log_probabilities(row, token, top).1.len() <= row.len());
            }
        }
    }
    for word in ["", "-", "☃", "top_k;", "a\0b"] {
        assert!(SamplerKind::of_name(word).is_err());
        drop(SamplerKind::order_of_letters(word));
        drop(SamplerKind::order_of_names([word; 40]));
    }
    assert!(SamplerKind::order_of_letters(&"k".repeat(1 << 20)).is_err());
    let mut stops = StopStrings::new(&[String::new(), "\0".into(), "é".repeat(1 << 16)]);
    for text in ["", "é", "éé", "x", "\0"] {
        drop(stops.push(text));
    }
    drop((stops.finish(), stops.push("after"), stops.finish()));
}

/// Requests with odd fields.
fn odd_requests(prompt: &[u32]) -> Vec<Request> {
    let base = || Request { prompt: prompt.to_vec(), max_tokens: Some(3), ..Request::default() };
    let mut all = Vec::new();
    for size in SIZES {
        let few = size.min(4);
        all.push(Request { max_tokens: Some(few), min_tokens: size, ..base() });
        all.push(Request { max_tokens: Some(size), min_tokens: usize::MAX, ignore_eos: true, ..base() });
        all.push(Request { min_indent: size, ..base() });
        all.push(Request { logprobs: Some(size), sampled_logprobs: size > 1, ..base() });
        all.push(Request { shift: Some(ContextShift { keep: size, discard: size }), ..base() });
    }
    for time in [Duration::ZERO, Duration::MAX] {
        all.push(Request { max_time: Some(time), max_prompt_time: Some(time), ..base() });
    }
    for token in TOKENS {
        all.push(Request { stop_tokens: vec![token; 3], ..base() });
        all.push(Request { bad_words: vec![Vec::new(), vec![token], vec![token; 5]], ..base() });
        all.push(Request { prompt: vec![token], ..base() });
    }
    all.push(Request { prompt: Vec::new(), ..base() });
    all.push(Request { prompt: vec![24; 5000], ..base() });
    all.push(Request { stop: vec![String::new(), "\u{0}".into(), "s".repeat(100_000)], ..base() });
    all.push(Request { max_drafts: Some(usize::MAX), ..base() });
    all.push(Request { max_drafts: Some(0), cancel: Some(CancelToken::new()), ..base() });
    all.extend(odd_params().into_iter().step_by(7).map(|sampling| Request { sampling, ..base() }));
    all
}

#[test]
fn requests_of_answers() {
    let mut demo = demo(&small());
    let prompt = demo.prompt("Why?");
    let mut answered = 0;
    for request in odd_requests(&prompt) {
        // An answer without a limit and with context shifts would not end.
        let endless = request.shift.is_some() && request.max_tokens.is_none();
        let mut session = Session::default();
        if let Ok(answer) = demo.engine.generate(&mut session, &request, &demo.tokenizer, &mut DemoListener) {
            assert!(!endless && answer.tokens.len() <= 128);
            answered += 1;
        }
        assert_eq!(session.tokens().len(), session.sequence.len());
        demo.engine.release(session.sequence);
        assert_eq!(demo.engine.kv_cache().available(), 128);
    }
    assert!(answered > 30, "{answered}");
}

#[test]
fn answers_as_state_machines() {
    let mut demo = demo(&small());
    let prompt = demo.prompt("Why?");
    let vocab = demo.engine.config().vocab_size;
    for vocab in [0, 1, vocab, usize::MAX] {
        for request in odd_requests(&prompt) {
            let Ok(mut generation) = Generation::new(Arc::clone(&demo.tokenizer), vocab, &request) else {
                continue;
            };
            assert_eq!(generation.pending(), request.prompt);
            for tokens in [1, usize::MAX, 0, usize::MAX] {
                generation.mark_run(tokens);
            }
            assert!(generation.pending().is_empty());
            // Sampling before the first step has no logits.
            assert!(generation.sample().is_err());
            drop((generation.finish(), generation.finish()));
            generation.stop(StopReason::Context);
            assert!(generation.is_finished() && generation.stop_reason() == Some(StopReason::Context));
        }
    }
    // A sequence of another text, or with more or fewer rows than the answer expects.
    let request = Request { prompt: prompt.clone(), ..Request::default() };
    for rows in [0, 1, 60] {
        let mut generation = demo.engine.start(&request, &demo.tokenizer).unwrap();
        generation.mark_run(1);
        let mut other = if rows == 0 { Sequence::default() } else { sequence(&mut demo.engine, rows) };
        let results = demo.engine.advance(&mut [RunningAnswer::new(&mut other, &mut generation)]).unwrap();
        assert!(
            matches!(&results[0], Err(EngineError::Sequence { error: SeqError::OtherTokens { .. }, .. })),
            "{rows}: {results:?}"
        );
        assert_eq!((other.len(), generation.pending().len()), (rows as usize, prompt.len() - 1));
    }
    for most in SIZES {
        let (mut own, mut generation) =
            (Sequence::default(), demo.engine.start(&request, &demo.tokenizer).unwrap());
        let mut running = RunningAnswer::new(&mut own, &mut generation);
        running.most = most;
        demo.engine.advance(&mut [running]).unwrap().pop().unwrap().unwrap();
        assert_eq!(own.len(), most.min(prompt.len()));
    }
    assert!(demo.engine.advance(&mut []).unwrap().is_empty());
}

/// Runs a scheduler until it is idle, with a limit of steps that none of these jobs needs.
fn run(scheduler: &mut Scheduler) -> Vec<(JobId, JobEvent)> {
    let mut events = Vec::new();
    for _ in 0..5000 {
        if !scheduler.step(&mut |id, event| events.push((id, event))).unwrap() {
            return events;
        }
    }
    panic!("no end after {} events", events.len());
}

#[test]
fn jobs_of_a_scheduler() {
    let demo = demo(&small());
    let prompt = demo.prompt("Why?");
    let mut scheduler = Scheduler::new(demo.engine, demo.tokenizer, SchedulerOptions::default());
    let mut accepted = 0;
    for request in odd_requests(&prompt) {
        accepted += usize::from(scheduler.submit(Job { request, ..Job::default() }).is_ok());
    }
    assert!(accepted > 30);
    let now = Instant::now();
    let request = || Request { prompt: prompt.clone(), max_tokens: Some(2), ..Request::default() };
    for priority in [i32::MIN, -1, i32::MAX] {
        for deadline in [None, Some(now), now.checked_add(Duration::from_secs(1 << 40))] {
            let key = FairnessKey(u64::MAX);
            scheduler.submit(Job { request: request(), key, priority, deadline, ..Job::default() }).unwrap();
        }
    }
    for pooling in [Pooling::None, Pooling::First, Pooling::Last, Pooling::Mean] {
        scheduler.submit(Job { request: request(), embed: true, pooling, ..Job::default() }).unwrap();
    }
    let choices = || (0..20).map(|seed| JobChoice { seed, ..JobChoice::default() }).collect();
    scheduler
        .submit_choices(Job { request: request(), uncached: true, ..Job::default() }, choices())
        .unwrap();
    let canceller = scheduler.canceller();
    [JobId(0), JobId(u64::MAX)].into_iter().for_each(|id| canceller.cancel(id));
    canceller.stop_step();
    scheduler.cancel(JobId(u64::MAX - 1));
    let events = run(&mut scheduler);
    let ended = events.iter().filter(|(_, event)| event.is_last()).count();
    assert_eq!(ended, accepted + 9 + 4 + 21);
    for tokens in SIZES {
        let lent = scheduler.lend_engine(tokens).unwrap();
        // A loan of 0 tokens evicts no prefixes, so that the cache may be full.
        if tokens > 0 {
            drop(sequence(lent, 1));
        }
    }
    for tokens in [&[][..], &[u32::MAX; 70], &[24]] {
        scheduler.forget_prefix(CacheSalt::of(b""), tokens);
        assert_eq!(
            scheduler.save_prefix(CacheSalt::SHARED, tokens, Path::new("/nowhere/at/all")).unwrap_or(0),
            0
        );
    }
    assert!(scheduler.restore_prefix(CacheSalt::SHARED, Path::new("/nowhere/at/all")).is_err());
    let (engine, jobs) = scheduler.suspend();
    assert_eq!(jobs.ids().count(), 0);
    drop(engine);
}

#[test]
fn options_of_a_scheduler() {
    let folder = tempfile::tempdir().unwrap();
    let floats = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, f64::MAX];
    let mut engine = Some(demo(&small()));
    for (index, size) in [0, 1, usize::MAX].into_iter().enumerate() {
        for prompt_slowdown in floats {
            let DemoEngine { engine: own, tokenizer, template } = engine.take().unwrap();
            let disk = DiskCache { path: folder.path().join("disk"), max_bytes: size as u64 };
            let options = SchedulerOptions {
                max_running: size,
                max_waiting: size,
                max_waiting_tokens: size,
                min_chunk: size,
                prompt_slowdown,
                disk: (index > 0).then_some(disk),
                ..SchedulerOptions::default()
            };
            let mut scheduler = Scheduler::new(own, Arc::clone(&tokenizer), options);
            let request = || Request { prompt: vec![24; 100], max_tokens: Some(2), ..Request::default() };
            scheduler.submit(Job { request: request(), ..Job::default() }).unwrap();
            drop(scheduler.submit(Job { request: request(), ..Job::default() }));
            run(&mut scheduler);
            scheduler.flush_disk();
            engine = Some(DemoEngine { engine: scheduler.into_engine(), tokenizer, template });
        }
    }
}

#[test]
fn sizes_of_memory() {
    let needed = |tokens: usize| latent_engine::MemoryEstimate {
        cache: (tokens as u64).saturating_mul(1000),
        ..latent_engine::MemoryEstimate::default()
    };
    for bytes in [0, 1, 1 << 40, u64::MAX] {
        let free = memory::AvailableMemory { bytes, limit: "free memory" };
        for tokens in SIZES {
            let chosen = memory::choose_context(&needed, bytes, tokens);
            assert!(chosen <= tokens, "{chosen} of {tokens}");
            if let Err(error) = memory::check(&needed, &free, tokens) {
                assert!(!error.to_string().is_empty());
            }
        }
    }
}

/// Saved sequences with every number of the header replaced, and truncated at every length.
#[test]
fn files_of_sequences() {
    let DemoEngine { mut engine, .. } = demo(&small());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let saved = sequence(&mut engine, 3);
    engine.save(&saved, &path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    assert!(whole_prefix_blocks(&whole, 1).is_none());
    for at in (0..400.min(whole.len() - 8)).step_by(4) {
        for value in [0, 1, u32::MAX / 2, u32::MAX] {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            std::fs::write(&path, &bytes).unwrap();
            let restored = engine.restore(&path);
            assert!(restored.is_err() || bytes == whole, "{value} at {at}");
        }
    }
    for length in (0..200).chain([whole.len() - 1]) {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(engine.restore(&path).is_err(), "{length}");
        assert!(engine.restore_session(&path).is_err());
    }
    for attachment in [&[][..], &[1]] {
        let mut session = Session::default();
        assert_eq!(engine.save_session(&mut session, Some(attachment), &path).unwrap(), 0);
        let (restored, read) = engine.restore_session(&path).unwrap();
        assert_eq!((restored.tokens().len(), read.as_deref()), (0, Some(attachment)));
    }
    drop(saved);
    assert_eq!(engine.kv_cache().available(), 128);
}
