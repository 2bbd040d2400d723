//! Prompts of many rows on every tier: plans bind kernels for many rows where they exist, and a
//! second kernel for experts with few rows. Results stay near to exact ones, and equal for any
//! number of threads. Attention uses tiles in every formulation that has them.

use crate::support::{all_logits, bits, checkpoint, engine, error, tiers};
use latent_engine::{Engine, EngineOptions};
use latent_graph::passes::{CacheForm, MlaChoice, Precision};
use latent_testing::{ModelRecipe, sample_of};
use latent_types::{CacheType, Tier};
use std::collections::HashSet;

/// More rows than a tile has, and not a multiple of that.
const ROWS: u32 = 75;

fn options(tier: Tier, precision: Precision, threads: usize) -> EngineOptions {
    let (mla, tier, threads, context) = (MlaChoice::Auto, Some(tier), Some(threads), Some(128));
    EngineOptions { mla, precision, tier, threads, context, ..EngineOptions::default() }
}

/// Kernels of the plan for many rows, and the small-batch kernels bound with them.
fn kernels_of(engine: &Engine) -> (HashSet<&str>, HashSet<&str>) {
    let kernels = || engine.stages()[0].plans[2].ir.nodes.iter().flat_map(|node| &node.kernels);
    let few = kernels().filter_map(|kernel| kernel.small_batch.as_ref());
    (kernels().map(|kernel| kernel.name.as_str()).collect(), few.map(|few| few.name.as_str()).collect())
}

#[test]
fn prompts_of_many_rows_are_near_to_exact_ones_on_every_tier() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let tokens: Vec<u32> = (0..ROWS).map(|i| (i * i * 7 + 3 * i) % 500).collect();
    let models = [
        ("tiny-v3", "Q4_K_M"),
        ("tiny-v2", "Q4_0"),
        ("tiny-dense", "Q8_0"),
        ("tiny-v3", "NVFP4"),
        ("tiny-v3", "IQ4_NL"),
    ];
    for (turn, (shape, kind)) in models.into_iter().enumerate() {
        ModelRecipe { layers: Some(3), ..ModelRecipe::new(shape, kind.parse().unwrap()) }
            .write_gguf(&path)
            .unwrap();
        let file = checkpoint(&path);
        let exact =
            all_logits(&mut engine(&file, &options(Tier::Portable, Precision::Exact, 2)), &tokens, 128);
        for (i, tier) in tiers().into_iter().enumerate() {
            let what = format!("{shape} {kind} {tier}");
            let mut one = engine(&file, &options(tier, Precision::Default, 1));
            let logits = all_logits(&mut one, &tokens, 128);
            let mut errors: Vec<f64> = exact.iter().zip(&logits).map(|(a, b)| error(b, a)).collect();
            errors.sort_by(f64::total_cmp);
            let median = errors[errors.len() / 2];
            println!("{what}: median {median:.1e}");
            assert!(median < 3e-2, "{what}: {median:e}");
            for threads in sample_of([2, 3], turn + i, 2) {
                let mut many = engine(&file, &options(tier, Precision::Default, threads));
                assert!(bits(&all_logits(&mut many, &tokens, 128)) == bits(&logits), "{what} {threads}");
            }
            let (kernels, few) = kernels_of(&one);
            let tiled = |names: &HashSet<&str>| names.iter().any(|name| name.starts_with("amx"));
            assert_eq!(tiled(&kernels), tier == Tier::Amx, "{what} {kernels:?}");
            assert_eq!(few.is_empty(), tier != Tier::Amx || shape == "tiny-dense", "{what} {few:?}");
            assert!(!tiled(&few), "{what} {few:?}");
            // The plans for one and for few rows use no tiles.
            let others = one.stages()[0].plans[..2].iter().flat_map(|plan| &plan.ir.nodes);
            assert!(!others.flat_map(|node| &node.kernels).any(|kernel| kernel.name.starts_with("amx")));
        }
    }
}

/// More than one block of expanded keys and more than two pages, with a partial block and page at
/// the end.
const LONG: u32 = 150;

#[test]
fn attention_by_tiles_is_near_to_exact_attention() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let tokens: Vec<u32> = (0..LONG).map(|i| (i * i * 5 + 11 * i) % 500).collect();
    ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-dense", "F32".parse().unwrap()) }
        .write_gguf(&path)
        .unwrap();
    let file = checkpoint(&path);
    let expanded = &["amx_bf16_attend_expanded", "amx_bf16_expand_keys"][..];
    for (mla, form, cache, wanted) in [
        (MlaChoice::Naive, CacheForm::Latent, CacheType::F16, expanded),
        (MlaChoice::Naive, CacheForm::Latent, CacheType::Bf16, expanded),
        (MlaChoice::Naive, CacheForm::Expanded, CacheType::F16, &expanded[..1]),
        (MlaChoice::Absorbed, CacheForm::Latent, CacheType::Bf16, &["amx_bf16_attend_latent"][..]),
    ] {
        let run = |tier, precision, threads| {
            let cache = Some(cache);
            let options =
                EngineOptions { mla, form, cache, context: Some(256), ..options(tier, precision, threads) };
            let mut engine = engine(&file, &options);
            // The second step begins within a block and within a page.
            (
                all_logits(&mut engine, &tokens, 70),
                kernels_of(&engine).0.into_iter().map(str::to_owned).collect(),
            )
        };
        let (exact, none): (_, HashSet<String>) = run(Tier::Portable, Precision::Exact, 2);
        assert!(!none.iter().any(|name| name.starts_with("amx")), "{none:?}");
        for tier in tiers().into_iter().filter(|tier| *tier == Tier::Amx) {
            let (logits, kernels) = run(tier, Precision::Default, 1);
            let what = format!("{mla} {form:?} {cache}");
            assert!(wanted.iter().all(|name| kernels.contains(*name)), "{what}: {kernels:?}");
            let mut errors: Vec<f64> = exact.iter().zip(&logits).map(|(a, b)| error(b, a)).collect();
            errors.sort_by(f64::total_cmp);
            let (median, worst) = (errors[errors.len() / 2], errors[errors.len() - 1]);
            println!("{what}: median {median:.1e}, worst {worst:.1e}");
            // The weights are F32, so that only attention rounds.
            assert!(median > 0.0 && worst < 1e-3, "{what}: median {median:e}, worst {worst:e}");
            let (again, _) = run(tier, Precision::Default, 3);
            assert!(bits(&again) == bits(&logits), "{what}");
        }
    }
}
