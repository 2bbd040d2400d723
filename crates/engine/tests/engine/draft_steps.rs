//! Steps of a token and its draft, and the MTP layer's own steps, on random models.

use crate::support;
use crate::support::{
    CASES, best, bits, checkpoint, engine, error, exhaustive, folder, greedy, sample_of, tiers, weight_types,
};
use latent_engine::cache::Sequence;
use latent_engine::{
    CancelToken, Draft, DraftInput, Engine, EngineError, EngineOptions, LogitsRequest, SeqError, SeqInput,
};
use latent_formats::Checkpoint;
use latent_graph::passes::{CacheForm, MlaChoice, Precision};
use latent_testing::{ModelRecipe, MtpLayer, RandomWeightTypes};
use latent_types::{CacheType, TensorType};
use std::path::Path;
use std::sync::Arc;

fn options() -> EngineOptions {
    EngineOptions { threads: Some(2), context: Some(512), ..EngineOptions::default() }
}

fn drafting(precision: Precision) -> EngineOptions {
    EngineOptions { draft: Draft::Mtp, precision, ..options() }
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| i * 37 % 188 + 3).collect()
}

fn written(folder: &Path, recipe: &ModelRecipe, name: &str) -> Arc<Checkpoint> {
    let path = folder.join(name);
    if name.ends_with("gguf") {
        recipe.write_gguf(&path).unwrap()
    } else {
        recipe.write_folder(&path).unwrap()
    };
    checkpoint(&path)
}

/// Logits of the tokens `next` after a prompt: in one step as drafts, or in a step each.
fn after(engine: &mut Engine, prompt: &[u32], next: &[u32], together: bool) -> Vec<Vec<f32>> {
    let mut sequence = Sequence::default();
    engine.prefill(&mut sequence, prompt, 64, LogitsRequest::Nothing, &mut |_, _| {}, &mut |_| true).unwrap();
    let mut rows = Vec::new();
    for part in next.chunks(if together { next.len() } else { 1 }) {
        let mut inputs = [SeqInput::drafted(&mut sequence, part)];
        engine.step(&mut inputs, &mut |_, _, logits| rows.push(logits.to_vec())).unwrap().all().unwrap();
    }
    rows
}

#[test]
fn an_engine_that_drafts_has_no_steps_in_flight() {
    let made = tempfile::tempdir().unwrap();
    let recipe = ModelRecipe {
        layers: Some(2),
        mtp: MtpLayer::Own,
        ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::Q8_0))
    };
    let checkpoint = written(made.path(), &recipe, "mtp.gguf");
    let mut engine = engine(&checkpoint, &drafting(Precision::Default));
    let mut sequence = Sequence::default();
    let error = engine.submit(&mut [SeqInput::tokens(&mut sequence, &[5], LogitsRequest::Last)]).unwrap_err();
    assert!(error.to_string().contains("steps in flight are not supported with drafts"), "{error}");
    assert!(sequence.is_empty());
}

#[test]
fn a_token_and_its_draft_have_the_bits_of_two_steps() {
    let fixtures = CASES.map(|case| (case.to_owned(), checkpoint(&folder(case))));
    let made = tempfile::tempdir().unwrap();
    let mut models = Vec::from(fixtures);
    for (n, ty) in weight_types().enumerate() {
        let shape = ["tiny-v3", "tiny-glm", "tiny-v2"][n % 3];
        let recipe = ModelRecipe { layers: Some(2), ..ModelRecipe::new(shape, RandomWeightTypes::from(ty)) };
        models.push((format!("{shape} of {ty}"), written(made.path(), &recipe, &format!("{n}.gguf"))));
    }
    let fp8 = ModelRecipe {
        layers: Some(2),
        ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::F8_E4M3))
    };
    models.push(("fp8".to_owned(), written(made.path(), &fp8, "fp8")));
    let caches = [None, Some(CacheType::Int8), Some(CacheType::Bf16), Some(CacheType::Fp8)];
    let tiers = tiers();
    for (i, tier) in tiers.iter().enumerate() {
        // Lower tiers are slow, so that each runs only a part of the models.
        let every = match i {
            _ if exhaustive() => 1,
            0 => 4,
            _ => 16,
        };
        for (n, (name, checkpoint)) in models.iter().enumerate().skip(i % every).step_by(every) {
            for precision in [Precision::Default, Precision::Exact] {
                let cache = caches[n % caches.len()];
                let mut engine =
                    engine(checkpoint, &EngineOptions { tier: Some(*tier), precision, cache, ..options() });
                // The longer prompts have several KV splits.
                for length in if i == 0 { &[3, 300][..] } else { &[70] } {
                    let length = *length;
                    let (prompt, next) = (tokens(length), [9, 77]);
                    let [one, two] = [true, false].map(|t| bits(&after(&mut engine, &prompt, &next, t)));
                    assert!(one == two, "{name} {tier} {precision} {cache:?} after {length} tokens");
                }
            }
        }
    }
}

/// Logits of the MTP layer after each token but the last. The tokens run in steps of `part`.
fn mtp_logits(engine: &mut Engine, tokens: &[u32], part: usize) -> Vec<Vec<f32>> {
    let mut sequence = Sequence::default();
    let mut found = Vec::new();
    let mut at = 0;
    while at + 1 < tokens.len() {
        let rows = part.min(tokens.len() - 1 - at);
        let mut inputs = [SeqInput::tokens(&mut sequence, &tokens[at..at + rows], LogitsRequest::Nothing)];
        engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
        at += rows;
        let mut inputs = [DraftInput { sequence: &mut sequence, token: tokens[at] }];
        engine.draft(&mut inputs, &mut |_, logits| found.push(logits.to_vec())).unwrap();
        assert_eq!((sequence.len(), sequence.drafted_rows()), (at, at));
    }
    found
}

#[test]
fn the_mtp_layer_agrees_with_the_reference_in_every_formulation_and_chunking() {
    let made = tempfile::tempdir().unwrap();
    let tokens = tokens(30);
    for (number, (shape, layers, mtp, file)) in [
        ("tiny-v3", 2, MtpLayer::Own, "a.gguf"),
        ("tiny-v3", 2, MtpLayer::Shared, "b.gguf"),
        ("tiny-v3", 2, MtpLayer::Own, "c"),
        ("tiny-glm", 2, MtpLayer::Shared, "d"),
        ("tiny-dense", 2, MtpLayer::Own, "e.gguf"),
        ("small-ling-3", 4, MtpLayer::Own, "f.gguf"),
        ("small-ling-3", 4, MtpLayer::Shared, "g"),
    ]
    .into_iter()
    .enumerate()
    {
        let recipe = ModelRecipe {
            mtp,
            layers: Some(layers),
            ..ModelRecipe::new(shape, RandomWeightTypes::from(TensorType::F32))
        };
        let checkpoint = written(made.path(), &recipe, file);
        let reference = EngineOptions { threads: Some(1), ..drafting(Precision::Exact) };
        let reference =
            &mut Engine::load(&*latent_backends::reference(), &checkpoint, &reference, &mut |_, _| {});
        let truth = mtp_logits(reference.as_mut().unwrap(), &tokens, 1);
        assert_eq!(truth.len(), 29);
        for (i, (mla, form)) in [
            (MlaChoice::Auto, CacheForm::Latent),
            (MlaChoice::Naive, CacheForm::Latent),
            (MlaChoice::Naive, CacheForm::Expanded),
            (MlaChoice::SeparateScores, CacheForm::Latent),
        ]
        .into_iter()
        .enumerate()
        {
            let mut engine = engine(&checkpoint, &EngineOptions { mla, form, ..drafting(Precision::Exact) });
            for part in sample_of([1, 2, 7, 29], number + i, 4) {
                let found = mtp_logits(&mut engine, &tokens, part);
                for (row, logits) in found.iter().enumerate() {
                    let at = (row + 1) * part - 1;
                    let error = error(logits, &truth[at.min(28)]);
                    assert!(
                        error <= 1e-9,
                        "{shape} {mtp:?} {mla} {form:?} in parts of {part}, row {at}: {error:e}"
                    );
                }
            }
        }
    }
}

/// Logits of the MTP layer by transformers and torch (fixtures/README.md).
fn golden() -> (Vec<u32>, Vec<Vec<f32>>) {
    let folder = folder("v3-mtp");
    let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tokens: Vec<u32> =
        json["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect();
    (tokens, support::npy_rows(&folder.join("mtp_logits.npy"), 192))
}

#[test]
fn the_mtp_layer_agrees_with_transformers() {
    let (tokens, truth) = golden();
    let checkpoint = checkpoint(&folder("v3-mtp"));
    assert_eq!((tokens.len(), truth.len()), (24, 23));
    for tier in tiers() {
        for mla in [MlaChoice::Absorbed, MlaChoice::Naive, MlaChoice::SeparateScores] {
            let options =
                EngineOptions { tier: Some(tier), mla, context: Some(256), ..drafting(Precision::Exact) };
            for (at, (found, truth)) in
                mtp_logits(&mut engine(&checkpoint, &options), &tokens, 1).iter().zip(&truth).enumerate()
            {
                let error = error(found, truth);
                assert!(error <= 1e-9, "{tier} {mla}, row {at}: {error:e}");
            }
        }
    }
    let options = EngineOptions { threads: Some(1), context: Some(256), ..drafting(Precision::Exact) };
    let mut reference =
        Engine::load(&*latent_backends::reference(), &checkpoint, &options, &mut |_, _| {}).unwrap();
    let found = mtp_logits(&mut reference, &tokens, 1);
    assert!(found.iter().zip(&truth).all(|(found, truth)| error(found, truth) <= 1e-9));
}

/// Greedy tokens after a prompt, with drafts, and the number of accepted drafts.
fn greedy_with_drafts(engine: &mut Engine, prompt: &[u32], count: usize) -> (Vec<u32>, usize) {
    let mut sequence = Sequence::default();
    let mut next = 0;
    engine
        .prefill(&mut sequence, prompt, 64, LogitsRequest::Last, &mut |_, l| next = best(l), &mut |_| true)
        .unwrap();
    let (mut found, mut accepted) = (vec![next], 0);
    while found.len() < count {
        let token = found[found.len() - 1];
        let mut draft = 0;
        engine
            .draft(&mut [DraftInput { sequence: &mut sequence, token }], &mut |_, l| draft = best(l))
            .unwrap();
        let mut chosen = [0; 2];
        let pair = [token, draft];
        let mut inputs = [SeqInput::drafted(&mut sequence, &pair)];
        engine.step(&mut inputs, &mut |_, row, l| chosen[row] = best(l)).unwrap().all().unwrap();
        found.push(chosen[0]);
        if chosen[0] == draft {
            found.push(chosen[1]);
            accepted += 1;
        } else {
            let len = sequence.len() - 1;
            assert_eq!(engine.truncate(&mut sequence, len), len);
        }
    }
    found.truncate(count);
    (found, accepted)
}

#[test]
fn greedy_tokens_are_the_same_with_drafts_on_every_model_with_an_mtp_layer() {
    let made = tempfile::tempdir().unwrap();
    let mut models = vec![("v3-mtp", checkpoint(&folder("v3-mtp")))];
    for (n, (shape, layers, mtp, kind)) in [
        ("tiny-v3", 2, MtpLayer::Own, "Q4_K_M"),
        ("tiny-glm", 2, MtpLayer::Shared, "Q8_0"),
        ("tiny-v2", 2, MtpLayer::Own, "BF16"),
        ("tiny-dense", 2, MtpLayer::Shared, "Q4_0"),
        ("small-ling-3", 4, MtpLayer::Own, "Q8_0"),
    ]
    .into_iter()
    .enumerate()
    {
        let recipe =
            ModelRecipe { mtp, layers: Some(layers), ..ModelRecipe::new(shape, kind.parse().unwrap()) };
        models.push((shape, written(made.path(), &recipe, &format!("{n}.gguf"))));
    }
    for (i, tier) in tiers().into_iter().enumerate() {
        for (j, (name, checkpoint)) in models.iter().enumerate() {
            for precision in sample_of([Precision::Default, Precision::Exact], i + j, 2) {
                let plain = EngineOptions { tier: Some(tier), precision, context: Some(256), ..options() };
                let with = EngineOptions { draft: Draft::Mtp, ..plain.clone() };
                let prompt: Vec<u32> = tokens(40).iter().map(|token| token % 190).collect();
                let expected = greedy(&mut engine(checkpoint, &plain), &prompt, 40);
                let (found, accepted) = greedy_with_drafts(&mut engine(checkpoint, &with), &prompt, 40);
                assert_eq!(found, expected, "{name} {tier} {precision}");
                eprintln!("{name} {tier} {precision}: {accepted} accepted");
            }
        }
    }
}

#[test]
fn drafts_continue_after_truncation_sharing_and_shifts() {
    let made = tempfile::tempdir().unwrap();
    let recipe = ModelRecipe {
        mtp: MtpLayer::Own,
        layers: Some(2),
        ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::F32))
    };
    let mut engine = engine(&written(made.path(), &recipe, "a.gguf"), &drafting(Precision::Exact));
    let text = tokens(80);
    let feed = |engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]| {
        let mut inputs = [SeqInput::tokens(sequence, tokens, LogitsRequest::Nothing)];
        engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
    };
    let draft = |engine: &mut Engine, sequence: &mut Sequence, token: u32| {
        let mut found = Vec::new();
        engine.draft(&mut [DraftInput { sequence, token }], &mut |_, l| found.extend_from_slice(l)).unwrap();
        found
    };
    let mut fresh = Sequence::default();
    feed(&mut engine, &mut fresh, &text);
    let truth = draft(&mut engine, &mut fresh, 7);
    // A rejected draft leaves no trace.
    let mut sequence = Sequence::default();
    feed(&mut engine, &mut sequence, &text[..79]);
    draft(&mut engine, &mut sequence, text[79]);
    feed(&mut engine, &mut sequence, &[text[79], 200]);
    assert_eq!(engine.truncate(&mut sequence, 80), 80);
    assert!(error(&draft(&mut engine, &mut sequence, 7), &truth) <= 1e-9);
    // Two sequences that share rows write separate MTP rows.
    let mut other = engine.share(&sequence, 70);
    assert!(!engine.can_draft(&other), "the residual row of its last token is gone");
    feed(&mut engine, &mut other, &text[70..]);
    let (a, b) = (draft(&mut engine, &mut other, 7), {
        feed(&mut engine, &mut sequence, &[7]);
        draft(&mut engine, &mut sequence, 8)
    });
    assert!(error(&a, &truth) <= 1e-9);
    feed(&mut engine, &mut fresh, &[7]);
    assert!(error(&b, &draft(&mut engine, &mut fresh, 8)) <= 1e-9);
    // A shift moves the MTP rows too.
    engine.shift(&mut sequence, 4..20).unwrap();
    assert_eq!((sequence.len(), sequence.drafted_rows()), (65, 65));
    assert!(!engine.can_draft(&sequence), "a draft was made after its last row");
    feed(&mut engine, &mut sequence, &[8]);
    assert!(engine.can_draft(&sequence));
    draft(&mut engine, &mut sequence, 9);
}

#[test]
fn sequences_that_cannot_be_drafted_are_refused() {
    let made = tempfile::tempdir().unwrap();
    let recipe = ModelRecipe {
        mtp: MtpLayer::Own,
        layers: Some(2),
        ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::F32))
    };
    let with = written(made.path(), &recipe, "a.gguf");
    let without = written(made.path(), &ModelRecipe { mtp: MtpLayer::None, ..recipe.clone() }, "b.gguf");
    let refused = |checkpoint: &Arc<Checkpoint>| {
        let loaded =
            Engine::load(&*latent_backends::cpu(), checkpoint, &drafting(Precision::Default), &mut |_, _| {});
        loaded.err().unwrap().to_string()
    };
    let message = refused(&without);
    assert!(
        message.contains("no tensors of an MTP layer") && message.contains("option `draft: mtp`"),
        "{message}"
    );
    let minicpm3 = written(
        made.path(),
        &ModelRecipe::new("tiny-minicpm3", RandomWeightTypes::from(TensorType::F32)),
        "c.gguf",
    );
    assert!(refused(&minicpm3).contains("MTP layer"));

    let mut plain = engine(&with, &options());
    let mut sequence = Sequence::default();
    assert!(!plain.drafts() && plain.stages().len() == 2);
    let error =
        plain.draft(&mut [DraftInput { sequence: &mut sequence, token: 1 }], &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, EngineError::Options(_)), "{error}");
    let mut engine = engine(&with, &drafting(Precision::Default));
    assert!(engine.drafts() && engine.needed().total() > plain.needed().total());
    assert!(engine.summary().token_bytes > plain.summary().token_bytes);
    let mut draft = |sequence: &mut Sequence, token| {
        engine.draft(&mut [DraftInput { sequence, token }], &mut |_, _| {}).unwrap_err()
    };
    let error = draft(&mut sequence, 1);
    assert!(matches!(error, EngineError::Sequence { error: SeqError::NoDraft { rows: 0 }, .. }), "{error}");
    let wide = vec![0.5; 2 * 256];
    let mut embedded = Sequence::default();
    let mut inputs = [SeqInput::embeddings(&mut embedded, &wide, 256, LogitsRequest::Nothing)];
    engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
    assert!(!engine.can_draft(&embedded));
}

#[test]
fn a_cancelled_step_does_not_change_the_mtp_layer() {
    let made = tempfile::tempdir().unwrap();
    let recipe = ModelRecipe {
        mtp: MtpLayer::Own,
        layers: Some(2),
        ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::F32))
    };
    let mut engine = engine(&written(made.path(), &recipe, "a.gguf"), &drafting(Precision::Exact));
    let text = tokens(20);
    let truth = mtp_logits(&mut engine, &text, 19).remove(0);
    let mut sequence = Sequence::default();
    let mut inputs = [SeqInput::tokens(&mut sequence, &text[..8], LogitsRequest::Nothing)];
    engine.step(&mut inputs, &mut |_, _, _| {}).unwrap();
    let cancel = CancelToken::new();
    engine.set_cancel_token(cancel.clone());
    cancel.cancel();
    let mut inputs = [SeqInput::tokens(&mut sequence, &text[8..19], LogitsRequest::Nothing)];
    assert!(matches!(engine.step(&mut inputs, &mut |_, _, _| {}), Err(EngineError::Stopped)));
    let stopped = engine.draft(&mut [DraftInput { sequence: &mut sequence, token: 5 }], &mut |_, _| {});
    assert!(matches!(stopped, Err(EngineError::Stopped)));
    engine.set_cancel_token(CancelToken::new());
    assert_eq!((sequence.len(), sequence.drafted_rows()), (8, 7));
    let mut inputs = [SeqInput::tokens(&mut sequence, &text[8..19], LogitsRequest::Nothing)];
    engine.step(&mut inputs, &mut |_, _, _| {}).unwrap();
    let mut found = Vec::new();
    let mut inputs = [DraftInput { sequence: &mut sequence, token: text[19] }];
    engine.draft(&mut inputs, &mut |_, logits| found.extend_from_slice(logits)).unwrap();
    assert!(error(&found, &truth) <= 1e-9);
}
