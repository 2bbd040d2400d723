//! Steps of several rows of one sequence, as for the verification of drafts: the bits of a row do
//! not depend on the number of rows of its step, and the bytes that the step reads are counted.

use crate::support::{CASES, bits, checkpoint, engine, fixture, folder, tiers};
use latent_engine::cache::Sequence;
use latent_engine::{Engine, EngineOptions, LayerRouting, LogitsRequest, RoutedBytes, SeqInput, StepSize};
use latent_formats::Checkpoint;
use latent_graph::passes::{MlaChoice, Precision};
use latent_testing::{ModelRecipe, RandomWeightTypes, sample_of};
use latent_types::{CacheType, TensorType, Tier};
use std::sync::Arc;

/// Maximum number of rows of a step in these tests.
const ROWS: usize = 8;

fn options(
    tier: Tier,
    precision: Precision,
    mla: MlaChoice,
    cache: CacheType,
    threads: usize,
) -> EngineOptions {
    EngineOptions {
        precision,
        mla,
        cache: Some(cache),
        tier: Some(tier),
        threads: Some(threads),
        context: Some(1024),
        ..EngineOptions::default()
    }
}

/// Logits of `tokens` after those of the sequence, in steps of `rows` rows. The sequence is
/// truncated to its original length.
fn steps(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32], rows: usize) -> Vec<Vec<f32>> {
    let depth = sequence.len();
    let mut logits = Vec::new();
    for part in tokens.chunks(rows) {
        let mut inputs = [SeqInput::tokens(sequence, part, LogitsRequest::All)];
        engine.step(&mut inputs, &mut |_, _, l| logits.push(l.to_vec())).unwrap().all().unwrap();
    }
    assert_eq!(engine.truncate(sequence, depth), depth);
    logits
}

/// A sequence of the first `depth` tokens.
fn prefilled(engine: &mut Engine, tokens: &[u32], depth: usize) -> Sequence {
    let mut sequence = Sequence::default();
    prefill(engine, &mut sequence, &tokens[..depth]);
    sequence
}

fn prefill(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]) {
    let mut go_on = |_| true;
    engine.prefill(sequence, tokens, 100, LogitsRequest::Nothing, &mut |_, _| {}, &mut go_on).unwrap();
}

/// Compares steps of two to eight rows with steps of one. The depths are chosen so that all rows
/// have one split, that a split begins among the rows, and that the splits have different sizes.
/// Emulated instructions take a hundred times as long, so that they run only at the first two
/// depths.
fn rows_are_alike(file: &Arc<Checkpoint>, tokens: &[u32], options: &EngineOptions, what: &str) {
    let mut engine = engine(file, options);
    let all: Vec<u32> = tokens.iter().cycle().take(700).copied().collect();
    let some: [(usize, &[usize]); 4] =
        [(5, &[3, 8]), (124, &[8]), (508, &[2, 3, 4, 5, 6, 7, 8]), (570, &[7])];
    let mut sequence = Sequence::default();
    let emulated = options.tier.is_some_and(|tier| tier > tiers()[0]);
    for (depth, counts) in some.into_iter().take(if emulated { 2 } else { 4 }) {
        let cached = sequence.len();
        prefill(&mut engine, &mut sequence, &all[cached..depth]);
        let next = &all[depth..depth + ROWS];
        let truth = bits(&steps(&mut engine, &mut sequence, next, 1));
        for &rows in counts {
            let together = bits(&steps(&mut engine, &mut sequence, next, rows));
            let differs = together.iter().zip(&truth).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{what}: row of a step of {rows} after {depth} tokens");
        }
    }
    engine.release(sequence);
}

const CACHES: [CacheType; 5] =
    [CacheType::F32, CacheType::F16, CacheType::Bf16, CacheType::Int8, CacheType::Q4_0];

#[test]
fn rows_of_a_step_are_bit_equal_to_steps_of_one_row_with_quantized_weights() {
    let folder = tempfile::tempdir().unwrap();
    for (shape, kind) in [("tiny-v3", "Q4_K_M"), ("tiny-v2", "Q4_0"), ("tiny-dense", "Q5_K")] {
        let path = folder.path().join(shape);
        let recipe = ModelRecipe {
            layers: Some(2),
            ..ModelRecipe::new(shape, kind.parse::<RandomWeightTypes>().unwrap())
        };
        recipe.write_gguf(&path).unwrap();
        let file = checkpoint(&path);
        let tokens: Vec<u32> = (0..97).map(|i| i * i * 31 % 509).collect();
        let tiers = tiers();
        for (i, tier) in tiers.iter().enumerate() {
            // Lower tiers are slow, so that each runs only one model.
            if *tier != tiers[0] && shape != "tiny-v3" {
                continue;
            }
            for (turn, cache) in CACHES.into_iter().enumerate() {
                for mla in sample_of([MlaChoice::Auto, MlaChoice::SeparateScores], i + turn, 2) {
                    let threads = [2, 3, 3, 1][i];
                    let options = options(*tier, Precision::Default, mla, cache, threads);
                    let what = format!("{shape} {kind} {tier} {cache} {mla} {threads}");
                    rows_are_alike(&file, &tokens, &options, &what);
                }
            }
        }
    }
}

#[test]
fn rows_of_a_step_are_bit_equal_to_steps_of_one_row_in_exact_precision() {
    // Every second fixture, which includes models with and without experts and with five heads.
    for case in CASES.into_iter().step_by(2) {
        let file = checkpoint(&folder(case));
        for mla in [MlaChoice::Absorbed, MlaChoice::SeparateScores, MlaChoice::Naive] {
            let options = options(tiers()[0], Precision::Exact, mla, CacheType::F32, 2);
            rows_are_alike(&file, &fixture(case).tokens, &options, &format!("{case} {mla}"));
        }
    }
}

/// The experts that `tokens` choose after `depth` others.
fn routing(engine: &mut Engine, file: &Checkpoint, tokens: &[u32], depth: usize) -> Vec<LayerRouting> {
    let activations = engine.activations(file).unwrap();
    let mut sequence = prefilled(engine, tokens, depth);
    let routing = engine.trace_routing(&activations, &mut sequence, &tokens[depth..]).unwrap();
    assert_eq!(sequence.len(), tokens.len());
    engine.release(sequence);
    routing
}

#[test]
fn the_experts_of_a_step_are_those_with_the_largest_router_logits() {
    let (case, depth) = ("v2-lite", 20);
    let file = checkpoint(&folder(case));
    let tokens = fixture(case).tokens[..depth + ROWS].to_vec();
    let exact = options(tiers()[0], Precision::Exact, MlaChoice::Absorbed, CacheType::F32, 2);
    let mut engine = engine(&file, &exact);
    let found = routing(&mut engine, &file, &tokens, depth);
    let moe = engine.config().moe.unwrap();
    assert_eq!(found.iter().map(|layer| layer.layer).collect::<Vec<_>>(), [1, 2]);
    // The router of this model takes the largest logits, without groups or a bias.
    let activations = engine.activations(&file).unwrap();
    let trace = engine.trace(&activations, 0..3, &tokens, &mut |_| true).unwrap();
    for layer in found {
        let name = format!("layers.{}.router_logits", layer.layer);
        let logits = trace.values(activations.find(&name).unwrap()).unwrap();
        let mut union = vec![false; moe.experts];
        for (i, chosen) in layer.rows.iter().enumerate() {
            let row = logits.row(depth + i).unwrap();
            let larger = |expert: usize| row.iter().filter(|other| **other > row[expert]).count();
            let largest: Vec<usize> =
                (0..moe.experts).filter(|e| larger(*e) < moe.num_experts_per_tok).collect();
            assert_eq!(*chosen, largest, "layer {} row {i}", layer.layer);
            largest.iter().for_each(|expert| union[*expert] = true);
        }
        assert_eq!(layer.distinct(), union.iter().filter(|used| **used).count());
    }
}

#[test]
fn backends_agree_on_the_experts_of_a_step() {
    let (case, depth) = ("v3", 20);
    let file = checkpoint(&folder(case));
    let tokens = fixture(case).tokens[..depth + ROWS].to_vec();
    let exact = options(tiers()[0], Precision::Exact, MlaChoice::Absorbed, CacheType::F32, 2);
    let here = routing(&mut engine(&file, &exact), &file, &tokens, depth);
    let reference = latent_backends::reference();
    let mut engine = Engine::load(&*reference, &file, &exact, &mut |_, _| {}).unwrap();
    assert_eq!(here, routing(&mut engine, &file, &tokens, depth));
    let repeated = routing(&mut engine, &file, &[&tokens[..depth], &[7; ROWS]].concat(), depth);
    let used = engine.config().moe.unwrap().num_experts_per_tok;
    for (independent, repeated) in here.iter().zip(&repeated) {
        assert!(independent.rows.iter().all(|row| row.len() == used));
        assert!((used..=independent.distinct()).contains(&repeated.distinct()));
    }
}

#[test]
fn a_step_reads_dense_weights_once_and_each_distinct_expert_once() {
    let file = checkpoint(&folder("v3"));
    let engine = engine(&file, &options(tiers()[0], Precision::Default, MlaChoice::Auto, CacheType::F16, 2));
    let moe = engine.config().moe.unwrap();
    let size = |rows| StepSize { sequences: 1, rows, cached: 100, wanted: rows, mtp: false };
    let bytes = |rows, experts: usize| engine.routed_bytes(size(rows), &|_| experts as f64);
    let close = |a: f64, b: f64| (a - b).abs() < 1e-9 * a.abs().max(1.0);
    // The bytes of one row equal its cost.
    let (one, cost) = (bytes(1, moe.num_experts_per_tok), engine.cost(size(1)));
    assert!(
        close(one.dense + one.experts, cost.weight_bytes) && close(one.cache, cost.cache_bytes),
        "{one:?}"
    );
    // All experts together read all bytes of their tensors.
    let all = bytes(8, moe.experts);
    let names = file.tensors().iter().map(|info| &info.name).filter(|name| name.contains(".mlp.experts."));
    let experts: usize = names.map(|name| file.tensor(name).unwrap().data.len()).sum();
    assert!(experts > 0 && close(all.experts, experts as f64), "{} of {experts}", all.experts);
    // Additional rows read only additional cached rows and their own embeddings.
    let row = |bytes: RoutedBytes| bytes.dense + bytes.cache;
    let (two, three) = (row(bytes(2, 5)), row(bytes(3, 5)));
    assert!(two > row(one) && three - two < 0.01 * row(one), "{two} {three}");
}

#[test]
fn a_traced_step_gives_the_bits_of_an_ordinary_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny");
    ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::Q8_0)) }
        .write_gguf(&path)
        .unwrap();
    let file = checkpoint(&path);
    let tokens: Vec<u32> = (0..80).map(|i| i * 7 % 500).collect();
    let mut engine =
        engine(&file, &options(tiers()[0], Precision::Default, MlaChoice::Auto, CacheType::F16, 2));
    let activations = engine.activations(&file).unwrap();
    let [ordinary, traced] = [false, true].map(|traced| {
        let mut sequence = prefilled(&mut engine, &tokens, 70);
        if traced {
            engine.trace_routing(&activations, &mut sequence, &tokens[70..75]).unwrap();
        } else {
            let mut inputs = [SeqInput::tokens(&mut sequence, &tokens[70..75], LogitsRequest::Nothing)];
            engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
        }
        let logits = bits(&steps(&mut engine, &mut sequence, &tokens[75..], 1));
        engine.release(sequence);
        logits
    });
    assert!(ordinary == traced);
}
