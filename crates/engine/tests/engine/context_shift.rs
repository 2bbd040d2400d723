//! Answers that continue beyond a full context, and sessions that are saved with an attachment.

use crate::support::{checkpoint, engine, error};
use latent_engine::cache::Sequence;
use latent_engine::sampling::SamplingParams;
use latent_engine::{
    ContextShift, Engine, EngineOptions, Listener, LogitsRequest, Request, SeqInput, Session, StopReason,
};
use latent_formats::Checkpoint;
use latent_graph::passes::{CacheForm, MlaChoice, Precision};
use latent_testing::{ModelRecipe, RandomWeightTypes};
use latent_text::Tokenizer;
use latent_types::{CacheType, TensorType};
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct ShiftListener;

impl Listener for ShiftListener {}

fn step(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]) -> Vec<f32> {
    let mut logits = Vec::new();
    let mut items = [SeqInput::tokens(sequence, tokens, LogitsRequest::Last)];
    engine.step(&mut items, &mut |_, _, row| logits = row.to_vec()).unwrap();
    logits
}

/// In a model of one layer, a cached row depends only on its own token and position. A shifted
/// sequence must therefore give the same logits as the remaining tokens in a new sequence. With
/// more layers this does not hold: deeper rows have seen the discarded tokens.
#[test]
fn a_shifted_sequence_gives_the_logits_of_its_remaining_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let recipe = ModelRecipe {
        layers: Some(1),
        ..ModelRecipe::new("tiny-v3", RandomWeightTypes::from(TensorType::F32))
    };
    recipe.write_gguf(&path).unwrap();
    let file = checkpoint(&path);
    let tokens: Vec<u32> = (0..90).map(|i| (i * 37 + 11) % 500).collect();
    let caches = [
        (CacheType::F32, MlaChoice::Absorbed, CacheForm::Latent, 1e-10),
        (CacheType::F32, MlaChoice::Naive, CacheForm::Expanded, 1e-10),
        (CacheType::F16, MlaChoice::SeparateScores, CacheForm::Latent, 1e-5),
        (CacheType::Bf16, MlaChoice::Absorbed, CacheForm::Latent, 1e-3),
        (CacheType::Int8, MlaChoice::Absorbed, CacheForm::Latent, 1e-5),
        (CacheType::Q8_0, MlaChoice::Absorbed, CacheForm::Latent, 1e-5),
        (CacheType::Q4_0, MlaChoice::Absorbed, CacheForm::Latent, 1e-5),
        (CacheType::Fp8, MlaChoice::Absorbed, CacheForm::Latent, 1e-5),
    ];
    for (cache, mla, form, bound) in caches {
        let options = EngineOptions {
            cache: Some(cache),
            mla,
            form,
            precision: Precision::Exact,
            threads: Some(1),
            context: Some(256),
            ..EngineOptions::default()
        };
        let mut engine = engine(&file, &options);
        let mut shifted = Sequence::default();
        step(&mut engine, &mut shifted, &tokens);
        engine.shift(&mut shifted, 3..40).unwrap();
        let found = step(&mut engine, &mut shifted, &[7]);
        let rest: Vec<u32> = tokens[..3].iter().chain(&tokens[40..]).copied().chain([7]).collect();
        let expected = step(&mut engine, &mut Sequence::default(), &rest);
        let whole = step(&mut engine, &mut Sequence::default(), &tokens[3..40]);
        let far = error(&whole, &expected);
        let near = error(&found, &expected);
        assert!(near < bound && near < far / 10.0, "{cache} {mla}: {near:e}, another text {far:e}");
        assert_eq!(shifted.len(), rest.len());
    }
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/mla-demo-Q4_K_M.gguf")
}

fn small(context: usize) -> (Engine, Arc<Tokenizer>) {
    let file: Arc<Checkpoint> = checkpoint(&demo());
    let options = EngineOptions { threads: Some(1), context: Some(context), ..EngineOptions::default() };
    (engine(&file, &options), Arc::new(Tokenizer::from_checkpoint(&file).unwrap()))
}

/// A request that ends only at its limit: the end tokens are banned.
fn endless(tokenizer: &Tokenizer, prompt: &[u32], shift: Option<ContextShift>, max_tokens: usize) -> Request {
    let banned = tokenizer.end_of_generation().iter().map(|id| (*id, f32::NEG_INFINITY)).collect();
    let sampling = SamplingParams { logit_bias: banned, ..SamplingParams::greedy() };
    Request { prompt: prompt.to_vec(), sampling, max_tokens: Some(max_tokens), shift, ..Request::default() }
}

#[test]
fn an_answer_goes_on_beyond_the_context() {
    let (mut engine, tokenizer) = small(100);
    let prompt: Vec<u32> = (20..60).collect();
    let mut session = Session::default();
    let full = engine.generate(
        &mut session,
        &endless(&tokenizer, &prompt, None, 300),
        &tokenizer,
        &mut ShiftListener,
    );
    let full = full.unwrap();
    assert_eq!((full.stop, full.tokens.len(), full.discarded_tokens), (StopReason::Context, 60, 0));

    engine.release(session.sequence);
    let shift = ContextShift { keep: 5, discard: 0 };
    let request = endless(&tokenizer, &prompt, Some(shift), 300);
    let mut session = Session::default();
    let long = engine.generate(&mut session, &request, &tokenizer, &mut ShiftListener).unwrap();
    assert_eq!((long.stop, long.tokens.len()), (StopReason::Length, 300));
    // Each shift discards half of the 95 tokens after the kept ones.
    assert!(long.discarded_tokens >= 48 * 5 && session.sequence.len() <= 100, "{}", long.discarded_tokens);
    assert_eq!(40 + 299, session.sequence.len() + long.discarded_tokens);
    assert_eq!(long.tokens[..60], full.tokens[..], "the same until the context is full");
    // Shifted rows are never reused: only the kept tokens are taken from the session, and the
    // answer is that of a new session.
    assert_eq!(session.tokens(), &prompt[..5]);
    let again = engine.generate(&mut session, &request, &tokenizer, &mut ShiftListener).unwrap();
    assert_eq!((again.cached_tokens, &again.tokens), (5, &long.tokens));

    let refused = endless(&tokenizer, &prompt, Some(ContextShift { keep: 99, discard: 0 }), 300);
    let refused =
        engine.generate(&mut session, &refused, &tokenizer, &mut ShiftListener).unwrap_err().to_string();
    assert!(refused.contains("option `keep: 99`") && refused.contains("at most 98"), "{refused}");
}

#[test]
fn the_error_for_a_long_prompt_suggests_a_larger_context_only_if_possible() {
    let ask = |context: usize, tokens: usize| {
        let (mut engine, tokenizer) = small(context);
        let request = endless(&tokenizer, &vec![20; tokens], None, 1);
        engine
            .generate(&mut Session::default(), &request, &tokenizer, &mut ShiftListener)
            .unwrap_err()
            .to_string()
    };
    let larger = ask(100, 150);
    assert!(
        larger.contains("150 tokens") && larger.contains("larger option `context` (up to 2048 tokens)"),
        "{larger}"
    );
    for context in [100, 2048] {
        let limit = ask(context, 2048);
        assert!(
            limit.contains("supports at most 2048 tokens") && !limit.contains("option `context"),
            "{limit}"
        );
    }
}

#[test]
fn a_session_is_saved_with_its_attachment_and_without_shifted_rows() {
    let (mut engine, tokenizer) = small(100);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session.kv");
    let prompt: Vec<u32> = (20..60).collect();
    let mut session = Session::default();
    let request = endless(&tokenizer, &prompt, Some(ContextShift { keep: 5, discard: 0 }), 90);
    engine.generate(&mut session, &request, &tokenizer, &mut ShiftListener).unwrap();
    assert_eq!(engine.save_session(&mut session, Some(b"what it is about"), &path).unwrap(), 5);
    engine.release(session.sequence);
    let free = engine.kv_cache().available();
    let (restored, attachment) = engine.restore_session(&path).unwrap();
    assert_eq!((restored.tokens(), restored.sequence.len()), (&prompt[..5], 5));
    assert_eq!(attachment.as_deref(), Some(&b"what it is about"[..]));
    engine.release(restored.sequence);
    // `restore` ignores the attachment.
    let (sequence, tokens) = engine.restore(&path).unwrap();
    assert_eq!(tokens, prompt[..5]);
    engine.release(sequence);
    // Files of earlier versions have no attachment, which is 24 + 16 bytes here, and are still
    // read.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 24 - 16]).unwrap();
    let (restored, attachment) = engine.restore_session(&path).unwrap();
    assert_eq!(attachment, None);
    engine.release(restored.sequence);

    for (place, cut) in [(0, 1), (0, 10), (0, 30), (1, 0), (10, 0), (20, 0), (30, 0), (39, 0)] {
        let mut bytes = whole.clone();
        if cut > 0 {
            bytes.truncate(whole.len() - cut);
        } else {
            bytes[whole.len() - 40 + place] ^= 1;
        }
        std::fs::write(&path, &bytes).unwrap();
        let refused = engine.restore_session(&path).unwrap_err().to_string();
        assert!(refused.contains("not a saved Latent sequence"), "{refused}");
    }
    std::fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
    assert!(engine.restore_session(&path).is_err());
    assert_eq!(engine.kv_cache().available(), free, "a refused file leaks no block");
}
