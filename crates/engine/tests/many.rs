//! Prompts of many rows on every tier: kernels for many rows are bound where there are any, experts with few rows have another beside them, and
//! results stay near to exact ones, the same for any number of threads.
#![allow(missing_docs, reason = "tests")]

mod support;

use base::Tier;
use engine::{Engine, EngineOptions};
use graph::passes::{MlaChoice, Precision};
use std::collections::HashSet;
use support::{all_logits, bits, checkpoint, engine, error, tiers};
use testkit::Recipe;

/// More than one tile of rows, and no whole number of them.
const ROWS: u32 = 75;

fn options(tier: Tier, precision: Precision, threads: usize) -> EngineOptions {
    let (mla, tier, threads, context) = (MlaChoice::Auto, Some(tier), Some(threads), Some(128));
    EngineOptions { mla, precision, tier, threads, context, ..EngineOptions::default() }
}

/// Kernels of the plan for many rows: those of its weights, and those that are bound beside them.
fn kernels_of(engine: &Engine) -> (HashSet<&str>, HashSet<&str>) {
    let kernels = || engine.backend().trunk()[2].ir.nodes.iter().flat_map(|node| &node.kernels);
    let few = kernels().filter_map(|kernel| kernel.few.as_ref());
    (kernels().map(|kernel| kernel.name.as_str()).collect(), few.map(|few| few.name.as_str()).collect())
}

#[test]
fn prompts_of_many_rows_are_near_to_exact_ones_on_every_tier() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let tokens: Vec<u32> = (0..ROWS).map(|i| (i * i * 7 + 3 * i) % 500).collect();
    for (shape, kind) in [
        ("tiny-v3", "Q4_K_M"),
        ("tiny-v2", "Q4_0"),
        ("tiny-dense", "Q8_0"),
        ("tiny-v3", "NVFP4"),
        ("tiny-v3", "IQ4_NL"),
    ] {
        Recipe { layers: Some(3), ..Recipe::new(shape, kind.parse().unwrap()) }.write_gguf(&path).unwrap();
        let file = checkpoint(&path);
        let exact =
            all_logits(&mut engine(&file, &options(Tier::Portable, Precision::Exact, 2)), &tokens, 128);
        for tier in tiers() {
            let what = format!("{shape} {kind} {tier}");
            let mut one = engine(&file, &options(tier, Precision::Default, 1));
            let logits = all_logits(&mut one, &tokens, 128);
            let mut errors: Vec<f64> = exact.iter().zip(&logits).map(|(a, b)| error(b, a)).collect();
            errors.sort_by(f64::total_cmp);
            let median = errors[errors.len() / 2];
            println!("{what}: median {median:.1e}");
            assert!(median < 3e-2, "{what}: {median:e}");
            for threads in [2, 3] {
                let mut many = engine(&file, &options(tier, Precision::Default, threads));
                assert!(bits(&all_logits(&mut many, &tokens, 128)) == bits(&logits), "{what} {threads}");
            }
            let (kernels, few) = kernels_of(&one);
            let tiled = |names: &HashSet<&str>| names.iter().any(|name| name.starts_with("amx"));
            assert_eq!(tiled(&kernels), tier == Tier::Amx, "{what} {kernels:?}");
            assert_eq!(few.is_empty(), tier != Tier::Amx || shape == "tiny-dense", "{what} {few:?}");
            assert!(!tiled(&few), "{what} {few:?}");
            // plans of one and of few rows have nothing of them
            let others = one.backend().trunk()[..2].iter().flat_map(|plan| &plan.ir.nodes);
            assert!(!others.flat_map(|node| &node.kernels).any(|kernel| kernel.name.starts_with("amx")));
        }
    }
}
