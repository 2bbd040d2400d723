//! Models divided among several ranks, which are threads here: pipelines give the bits of one host,
//! other partitions give its logits within rounding, on both backends.

use crate::support::ranks::{TappedRank, on_ranks, on_ranks_over};
use crate::support::{
    CASES, all_logits, bits, checkpoint, error, exhaustive, fixture, folder, model_of_each_weight_type,
    sample_of, sure_prompt,
};
use latent_backend::{Backend, Channel, Communicator, RankError};
use latent_engine::cache::{Sequence, StateOptions};
use latent_engine::{Engine, EngineError, EngineOptions, LogitsRequest, SeqInput};
use latent_formats::{Checkpoint, FormatError, Outline};
use latent_graph::config::WireType;
use latent_graph::passes::{CacheForm, MlaChoice, Precision};
use latent_graph::{CheckpointTensors, Circuit, GraphError, ModelConfig, Partition, PartitionError};
use latent_hosts::LocalRank;
use latent_testing::{ModelRecipe, RandomWeightTypes};
use latent_types::TensorType;
use std::path::Path;
use std::sync::Arc;

/// Maximum error of a row against one host, in exact precision.
const EXACT: f64 = 1e-9;

type MakeBackend = fn() -> Box<dyn Backend>;

const BACKENDS: [MakeBackend; 2] = [latent_backends::cpu, latent_backends::reference];

/// A fixture with sparse attention, in which every layer has an indexer.
const SPARSE: &str = "deepseek-v32-sparse";

const PIPELINES: [&str; 4] = ["pipeline=1", "pipeline=2", "pipeline=3", "pipeline=4"];
/// Partitions in which sums are taken over ranks.
const SUMS: [&str; 9] = [
    "tensor=2",
    "tensor=3",
    "tensor=4",
    "experts=2",
    "experts=3",
    "experts=4",
    "tensor=2,experts=2",
    "pipeline=2,tensor=2",
    "pipeline=2,experts=2",
];

fn exact(mla: MlaChoice) -> EngineOptions {
    let (precision, context, tier) = (Precision::Exact, Some(128), Some(latent_kernels::native_tier()));
    let cache_tokens = Some(512);
    EngineOptions {
        mla,
        precision,
        context,
        cache_tokens,
        tier,
        threads: Some(1),
        ..EngineOptions::default()
    }
}

/// The logits of a prompt in one step, and in chunks of three tokens.
fn logits(engine: &mut Engine, tokens: &[u32]) -> Vec<Vec<f32>> {
    [usize::MAX, 3].into_iter().flat_map(|chunk| all_logits(engine, tokens, chunk)).collect()
}

/// The logits over the ranks of a partition. None if the model cannot be divided so.
fn shared(
    partition: &str,
    backend: MakeBackend,
    file: &Arc<Checkpoint>,
    mla: MlaChoice,
    tokens: &[u32],
) -> Option<Vec<Vec<f32>>> {
    let (led, followed) =
        on_ranks(partition, &backend, file, &|_| exact(mla), |engine| logits(engine, tokens));
    match led {
        Ok(logits) => {
            followed.into_iter().for_each(|result| result.unwrap());
            Some(logits)
        }
        Err(EngineError::Graph(GraphError::Partition(
            PartitionError::Layers { .. }
            | PartitionError::TooFew { .. }
            | PartitionError::NoExperts(_)
            | PartitionError::FusedExperts(_),
        ))) => None,
        Err(error) => panic!("{partition}: {error}"),
    }
}

/// The fixtures, and a random model of four layers, with some tokens of each.
fn models(made: &Path) -> Vec<(&'static str, Arc<Checkpoint>, Vec<u32>)> {
    let of_case = |case| {
        let tokens = fixture(case).tokens;
        // More tokens than sparse attention selects.
        let count = if case == SPARSE { 30 } else { 7 };
        (case, checkpoint(&folder(case)), tokens[..tokens.len().min(count)].to_vec())
    };
    let path = made.join("four.gguf");
    let recipe = ModelRecipe {
        layers: Some(4),
        ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::BF16))
    };
    recipe.write_gguf(&path).unwrap();
    let four = ("four layers", checkpoint(&path), vec![256, 5, 99, 300, 7, 42, 511]);
    CASES.into_iter().chain([SPARSE]).map(of_case).chain([four]).collect()
}

#[test]
fn a_pipeline_gives_the_bits_of_one_host() {
    let made = tempfile::tempdir().unwrap();
    let models = models(made.path());
    for backend in BACKENDS {
        let mut ran = [0; 4];
        for (case, file, tokens) in &models {
            let mut alone = Engine::load(&*backend(), file, &exact(MlaChoice::Auto), &mut |_, _| {}).unwrap();
            let alone = logits(&mut alone, tokens);
            for (partition, ran) in PIPELINES.into_iter().zip(&mut ran) {
                if let Some(shared) = shared(partition, backend, file, MlaChoice::Auto, tokens) {
                    assert!(bits(&shared) == bits(&alone), "{case} {partition}");
                    *ran += 1;
                }
            }
        }
        let all = models.len();
        assert!(ran[0] == all && ran[1] == all && ran[2] > 5 && ran[3] > 0, "{ran:?}");
    }
}

#[test]
fn sums_over_ranks_are_those_of_one_host_and_equal_between_runs() {
    let made = tempfile::tempdir().unwrap();
    // Both formulations of attention for each model, or alternately.
    let paths =
        |(i, model)| sample_of([MlaChoice::Absorbed, MlaChoice::Naive], i, 2).map(move |mla| (i, model, mla));
    let models = models(made.path());
    for backend in BACKENDS {
        let mut ran = [0; SUMS.len()];
        for (number, (case, file, tokens), mla) in models.iter().enumerate().flat_map(paths) {
            let mut alone = Engine::load(&*backend(), file, &exact(mla), &mut |_, _| {}).unwrap();
            let alone = logits(&mut alone, tokens);
            for (i, partition) in SUMS.into_iter().enumerate() {
                let Some(shared) = shared(partition, backend, file, mla, tokens) else { continue };
                for (row, (a, b)) in shared.iter().zip(&alone).enumerate() {
                    let error = error(a, b);
                    assert!(error <= EXACT, "{case} {partition} {mla} row {row}: {error:e}");
                }
                if exhaustive() || (number + i) % 6 == 0 {
                    let again = self::shared(partition, backend, file, mla, tokens).unwrap();
                    assert!(bits(&again) == bits(&shared), "{case} {partition} {mla} between runs");
                }
                ran[i] += 1;
            }
        }
        let fewest = if exhaustive() { 5 } else { 2 };
        assert!(ran.iter().all(|ran| *ran > fewest), "{ran:?}");
    }
}

#[test]
fn every_weight_type_is_cut_between_its_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let (mut ran, mut refused) = ([0; 4], 0);
    let precisions = [Precision::Exact, Precision::Default];
    for (number, (model, file)) in model_of_each_weight_type(folder.path()).enumerate() {
        let tokens = sure_prompt(&model, &file, 17);
        for (turn, precision) in precisions.into_iter().enumerate() {
            let options = || EngineOptions { precision, ..exact(MlaChoice::Auto) };
            let cpu = latent_backends::cpu;
            let alone = Engine::load(&*cpu(), &file, &options(), &mut |_, _| {})
                .map(|mut engine| all_logits(&mut engine, &tokens, 64))
                .unwrap();
            // each type with every partition, half of them in each precision
            let partitions = ["pipeline=2", "experts=2", "tensor=2", "tensor=2,experts=2"];
            for (i, partition) in sample_of(partitions.into_iter().enumerate(), number + turn, 2) {
                let planned = plan(&file, partition, &options());
                let (led, _) = on_ranks(partition, &cpu, &file, &|_| options(), |engine| {
                    all_logits(engine, &tokens, 64)
                });
                let shared = match led {
                    Ok(shared) => {
                        planned.unwrap();
                        shared
                    }
                    Err(
                        error @ (EngineError::Format(FormatError::Cut { .. })
                        | EngineError::Graph(GraphError::Partition(_))),
                    ) => {
                        assert_eq!(
                            planned.unwrap_err().to_string(),
                            error.to_string(),
                            "{model} {partition}"
                        );
                        refused += 1;
                        continue;
                    }
                    Err(error) => panic!("{model} {partition}: {error}"),
                };
                // 8-bit inputs are quantized in blocks, and a cut between blocks does not change
                // these. But sums over ranks have another order, so that values near a tie may
                // round differently.
                let allowed = if precision == Precision::Exact { EXACT } else { 3e-3 };
                let worst = shared.iter().zip(&alone).map(|(a, b)| error(a, b)).fold(0.0, f64::max);
                assert!(worst <= allowed, "{model} {partition} {precision}: {worst:e}");
                assert!(i > 0 || bits(&shared) == bits(&alone), "{model} {partition} {precision}");
                ran[i] += 1;
            }
        }
    }
    assert!(ran.iter().all(|ran| *ran > 8), "{ran:?}, {refused} refused");
}

/// Plans rank 0 of a partition from the outline of the file, without loading it.
fn plan(file: &Checkpoint, partition: &str, options: &EngineOptions) -> Result<(), EngineError> {
    let outline = Outline::open(file.path()).unwrap();
    let (backend, whole) = (latent_backends::cpu(), ModelConfig::from_checkpoint(file).unwrap());
    let partition: Partition = partition.parse().unwrap();
    let part = partition.part(&whole, 0, partition.ranks()).map_err(GraphError::from)?;
    let config = whole.of_part(part);
    let stages = options.resolve(&*backend, &config)?.stages(&config, &CheckpointTensors(file))?;
    latent_engine::check_cut(&outline, &CheckpointTensors(file), &stages)
}

#[test]
fn what_crosses_between_ranks_is_among_what_a_rank_needs() {
    let file = checkpoint(&folder("v3"));
    let (backend, whole) = (latent_backends::cpu(), ModelConfig::from_checkpoint(&file).unwrap());
    for (partition, shape) in [("pipeline=2", (1, 2)), ("tensor=2", (2, 1)), ("pipeline=2,experts=2", (2, 2))]
    {
        let parsed: Partition = partition.parse().unwrap();
        let config = whole.of_part(parsed.part(&whole, 0, parsed.ranks()).unwrap());
        let resolved = exact(MlaChoice::Auto).resolve(&*backend, &config).unwrap();
        let stages = resolved.stages(&config, &CheckpointTensors(&file)).unwrap();
        let arena =
            |config: &ModelConfig| backend.scratch_bytes(config, &stages, &resolved.options, 128).arena;
        let elements = resolved.options.stages.max_batch_tokens * config.hidden_size;
        let crossing = latent_backend::collective_bytes(shape, WireType::F32, elements);
        let alone = ModelConfig { part: None, ..config.clone() };
        assert_eq!(arena(&config) - arena(&alone), crossing, "{partition}");
        assert!(crossing > 4 * elements as u64, "{partition}");
    }
}

#[test]
fn packed_files_and_scales_are_cut_by_plans_as_by_loading() {
    let folder = tempfile::tempdir().unwrap();
    let recipe =
        |ty| ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(ty)) };
    let path = folder.path().join("model.gguf");
    recipe(TensorType::Q8_0).write_gguf(&path).unwrap();
    let packed = path.with_extension("latent");
    latent_backends::pack(&Checkpoint::open(&path).unwrap(), &packed, Some(1), &mut |_, _| true).unwrap();
    let fp8 = folder.path().join("fp8");
    recipe(TensorType::F8_E4M3).write_folder(&fp8).unwrap();
    let mut refused = Vec::new();
    for (what, path) in [("packed", &packed), ("fp8", &fp8)] {
        let file = checkpoint(path);
        for partition in ["pipeline=2", "experts=2", "tensor=2", "tensor=4"] {
            let options = || exact(MlaChoice::Auto);
            let planned = plan(&file, partition, &options()).map_err(|error| error.to_string());
            let (led, _) = on_ranks(partition, &latent_backends::cpu, &file, &|_| options(), |_| ());
            // If several ranks refuse, the error of any of them may arrive first.
            let led = led.map_err(|error| error.to_string());
            assert_eq!(planned.is_ok(), led.is_ok(), "{what} {partition}: {planned:?}, {led:?}");
            if let Err(problem) = planned {
                refused.push((what, partition, problem));
            }
        }
    }
    for (what, partition, problem) in &refused {
        let advice = if *what == "fp8" {
            "elements with one scale"
        } else {
            "a packed file can only be split between layers"
        };
        assert!(problem.contains(advice), "{what} {partition}: {problem}");
    }
    let refused: Vec<_> = refused.iter().map(|(what, partition, _)| (*what, *partition)).collect();
    assert_eq!(refused, [("packed", "tensor=2"), ("packed", "tensor=4"), ("fp8", "tensor=4")]);
}

/// Runs tokens in chunks of 32. Gives the logits of the last one.
fn last_logits(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]) -> Vec<f32> {
    let mut last = Vec::new();
    let hear = &mut |_: usize, logits: &[f32]| last = logits.to_vec();
    engine.prefill(sequence, tokens, 32, LogitsRequest::Last, hear, &mut |_| true).unwrap();
    last
}

/// Text, a fork, a shifted context, and a file of the cache.
fn session(engine: &mut Engine) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = (0..70).map(|i| i * 7 % 100).collect();
    let mut last = Vec::new();
    let mut feed = |engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]| {
        last.push(last_logits(engine, sequence, tokens));
    };
    let mut sequence = Sequence::default();
    feed(engine, &mut sequence, &tokens);
    // A block that two sequences share is copied when one of them writes to it.
    let mut shared = engine.share(&sequence, 66);
    feed(engine, &mut shared, &tokens[66..]);
    engine.shift(&mut sequence, 3..10).unwrap();
    feed(engine, &mut sequence, &[5]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    engine.save(&shared, &path).unwrap();
    let (mut restored, _) = engine.restore(&path).unwrap();
    feed(engine, &mut restored, &[9]);
    feed(engine, &mut shared, &[9]);
    last
}

#[test]
fn forks_shifts_and_saved_caches_reach_every_rank() {
    let file = checkpoint(&folder("v3"));
    for backend in BACKENDS {
        let options = exact(MlaChoice::Absorbed);
        let alone = session(&mut Engine::load(&*backend(), &file, &options, &mut |_, _| {}).unwrap());
        assert_eq!(bits(&alone[3..4]), bits(&alone[4..5]), "a restored sequence goes on as the saved one");
        for partition in ["pipeline=2", "pipeline=2,tensor=2"] {
            let (led, _) = on_ranks(partition, &backend, &file, &|_| exact(MlaChoice::Absorbed), session);
            let led = led.unwrap();
            match partition {
                "pipeline=2" => assert!(bits(&led) == bits(&alone)),
                _ => assert!(led.iter().zip(&alone).all(|(a, b)| error(a, b) <= EXACT)),
            }
        }
    }
}

/// Text, a fork from a snapshot, a step back, rejected drafts, and a file of the cache.
fn session_with_states(engine: &mut Engine) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = (0..150).map(|i| i * 7 % 100).collect();
    let mut last = Vec::new();
    let mut feed = |engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]| {
        last.push(last_logits(engine, sequence, tokens));
    };
    let mut sequence = Sequence::default();
    feed(engine, &mut sequence, &tokens);
    let mut shared = engine.share(&sequence, 140);
    assert_eq!(shared.len(), 128);
    feed(engine, &mut shared, &tokens[128..140]);
    let mut inputs = [SeqInput::drafted(&mut shared, &[5, 9, 100, 31])];
    engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
    assert_eq!(engine.truncate(&mut shared, 142), 142);
    feed(engine, &mut shared, &[3]);
    assert_eq!(engine.truncate(&mut sequence, 100), 64);
    feed(engine, &mut sequence, &tokens[64..70]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    engine.save(&shared, &path).unwrap();
    let (mut restored, _) = engine.restore(&path).unwrap();
    feed(engine, &mut restored, &[9]);
    feed(engine, &mut shared, &[9]);
    // Back to a snapshot that was saved in the file.
    assert_eq!(engine.truncate(&mut restored, 90), 64);
    feed(engine, &mut restored, &tokens[64..70]);
    last
}

#[test]
fn recurrent_states_reach_every_rank() {
    let often = StateOptions { sequences: 4, snapshots: 4, every: 64 };
    let options = |_| EngineOptions { states: often, context: Some(256), ..exact(MlaChoice::Auto) };
    for (case, backend) in
        ["kimi-linear-kda", "ling-3-kda"].into_iter().flat_map(|c| BACKENDS.map(|b| (c, b)))
    {
        let file = checkpoint(&folder(case));
        let mut alone = Engine::load(&*backend(), &file, &options(0), &mut |_, _| {}).unwrap();
        let layers = alone.config().layers;
        let alone = session_with_states(&mut alone);
        // Rank 0 with and without a layer that has a state.
        let one_each = format!("pipeline={layers}");
        let partitions =
            ["pipeline=2", "layers=1:R", "layers=R:1", "experts=2", "pipeline=2,experts=2", &one_each];
        for partition in partitions {
            let partition = &partition.replace('R', &(layers - 1).to_string());
            let (led, followed) = on_ranks(partition, &backend, &file, &options, session_with_states);
            let led = led.unwrap();
            followed.into_iter().for_each(|result| result.unwrap());
            match partition.contains("experts") {
                false => assert!(bits(&led) == bits(&alone), "{case} {partition}"),
                true => {
                    assert!(led.iter().zip(&alone).all(|(a, b)| error(a, b) <= EXACT), "{case} {partition}")
                }
            }
        }
        let refused = on_ranks("tensor=2", &backend, &file, &options, |_| ()).0.err().unwrap().to_string();
        assert!(
            refused.contains("recurrent state of heads is not supported for a model shared"),
            "{refused}"
        );
    }
}

/// The cache of a model with indexers has two rows of each token in each layer.
#[test]
fn both_streams_of_sparse_attention_reach_every_rank() {
    let file = checkpoint(&folder(SPARSE));
    for backend in BACKENDS {
        let options = exact(MlaChoice::Absorbed);
        let alone = session(&mut Engine::load(&*backend(), &file, &options, &mut |_, _| {}).unwrap());
        for partition in ["pipeline=2", "pipeline=3"] {
            let (led, _) = on_ranks(partition, &backend, &file, &|_| exact(MlaChoice::Absorbed), session);
            assert!(bits(&led.unwrap()) == bits(&alone), "{partition}");
        }
    }
}

#[test]
fn a_rank_holds_only_its_own_tensors() {
    let file = checkpoint(&folder("v3"));
    let bytes = |partition: &str| {
        let (led, _) =
            on_ranks(partition, &latent_backends::cpu, &file, &|_| exact(MlaChoice::Auto), |engine| {
                engine.summary().parameters
            });
        led.unwrap()
    };
    let whole = bytes("pipeline=1");
    for partition in ["pipeline=2", "tensor=2", "experts=2"] {
        assert!(bytes(partition) < whole * 9 / 10, "{partition}: {} of {whole}", bytes(partition));
    }
}

#[test]
fn ranks_that_differ_are_found_at_start() {
    let (v3, other) = (checkpoint(&folder("v3")), checkpoint(&folder("youtu")));
    let run = |options: &(dyn Fn(usize) -> EngineOptions + Sync)| {
        let (led, followed) = on_ranks("pipeline=3", &latent_backends::cpu, &v3, options, |_| ());
        let errors = followed.into_iter().filter_map(Result::err).map(|error| error.to_string());
        let errors: Vec<String> =
            led.err().map(|error| error.to_string()).into_iter().chain(errors).collect();
        assert_eq!(errors.len(), 3, "every rank ends: {errors:?}");
        errors
    };
    let differ = |precision| EngineOptions { precision, ..exact(MlaChoice::Auto) };
    let by_rank = |rank| differ(if rank == 2 { Precision::Default } else { Precision::Exact });
    assert!(
        run(&by_rank)[0].contains("rank 2 on host this process differs from rank 0 in precision: Default")
    );
    let threads = |rank| EngineOptions { threads: Some(1 + rank / 2), ..exact(MlaChoice::Auto) };
    assert!(
        run(&threads)[0].contains("rank 2 on host this process differs from rank 0 in number of threads")
    );
    // One rank has a custom circuit that differs from the built-in one only in its description.
    let mut own =
        Circuit::named(&latent_graph::ModelConfig::from_checkpoint(&v3).unwrap().circuit).unwrap().clone();
    own.about += " ";
    let own = Arc::new(own);
    let circuits =
        |rank| EngineOptions { circuit: (rank == 1).then(|| own.clone()), ..exact(MlaChoice::Auto) };
    assert!(
        run(&circuits)[0].contains("rank 1 on host this process differs from rank 0 in circuit: deepseek2 ")
    );
    let same = |_: usize| EngineOptions { circuit: Some(own.clone()), ..exact(MlaChoice::Auto) };
    on_ranks("pipeline=3", &latent_backends::cpu, &v3, &same, |_| ()).0.unwrap();
    // Different files, in a partition that both models can have.
    let partition: latent_graph::Partition = "pipeline=2".parse().unwrap();
    let errors: Vec<String> = std::thread::scope(|scope| {
        let load = |(rank, file): (latent_hosts::LocalRank, &Arc<Checkpoint>)| {
            let hosts = latent_engine::Hosts { partition: partition.clone(), communicator: Arc::new(rank) };
            let options = EngineOptions { hosts: Some(hosts), ..exact(MlaChoice::Auto) };
            let file = Arc::clone(file);
            scope.spawn(move || {
                Engine::load_rank(&*latent_backends::cpu(), &file, &options, &mut |_, _| {})
                    .err()
                    .unwrap()
                    .to_string()
            })
        };
        let threads: Vec<_> = latent_hosts::local_ranks(2).into_iter().zip([&v3, &other]).map(load).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(errors[0].contains("differs from rank 0 in model file"), "{errors:?}");
}

/// A rank whose commands to copy a block are lost.
fn losing(rank: LocalRank) -> Arc<dyn Communicator> {
    TappedRank::sends(rank, |_, channel, message| {
        // The command for a copy: its number, and the source and target blocks as u32.
        if channel == Channel::Commands && message.len() == 9 && message[0] == 3 {
            return Err(RankError::Setup("lost on purpose".into()));
        }
        Ok(())
    })
}

#[test]
fn no_step_runs_after_a_failed_operation_on_the_cache() {
    let (file, tokens) = (checkpoint(&folder("v3")), [1, 5, 9, 2]);
    let run = |mut engine: Engine| {
        let mut sequence = Sequence::default();
        let feed = |engine: &mut Engine, sequence: &mut Sequence| {
            engine.prefill(sequence, &tokens, 4, LogitsRequest::Last, &mut |_, _| {}, &mut |_| true)
        };
        feed(&mut engine, &mut sequence).unwrap();
        let mut shared = engine.share(&sequence, 3);
        // The shared block is copied before the step writes to it, which fails here.
        let lost = feed(&mut engine, &mut shared).unwrap_err().to_string();
        (lost, feed(&mut engine, &mut Sequence::default()).unwrap_err().to_string())
    };
    let options = |_| exact(MlaChoice::Absorbed);
    let (led, followed) = on_ranks_over(&losing, "pipeline=2", &latent_backends::cpu, &file, &options, run);
    let (lost, next) = led.unwrap();
    assert!(lost.contains("lost on purpose"), "{lost}");
    assert!(next.contains("the ranks of this model have stopped: lost on purpose"), "{next}");
    let follower = followed.into_iter().map(|result| result.unwrap_err().to_string()).next().unwrap();
    assert!(follower.contains("rank 0 on host this process failed: lost on purpose"), "{follower}");
}

#[test]
fn what_is_not_built_for_several_ranks_is_refused_by_name() {
    let file = checkpoint(&folder("v3"));
    let refused = |options: &(dyn Fn(usize) -> EngineOptions + Sync)| {
        on_ranks("pipeline=2", &latent_backends::cpu, &file, options, |_| ()).0.err().unwrap().to_string()
    };
    let drafts = |_| EngineOptions { draft: latent_engine::Draft::Mtp, ..exact(MlaChoice::Auto) };
    assert!(
        refused(&drafts).contains("drafting by the MTP layer is not supported for a model shared"),
        "{}",
        refused(&drafts)
    );
    let expanded = |_| EngineOptions { form: CacheForm::Expanded, ..exact(MlaChoice::Naive) };
    assert!(refused(&expanded).contains("expanded keys and values is not supported for a model shared"));
}

/// Makes an answer repeat a text, and keeps a few logits of each row that a token was chosen from.
struct RepeatedText {
    text: Vec<u32>,
    seen: Arc<std::sync::Mutex<Vec<u32>>>,
}

impl latent_engine::LogitsProcessor for RepeatedText {
    fn process(&mut self, context: &[u32], logits: &mut [f32]) {
        self.seen.lock().unwrap().extend(logits[300..308].iter().map(|logit| logit.to_bits()));
        logits.fill(f32::NEG_INFINITY);
        logits[self.text[context.len() % self.text.len()] as usize] = 0.0;
    }
}

#[test]
fn drafts_that_are_looked_up_reach_every_rank() {
    let file = checkpoint(&crate::support::demo::models().join("mla-demo-Q4_K_M.gguf"));
    let tokenizer = Arc::new(latent_text::Tokenizer::from_checkpoint(&file).unwrap());
    let text: Vec<u32> = (0..12).map(|i| 280 + 7 * i).collect();
    let options = |draft| EngineOptions { draft, draft_cost: Some(0.0), ..exact(MlaChoice::Auto) };
    let ask = |engine: &mut Engine| {
        let request = latent_engine::Request {
            prompt: text.clone(),
            sampling: latent_engine::sampling::SamplingParams::greedy(),
            max_tokens: Some(60),
            ..Default::default()
        };
        let seen = Arc::default();
        let processor = RepeatedText { text: text.clone(), seen: Arc::clone(&seen) };
        let session = &mut latent_engine::Session::default();
        let listener = &mut crate::support::demo::DemoListener;
        let processors: Vec<Box<dyn latent_engine::LogitsProcessor>> = vec![Box::new(processor)];
        let answer = engine.generate_with(session, &request, &tokenizer, processors, listener).unwrap();
        (answer.drafts.accepted, std::mem::take(&mut *seen.lock().unwrap()))
    };
    let none = options(latent_engine::Draft::None);
    let mut alone = Engine::load(&*latent_backends::cpu(), &file, &none, &mut |_, _| {}).unwrap();
    let (accepted, alone) = ask(&mut alone);
    assert_eq!((accepted, alone.len()), (0, 60 * 8));
    let ngram = |_| options(latent_engine::Draft::Ngram);
    let backend: MakeBackend = latent_backends::cpu;
    // A pipeline can have several steps in flight. An engine for which this holds looks up no
    // drafts.
    for (partition, drafts) in [("pipeline=2", false), ("experts=2", true)] {
        let (led, followed) = on_ranks(partition, &backend, &file, &ngram, ask);
        followed.into_iter().for_each(|result| result.unwrap());
        let (accepted, led) = led.unwrap();
        assert_eq!(accepted > 20, drafts, "{partition}: {accepted}");
        assert_eq!(led.len(), alone.len());
        for (led, alone) in led.iter().zip(&alone) {
            let [led, alone] = [led, alone].map(|bits| f32::from_bits(*bits));
            assert!((led - alone).abs() <= 1e-3 * alone.abs().max(1.0), "{partition}: {led} {alone}");
        }
    }
}
