//! Every toy shape in every type that can be encoded, in legacy files, shards and folders, loads,
//! and all formulations agree.

use crate::support::{all_logits, checkpoint, engine, error, exhaustive, side_by_side, tiers};
use latent_engine::EngineOptions;
use latent_graph::passes::{MlaChoice, Precision};
use latent_testing::{ModelRecipe, RandomWeightTypes};
use latent_types::{TensorType, Tier};
use std::path::Path;

const TOKENS: [u32; 9] = [256, 5, 99, 300, 7, 7, 42, 511, 0];

fn options(tier: Tier, mla: MlaChoice, precision: Precision) -> EngineOptions {
    let (tier, threads, context) = (Some(tier), Some(1), Some(128));
    EngineOptions { mla, precision, tier, threads, context, ..EngineOptions::default() }
}

/// Mean error of b against a.
fn mean(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    a.iter().zip(b).map(|(a, b)| error(b, a)).sum::<f64>() / a.len() as f64
}

/// Checks that all formulations and tiers agree in exact precision, and that the median row of each
/// tier in default precision is close. Gives the exact logits.
fn check(path: &Path, what: &str) -> Vec<Vec<f32>> {
    let file = checkpoint(path);
    let logits =
        |tier, mla, precision| all_logits(&mut engine(&file, &options(tier, mla, precision)), &TOKENS, 4);
    let tiers = tiers();
    let exact = logits(tiers[0], MlaChoice::Absorbed, Precision::Exact);
    assert!(exact.iter().flatten().all(|l| l.is_finite()), "{what}");
    for tier in tiers {
        let naive = mean(&exact, &logits(tier, MlaChoice::Naive, Precision::Exact));
        assert!(naive < 1e-9, "{what} {tier}: naive {naive:e}");
        let default = logits(tier, MlaChoice::Auto, Precision::Default);
        let mut errors: Vec<f64> = exact.iter().zip(&default).map(|(a, b)| error(b, a)).collect();
        errors.sort_by(f64::total_cmp);
        let median = errors[errors.len() / 2];
        assert!(median < 3e-2, "{what} {tier}: default precision {median:e}");
    }
    exact
}

#[test]
fn every_toy_shape_runs_in_every_type() {
    let folder = tempfile::tempdir().unwrap();
    let kinds = latent_quant::encodable()
        .filter(|ty| ty.ggml_id().is_some() && *ty != TensorType::Q8_K)
        .map(RandomWeightTypes::from);
    let kinds: Vec<RandomWeightTypes> = kinds.chain(["Q4_K_M".parse().unwrap()]).collect();
    let shapes = latent_testing::shapes().filter(|name| name.starts_with("tiny"));
    // Without `exhaustive`, each type is tried in every fourth shape.
    let every = if exhaustive() { 1 } else { 4 };
    let types = |(i, shape)| {
        let kinds = kinds.iter().enumerate().filter(move |(kind, _)| (i + kind) % every == 0);
        kinds.map(move |(_, kind)| (shape, *kind))
    };
    let cases: Vec<_> = shapes.enumerate().flat_map(types).collect();
    side_by_side(&cases, |&(shape, kind)| {
        let what = format!("{shape} {kind:?}");
        let path = folder.path().join(&what);
        ModelRecipe { layers: Some(2), ..ModelRecipe::new(shape, kind) }.write_gguf(&path).unwrap();
        check(&path, &what);
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn legacy_files_and_shards_give_what_the_plain_file_gives() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = |legacy, shards| ModelRecipe {
        layers: Some(2),
        legacy,
        shards,
        ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::Q8_0))
    };
    let plain = folder.path().join("plain.gguf");
    recipe(false, None).write_gguf(&plain).unwrap();
    let expected = check(&plain, "plain");
    let cut = recipe(false, Some(3)).write_gguf(&folder.path().join("cut.gguf")).unwrap();
    assert_eq!(check(&cut.first, "shards"), expected);
    let last = folder.path().join("cut-00003-of-00003.gguf");
    assert_eq!(check(&last, "the last shard"), expected);
    let legacy = folder.path().join("legacy.gguf");
    recipe(true, None).write_gguf(&legacy).unwrap();
    check(&legacy, "legacy");
}

#[test]
fn folders_run_in_every_float_type() {
    let folder = tempfile::tempdir().unwrap();
    let types = [TensorType::F32, TensorType::BF16, TensorType::F16, TensorType::F8_E4M3];
    let shapes = latent_testing::shapes().filter(|name| name.starts_with("tiny"));
    let cases: Vec<_> = shapes.flat_map(|shape| types.map(|ty| (shape, ty))).collect();
    side_by_side(&cases, |&(shape, ty)| {
        let path = folder.path().join(format!("{shape}-{ty}"));
        ModelRecipe { layers: Some(2), ..ModelRecipe::new(shape, RandomWeightTypes::from(ty)) }
            .write_folder(&path)
            .unwrap();
        check(&path, &format!("{shape} {ty}"));
    });
}

#[test]
fn the_same_seed_gives_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, seed| {
        let path = folder.path().join(name);
        ModelRecipe { seed, ..ModelRecipe::new("tiny-dense", RandomWeightTypes::from(TensorType::Q4_K)) }
            .write_gguf(&path)
            .unwrap();
        std::fs::read(path).unwrap()
    };
    assert_eq!(write("a", 1), write("b", 1));
    assert_ne!(write("a", 1), write("b", 2));
    let unknown = ModelRecipe::new("huge", RandomWeightTypes::from(TensorType::F32))
        .write_gguf(&folder.path().join("c"));
    assert!(unknown.unwrap_err().to_string().contains("tiny-v3"));
    assert!("Q9".parse::<RandomWeightTypes>().unwrap_err().to_string().contains("Q4_K_M"));
}
