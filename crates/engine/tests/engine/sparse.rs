//! Sparse attention (DSA): prompts longer than the indexer's tokens, against logits of transformers
//! in float64.

use crate::kda::{job, tokenizer};
use crate::support::jobs::{HeardEvents, nothing_is_left};
use crate::support::{
    all_logits, bits, checkpoint, engine, error, fixture, folder, greedy, shared_and_shifted, side_by_side,
    tiers,
};
use latent_engine::cache::{DiskCache, Sequence};
use latent_engine::scheduler::{Scheduler, SchedulerOptions};
use latent_engine::{Draft, Engine, EngineOptions, LogitsRequest, SeqInput, SparseAttention};
use latent_graph::passes::{CacheForm, FORMS, MlaChoice, Precision};
use latent_types::CacheType;
use std::path::{Path, PathBuf};

/// Fixtures with prompts several times as long as `index_topk`. In the first every layer has an
/// indexer, in others some layers share its tokens.
const SPARSE: [&str; 3] = ["deepseek-v32-sparse", "glm-dsa-sparse", "axk2"];

/// Maximum mean relative square error of a row in exact precision.
const EXACT: f64 = 1e-9;

fn exact(mla: MlaChoice, form: CacheForm) -> EngineOptions {
    EngineOptions {
        mla,
        form,
        precision: Precision::Exact,
        threads: Some(2),
        context: Some(512),
        ..EngineOptions::default()
    }
}

fn files() -> Vec<(&'static str, PathBuf)> {
    SPARSE.into_iter().map(|case| (case, folder(case))).collect()
}

#[test]
fn exact_logits_agree_in_every_formulation_and_chunking() {
    let tiers = tiers();
    side_by_side(&files(), |(case, path)| {
        let expected = fixture(case);
        let checkpoint = checkpoint(path);
        for (tier, (mla, form)) in tiers.iter().flat_map(|tier| FORMS.map(|form| (*tier, form))) {
            let mut engine = engine(&checkpoint, &EngineOptions { tier: Some(tier), ..exact(mla, form) });
            let chunks: &[usize] = if tier == tiers[0] { &[usize::MAX, 1, 7, 64] } else { &[usize::MAX, 7] };
            for &chunk in chunks {
                let mean = expected.mean_error(&all_logits(&mut engine, &expected.tokens, chunk));
                assert!(mean <= EXACT, "{case} {tier} {mla} {form:?} in chunks of {chunk}: {mean:e}");
            }
        }
    });
}

#[test]
fn the_reference_backend_agrees() {
    let backend = latent_backends::by_name("reference").unwrap();
    side_by_side(&files(), |(case, path)| {
        let expected = fixture(case);
        for (mla, form) in FORMS {
            let options = EngineOptions { threads: None, ..exact(mla, form) };
            let mut engine = Engine::load(&*backend, &checkpoint(path), &options, &mut |_, _| {}).unwrap();
            let mean = expected.mean_error(&all_logits(&mut engine, &expected.tokens, 64));
            assert!(mean <= EXACT, "{case} {mla} {form:?}: {mean:e}");
        }
    });
}

#[test]
fn greedy_tokens_agree_up_to_the_first_near_tie() {
    for (case, path) in files() {
        let expected = fixture(case);
        let sure = expected.margin.iter().position(|m| *m <= 1e-3).unwrap_or(expected.greedy.len());
        let mut engine = engine(&checkpoint(&path), &exact(MlaChoice::Auto, CacheForm::Latent));
        assert_eq!(greedy(&mut engine, &expected.tokens, sure), expected.greedy[..sure], "{case}");
    }
}

#[test]
fn dense_attention_differs_and_gives_a_warning() {
    for (case, path) in files() {
        let expected = fixture(case);
        let dense =
            EngineOptions { sparse: SparseAttention::Off, ..exact(MlaChoice::Auto, CacheForm::Latent) };
        let mut engine = engine(&checkpoint(&path), &dense);
        assert!(engine.summary().dense.is_some(), "{case}");
        let logits = all_logits(&mut engine, &expected.tokens, 64);
        // The first row sees only one token, which is always selected.
        assert!(error(&logits[0], &expected.logits[0]) <= EXACT, "{case}");
        assert!(expected.mean_error(&logits) > 0.1, "{case}");
    }
}

/// Runs tokens in one step. Gives the logits of the last one.
fn step(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]) -> Vec<f32> {
    let mut logits = Vec::new();
    let mut items = [SeqInput::tokens(sequence, tokens, LogitsRequest::Last)];
    engine.step(&mut items, &mut |_, _, row| logits = row.to_vec()).unwrap();
    logits
}

/// One row, whose tokens are divided among the workers, and several rows, which are distributed
/// among them, with each cache type.
#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    for (case, path) in files() {
        let (file, tokens) = (checkpoint(&path), fixture(case).tokens);
        for cache in CacheType::ALL {
            let of = |threads| {
                let options = EngineOptions {
                    cache: Some(cache),
                    threads: Some(threads),
                    context: Some(512),
                    ..EngineOptions::default()
                };
                let mut engine = engine(&file, &options);
                [1, 3, 64].map(|chunk| bits(&all_logits(&mut engine, &tokens[..80], chunk)))
            };
            let expected = of(1);
            for threads in [2, 3, 5] {
                assert!(of(threads) == expected, "{case} {cache}, {threads} threads");
            }
        }
    }
}

/// Quantized caches select other tokens where scores are close. Most rows stay near.
#[test]
fn other_cache_types_are_near() {
    for (case, path) in files() {
        let (file, expected) = (checkpoint(&path), fixture(case));
        for (cache, bound) in
            [(CacheType::F16, 1e-3), (CacheType::Bf16, 3e-2), (CacheType::Int8, 0.1), (CacheType::Q8_0, 0.15)]
        {
            let options = EngineOptions { cache: Some(cache), ..exact(MlaChoice::Auto, CacheForm::Latent) };
            let logits = all_logits(&mut engine(&file, &options), &expected.tokens, 16);
            let rows = expected.rows.iter().zip(&expected.logits);
            let mut errors: Vec<f64> = rows.map(|(&row, truth)| error(&logits[row], truth)).collect();
            errors.sort_by(f64::total_cmp);
            let median = errors[errors.len() / 2];
            assert!(median <= bound, "{case} {cache}: {median:e}");
        }
    }
}

/// Forks, truncation, saved sequences and a context shift carry the keys of indexers.
#[test]
fn cached_rows_equal_those_of_a_new_sequence() {
    let folder = tempfile::tempdir().unwrap();
    for (case, path) in files() {
        let (file, tokens) = (checkpoint(&path), fixture(case).tokens);
        let mut engine = engine(&file, &exact(MlaChoice::Absorbed, CacheForm::Latent));
        let mut whole = Sequence::default();
        step(&mut engine, &mut whole, &tokens[..90]);
        let expected = step(&mut engine, &mut whole, &tokens[90..91]);
        let saved = folder.path().join(case);
        assert_eq!(engine.truncate(&mut whole, 90), 90);
        engine.save(&whole, &saved).unwrap();
        let mut fork = engine.share(&whole, 90);
        let mut short = engine.share(&whole, 70);
        let (mut restored, _) = engine.restore(&saved).unwrap();
        step(&mut engine, &mut short, &tokens[70..90]);
        for (what, sequence) in [
            ("truncated", &mut whole),
            ("forked", &mut fork),
            ("restored", &mut restored),
            ("shared", &mut short),
        ] {
            let found = step(&mut engine, sequence, &tokens[90..91]);
            assert!(error(&found, &expected) < 1e-10, "{case}: {what}");
        }
        // The reference backend gives the same after a context shift.
        let options = exact(MlaChoice::Absorbed, CacheForm::Latent);
        let backend = latent_backends::by_name("reference").unwrap();
        let reference = Engine::load(
            &*backend,
            &file,
            &EngineOptions { threads: None, ..options.clone() },
            &mut |_, _| {},
        );
        let pairs = shared_and_shifted(crate::support::engine(&file, &options))
            .into_iter()
            .zip(shared_and_shifted(reference.unwrap()));
        for (number, (cpu, reference)) in pairs.enumerate() {
            assert!(error(&cpu, &reference) < 1e-9, "{case}: logits {number}");
        }
        // An engine whose cache has no second stream refuses the file.
        let dense = EngineOptions { sparse: SparseAttention::Off, ..options };
        let error = crate::support::engine(&file, &dense).restore(&saved).map(drop).unwrap_err().to_string();
        assert!(error.contains("number of cache streams") && error.contains("sparse_attention"), "{error}");
    }
}

fn scheduler(path: &Path, draft: Draft, disk: Option<&Path>) -> Scheduler {
    let options = EngineOptions { draft, draft_cost: Some(0.0), ..exact(MlaChoice::Auto, CacheForm::Latent) };
    let disk = disk.map(|path| DiskCache { path: path.to_owned(), max_bytes: 1 << 30 });
    let options_of_jobs = SchedulerOptions { disk, ..SchedulerOptions::default() };
    Scheduler::new(engine(&checkpoint(path), &options), tokenizer(), options_of_jobs)
}

/// The number of cached tokens, and the answer.
fn ask(scheduler: &mut Scheduler, tokens: &[u32], most: usize) -> (usize, Vec<u32>) {
    let mut heard = HeardEvents::default();
    let id = scheduler.submit(job(tokens, most)).unwrap();
    heard.run(scheduler);
    (heard.cached(id), heard.tokens(id))
}

/// Blocks in memory and on disk have both streams.
#[test]
fn prompts_continue_from_cached_blocks_in_memory_and_on_disk() {
    for (case, path) in files() {
        let disk = tempfile::tempdir().unwrap();
        // Long enough that its blocks are written to disk.
        let text = fixture(case).tokens.repeat(3);
        let mut other = text[..90].to_vec();
        other.extend([11, 12, 13, 14]);
        let alone = |tokens: &[u32]| ask(&mut scheduler(&path, Draft::None, None), tokens, 6);
        let (first, edited) = (alone(&text), alone(&other));
        assert_eq!((first.0, edited.0), (0, 0), "{case}");
        let mut running = scheduler(&path, Draft::None, Some(disk.path()));
        assert_eq!(ask(&mut running, &text, 6), first, "{case}");
        let found = ask(&mut running, &other, 6);
        assert!(found.0 >= 64 && found.1 == edited.1, "{case}: {found:?}, not {edited:?}");
        running.flush_disk();
        nothing_is_left(&mut running);
        drop(running);
        let mut restarted = scheduler(&path, Draft::None, Some(disk.path()));
        let found = ask(&mut restarted, &text, 6);
        assert!(found.0 >= 64 && found.1 == first.1, "{case}: {found:?}, not {first:?}");
        nothing_is_left(&mut restarted);
    }
}

/// Drafts of several tokens, most of which are rejected. Their rows are removed from both streams.
#[test]
fn drafts_change_no_answer() {
    for (case, path) in files() {
        let tokens = fixture(case).tokens;
        let prompt = [&tokens[..50], &tokens[..50], &tokens[..30]].concat();
        let answer = |draft| ask(&mut scheduler(&path, draft, None), &prompt, 40).1;
        assert_eq!(answer(Draft::Ngram), answer(Draft::None), "{case}");
    }
}

/// A file without a tensor of an indexer is refused with advice.
#[test]
fn missing_tensors_of_an_indexer_are_named_with_what_to_do() {
    let made = without_tensor("model.layers.1.self_attn.indexer.wk.weight");
    let file = checkpoint(made.path());
    let load = |sparse| {
        let options = EngineOptions { sparse, ..exact(MlaChoice::Auto, CacheForm::Latent) };
        Engine::load(&*latent_backends::cpu(), &file, &options, &mut |_, _| {}).map(drop)
    };
    let error = load(SparseAttention::On).unwrap_err().to_string();
    assert!(error.contains("model.layers.1.self_attn.indexer.wk.weight is missing"), "{error}");
    assert!(error.contains("option `sparse_attention: off`"), "{error}");
    load(SparseAttention::Off).unwrap();
}

/// A copy of a fixture in which a tensor is renamed, so that it is missing.
fn without_tensor(name: &str) -> tempfile::TempDir {
    let made = tempfile::tempdir().unwrap();
    let from = folder("deepseek-v32-sparse");
    std::fs::copy(from.join("config.json"), made.path().join("config.json")).unwrap();
    let mut bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let at = bytes.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
    // The new name has the same length, so that the header keeps its size, and is unused.
    let other = name.replace("indexer.wk", "indexer.xx");
    bytes[at..at + name.len()].copy_from_slice(other.as_bytes());
    std::fs::write(made.path().join("model.safetensors"), bytes).unwrap();
    made
}
