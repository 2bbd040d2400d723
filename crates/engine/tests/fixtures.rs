//! Every fixture, from safetensors and GGUF, in every formulation and chunking, against logits computed by Hugging Face transformers.
#![allow(missing_docs, reason = "tests")]

mod support;

use engine::EngineOptions;
use graph::passes::{CacheForm, MlaChoice, Precision};
use std::path::PathBuf;
use support::{CASES, WITH_GGUF, all_logits, checkpoint, engine, error, fixture, folder, greedy};

/// Mean relative square error of a row that exact arithmetic may have.
const EXACT: f64 = 1e-9;

fn files() -> Vec<(&'static str, PathBuf)> {
    let folders = CASES.into_iter().map(|case| (case, folder(case)));
    let gguf = WITH_GGUF.into_iter().map(|case| (case, folder(case).join("model.f32.gguf")));
    folders.chain(gguf).collect()
}

fn exact(mla: MlaChoice, form: CacheForm) -> EngineOptions {
    let precision = Precision::Exact;
    EngineOptions { mla, form, precision, threads: Some(2), context: Some(1024), ..EngineOptions::default() }
}

#[test]
fn exact_logits_agree_in_every_formulation_and_chunking() {
    let forms = [
        (MlaChoice::Absorbed, CacheForm::Latent),
        (MlaChoice::Naive, CacheForm::Latent),
        (MlaChoice::Naive, CacheForm::Expanded),
        (MlaChoice::Split, CacheForm::Latent),
        (MlaChoice::Auto, CacheForm::Latent),
    ];
    for (case, path) in files() {
        let expected = fixture(case);
        let checkpoint = checkpoint(&path);
        for (mla, form) in forms {
            let mut engine = engine(&checkpoint, &exact(mla, form));
            for chunk in [usize::MAX, 1, 7, 16, 64] {
                let logits = all_logits(&mut engine, &expected.tokens, chunk);
                let errors = expected
                    .rows
                    .iter()
                    .zip(&expected.logits)
                    .map(|(&row, truth)| error(&logits[row], truth));
                let mean = errors.sum::<f64>() / expected.rows.len() as f64;
                assert!(
                    mean <= EXACT,
                    "{case} {} {mla} {form:?} in chunks of {chunk}: {mean:e}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn exact_greedy_tokens_agree_up_to_the_first_near_tie() {
    for (case, path) in files() {
        let expected = fixture(case);
        for mla in [MlaChoice::Absorbed, MlaChoice::Naive, MlaChoice::Split] {
            let mut engine = engine(&checkpoint(&path), &exact(mla, CacheForm::Latent));
            let sure = expected.margin.iter().position(|m| *m <= 1e-3).unwrap_or(expected.greedy.len());
            let found = greedy(&mut engine, &expected.tokens, sure);
            assert_eq!(found, expected.greedy[..sure], "{case} {} {mla}", path.display());
        }
    }
}

#[test]
fn default_precision_stays_close() {
    for (case, path) in files() {
        let expected = fixture(case);
        let options = EngineOptions { threads: Some(2), context: Some(1024), ..EngineOptions::default() };
        let mut engine = engine(&checkpoint(&path), &options);
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
        assert!(median <= 3e-3, "{case}: median {median:e}");
        assert!(close * 4 >= errors.len() * 3, "{case}: {close} of {} rows", errors.len());
    }
}
