//! Every fixture, from safetensors and GGUF, in every formulation, chunking and tier, against
//! logits computed by Hugging Face transformers.

use crate::support::{
    CASES, WITH_GGUF, all_logits, checkpoint, engine, error, exhaustive, fixture, folder, greedy,
    side_by_side, tiers,
};
use latent_engine::{Engine, EngineOptions};
use latent_formats::Checkpoint;
use latent_graph::passes::{CacheForm, MlaChoice, Precision};
use latent_types::{CacheType, Tier};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// Maximum mean relative square error of a row in exact precision.
const EXACT: f64 = 1e-9;

/// Maximum median of the errors of the rows in default precision.
const DEFAULT: f64 = 3e-3;

/// Maximum error of a row in exact precision with a quantized cache: that of numbers of seven bits.
const CODES: f64 = 1e-3;

fn files() -> Vec<(&'static str, PathBuf)> {
    let folders = CASES.into_iter().map(|case| (case, folder(case)));
    let gguf = WITH_GGUF.into_iter().map(|case| (case, folder(case).join("model.f32.gguf")));
    folders.chain(gguf).collect()
}

fn on_every_tier() -> Vec<(Tier, &'static str, PathBuf)> {
    let files = files();
    tiers()
        .into_iter()
        .flat_map(|tier| files.iter().map(move |(case, path)| (tier, *case, path.clone())))
        .collect()
}

fn options(tier: Tier) -> EngineOptions {
    // One thread is enough: `bits.rs` checks that the number of threads does not change a bit.
    EngineOptions { tier: Some(tier), threads: Some(1), context: Some(1024), ..EngineOptions::default() }
}

fn exact(tier: Tier, mla: MlaChoice, form: CacheForm) -> EngineOptions {
    EngineOptions { mla, form, precision: Precision::Exact, ..options(tier) }
}

#[test]
fn exact_logits_agree_in_every_formulation_and_chunking() {
    let forms = [
        (MlaChoice::Absorbed, CacheForm::Latent),
        (MlaChoice::Naive, CacheForm::Latent),
        (MlaChoice::Naive, CacheForm::Expanded),
        (MlaChoice::SeparateScores, CacheForm::Latent),
        (MlaChoice::Auto, CacheForm::Latent),
    ];
    let tiers = tiers();
    side_by_side(&files(), |(case, path)| {
        let expected = fixture(case);
        let checkpoint = checkpoint(path);
        for (tier, (mla, form)) in tiers.iter().flat_map(|tier| forms.map(|form| (*tier, form))) {
            let mut engine = engine(&checkpoint, &exact(tier, mla, form));
            let all = tier == tiers[0] || exhaustive();
            let chunks: &[usize] = if all { &[usize::MAX, 1, 7, 16, 64] } else { &[usize::MAX, 7] };
            for &chunk in chunks {
                let logits = all_logits(&mut engine, &expected.tokens, chunk);
                let errors = expected
                    .rows
                    .iter()
                    .zip(&expected.logits)
                    .map(|(&row, truth)| error(&logits[row], truth));
                let mean = errors.sum::<f64>() / expected.rows.len() as f64;
                assert!(
                    mean <= EXACT,
                    "{case} {} {tier} {mla} {form:?} in chunks of {chunk}: {mean:e}",
                    path.display()
                );
            }
        }
    });
}

#[test]
fn exact_greedy_tokens_agree_up_to_the_first_near_tie() {
    let tiers = tiers();
    side_by_side(&files(), |(case, path)| {
        let expected = fixture(case);
        let all = [MlaChoice::Absorbed, MlaChoice::Naive, MlaChoice::SeparateScores];
        for (tier, mla) in tiers.iter().flat_map(|tier| all.map(|mla| (*tier, mla))) {
            let mut engine = engine(&checkpoint(path), &exact(tier, mla, CacheForm::Latent));
            let sure = expected.margin.iter().position(|m| *m <= 1e-3).unwrap_or(expected.greedy.len());
            let found = greedy(&mut engine, &expected.tokens, sure);
            assert_eq!(found, expected.greedy[..sure], "{case} {} {tier} {mla}", path.display());
        }
    });
}

/// A copy of a fixture with a changed config.json.
fn with_config(case: &str, change: impl FnOnce(&mut Map<String, Value>)) -> (TempDir, Arc<Checkpoint>) {
    let made = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(folder(case).join("config.json")).unwrap();
    let mut config = serde_json::from_str(&text).unwrap();
    change(&mut config);
    std::fs::write(made.path().join("config.json"), Value::Object(config).to_string()).unwrap();
    let weights = "model.safetensors";
    std::fs::copy(folder(case).join(weights), made.path().join(weights)).unwrap();
    let opened = checkpoint(made.path());
    (made, opened)
}

/// Transformers 5 ignores a stored head if `tie_word_embeddings` is true, and a `rope_scaling` if
/// `rope_parameters` exists. The fixture has its logits.
#[test]
fn conflicting_keys_of_a_config_are_resolved_as_in_transformers() {
    fn tie(config: &mut Map<String, Value>) {
        config["tie_word_embeddings"] = true.into();
    }
    fn add_yarn(config: &mut Map<String, Value>) {
        let mut yarn = config["rope_parameters"].take();
        yarn.as_object_mut().unwrap().retain(|key, _| key != "rope_theta");
        config["rope_parameters"] = json!({"rope_theta": 10000.0, "rope_type": "default"});
        config.insert("rope_scaling".into(), yarn);
    }
    fn clear(config: &mut Map<String, Value>) {
        add_yarn(config);
        config["rope_parameters"] = json!({});
        config.insert("rope_theta".into(), 10000.0.into());
    }
    type Change = fn(&mut Map<String, Value>);
    let cases: [(&str, Change, usize); 6] = [
        ("v3", tie, 1),
        ("minicpm3", tie, 1),
        ("v3-yarn", add_yarn, 0),
        ("v2-lite-yarn", clear, 0),
        ("minicpm3-long", add_yarn, 0),
        ("mistral4", clear, 0),
    ];
    for (case, change, warned) in cases {
        let (_made, file) = with_config(case, change);
        let mut engine = engine(&file, &exact(Tier::Portable, MlaChoice::Auto, CacheForm::Latent));
        let expected = fixture(case);
        let mean = expected.mean_error(&all_logits(&mut engine, &expected.tokens, 64));
        assert!(mean <= EXACT, "{case}: {mean:e}");
        let warnings = &engine.summary().warnings;
        assert_eq!(warnings.len(), warned, "{case}: {warnings:?}");
        assert!(
            warnings.iter().all(|text| text.contains("lm_head.weight is stored")),
            "{case}: {warnings:?}"
        );
    }
}

#[test]
fn default_precision_stays_close() {
    side_by_side(&on_every_tier(), |(tier, case, path)| {
        let expected = fixture(case);
        let mut engine = engine(&checkpoint(path), &options(*tier));
        let logits = all_logits(&mut engine, &expected.tokens, 64);
        let mut errors: Vec<f64> = expected
            .rows
            .iter()
            .zip(&expected.logits)
            .map(|(&row, truth)| error(&logits[row], truth))
            .collect();
        errors.sort_by(f64::total_cmp);
        let close = errors.iter().filter(|e| **e <= 1e-2).count();
        let median = errors[errors.len() / 2];
        assert!(median <= DEFAULT, "{case} {tier}: median {median:e}");
        assert!(close * 4 >= errors.len() * 3, "{case} {tier}: {close} of {} rows", errors.len());
    });
}

#[test]
fn a_quantized_cache_stays_close_in_every_formulation() {
    let both = [Precision::Exact, Precision::Default];
    side_by_side(&on_every_tier(), |(tier, case, path)| {
        let expected = fixture(case);
        let checkpoint = checkpoint(path);
        let all = [MlaChoice::Absorbed, MlaChoice::Naive, MlaChoice::SeparateScores, MlaChoice::Auto];
        let ways = all.into_iter().flat_map(|mla| both.map(|precision| (mla, precision, CacheType::Int8)));
        // The other quantized types use kernels in f32, except for the keys of prompts.
        let others = [(CacheType::Q8_0, 1.0), (CacheType::Fp8, 40.0), (CacheType::Q4_0, 400.0)];
        let exact = others.map(|(cache, _)| (MlaChoice::Absorbed, Precision::Exact, cache));
        let rounded = others.map(|(cache, _)| (MlaChoice::Auto, Precision::Default, cache));
        for (mla, precision, cache) in ways.chain(exact).chain(rounded) {
            let factor = others.iter().find(|(ty, _)| *ty == cache).map_or(1.0, |(_, factor)| *factor);
            let options = EngineOptions { mla, precision, cache: Some(cache), ..options(*tier) };
            let logits = all_logits(&mut engine(&checkpoint, &options), &expected.tokens, 16);
            let rows = expected.rows.iter().zip(&expected.logits);
            let mut errors: Vec<f64> = rows.map(|(&row, truth)| error(&logits[row], truth)).collect();
            errors.sort_by(f64::total_cmp);
            let median = errors[errors.len() / 2];
            let allowed = if precision == Precision::Exact { CODES } else { DEFAULT };
            let allowed = allowed * factor;
            assert!(
                median <= allowed,
                "{case} {} {tier} {mla} {precision} {cache}: {median:e}",
                path.display()
            );
            assert!(median > EXACT, "{case} {tier} {mla} {precision} {cache}: no error of codes at all");
        }
    });
}

#[test]
fn a_quantized_cache_cannot_hold_expanded_keys() {
    let options = EngineOptions {
        cache: Some(CacheType::Int8),
        ..exact(Tier::Portable, MlaChoice::Naive, CacheForm::Expanded)
    };
    let refused =
        Engine::load(&*latent_backends::cpu(), &checkpoint(&folder("youtu")), &options, &mut |_, _| {})
            .err()
            .unwrap();
    assert!(refused.to_string().contains("cache of int8 supports latents only"), "{refused}");
}
