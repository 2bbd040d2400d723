//! Kimi-Linear and Ling-3.0: layers with a recurrent state (Kimi Delta Attention) and layers with
//! latent attention.

use crate::support::jobs::{HeardEvents, nothing_is_left};
use crate::support::{all_logits, bits, checkpoint, engine, error, fixture, folder, greedy, tiers};
use crate::support::{demo, exhaustive, side_by_side};
use latent_engine::cache::{DiskCache, Sequence, StateOptions};
use latent_engine::sampling::SamplingParams;
use latent_engine::scheduler::{Job, JobChoice, Scheduler, SchedulerOptions};
use latent_engine::{CancelToken, Draft, Engine, EngineError, EngineOptions, LogitsRequest, SeqInput};
use latent_formats::Checkpoint;
use latent_graph::passes::{CacheForm, MlaChoice, Precision};
use latent_testing::ModelRecipe;
use latent_text::Tokenizer;
use latent_types::Tier;
use std::path::Path;
use std::sync::Arc;

/// Kimi-Linear has low-rank gates, an unbounded decay and latent attention without rotation.
/// Ling-3.0 has gates of one matrix, a bounded decay, rotation and a gate for each head.
const CASES: [&str; 2] = ["kimi-linear-kda", "ling-3-kda"];

/// Mean relative square error of a row that exact arithmetic may have.
const EXACT: f64 = 1e-9;

/// A snapshot after each block, so that short texts have several.
const OFTEN: StateOptions = StateOptions { sequences: 4, snapshots: 4, every: 64 };

fn exact(tier: Tier, (mla, form): (MlaChoice, CacheForm)) -> EngineOptions {
    EngineOptions {
        tier: Some(tier),
        threads: Some(1),
        context: Some(1024),
        precision: Precision::Exact,
        mla,
        form,
        ..EngineOptions::default()
    }
}

fn options(threads: usize) -> EngineOptions {
    EngineOptions {
        // One formulation of attention, and no AMX: the bits do not depend on the number of rows.
        mla: MlaChoice::Absorbed,
        tier: Some(latent_kernels::native_tier().min(Tier::Avx512)),
        threads: Some(threads),
        context: Some(512),
        cache_tokens: Some(1024),
        max_batch_tokens: Some(256),
        states: OFTEN,
        ..EngineOptions::default()
    }
}

fn load(case: &str, threads: usize) -> Engine {
    engine(&checkpoint(&folder(case)), &options(threads))
}

fn mean_error(engine: &mut Engine, case: &str, chunk: usize) -> f64 {
    let expected = fixture(case);
    let logits = all_logits(engine, &expected.tokens, chunk);
    let rows = expected.rows.iter().zip(&expected.logits);
    rows.map(|(&row, truth)| error(&logits[row], truth)).sum::<f64>() / expected.rows.len() as f64
}

#[test]
fn logits_agree_with_transformers_in_every_formulation_and_chunking() {
    let forms = [
        (MlaChoice::Auto, CacheForm::Latent),
        (MlaChoice::Absorbed, CacheForm::Latent),
        (MlaChoice::SeparateScores, CacheForm::Latent),
        (MlaChoice::Naive, CacheForm::Latent),
        (MlaChoice::Naive, CacheForm::Expanded),
    ];
    let tiers = tiers();
    side_by_side(&CASES, |case| {
        let file = checkpoint(&folder(case));
        for (tier, form) in tiers.iter().flat_map(|tier| forms.map(|form| (*tier, form))) {
            let mut engine = engine(&file, &exact(tier, form));
            let all = (tier == tiers[0] && form == forms[0]) || exhaustive();
            let chunks: &[usize] =
                if all { &[usize::MAX, 1, 2, 3, 4, 5, 7, 16, 63, 64, 65, 149] } else { &[usize::MAX, 7] };
            for &chunk in chunks {
                let mean = mean_error(&mut engine, case, chunk);
                assert!(mean <= EXACT, "{case} {tier} {form:?} in chunks of {chunk}: {mean:e}");
            }
        }
    });
}

#[test]
fn the_reference_backend_agrees_with_transformers() {
    for case in CASES {
        let file = checkpoint(&folder(case));
        let options = EngineOptions { context: Some(512), threads: Some(1), ..EngineOptions::default() };
        let backend = latent_backends::reference();
        let mut engine = Engine::load(&*backend, &file, &options, &mut |_, _| {}).unwrap();
        for chunk in [usize::MAX, 7, 1] {
            let mean = mean_error(&mut engine, case, chunk);
            assert!(mean <= EXACT, "{case} in chunks of {chunk}: {mean:e}");
        }
    }
}

#[test]
fn greedy_tokens_agree_with_transformers() {
    for case in CASES {
        let expected = fixture(case);
        let form = (MlaChoice::Auto, CacheForm::Latent);
        let mut engine = engine(&checkpoint(&folder(case)), &exact(tiers()[0], form));
        let sure = expected.margin.iter().position(|m| *m <= 1e-3).unwrap_or(expected.greedy.len());
        assert_eq!(greedy(&mut engine, &expected.tokens, sure), expected.greedy[..sure], "{case}");
    }
}

#[test]
fn logits_have_the_same_bits_for_any_threads_and_neighbours() {
    for case in CASES {
        let tokens = fixture(case).tokens;
        let mut alone = load(case, 1);
        // Chunks of the delta rule end at multiples of 16 rows, so that these give equal bits.
        let in_chunks = [256, 64, 16].map(|chunk| bits(&all_logits(&mut alone, &tokens, chunk)));
        let [in_rows, odd] = [1, 37].map(|chunk| bits(&all_logits(&mut alone, &tokens, chunk)));
        assert!(in_chunks.iter().all(|bits| *bits == in_chunks[0]), "{case}");
        assert!(in_chunks[0] != in_rows, "{case}: chunks run row by row");
        for threads in [2, 3, 7] {
            let mut engine = load(case, threads);
            for (chunk, expected) in [(256, &in_chunks[0]), (1, &in_rows), (37, &odd)] {
                assert!(
                    bits(&all_logits(&mut engine, &tokens, chunk)) == *expected,
                    "{case} {threads} {chunk}"
                );
            }
        }
        // Two sequences in one step, one of which has earlier rows.
        let mut engine = load(case, 3);
        let (a, b) = tokens.split_at(90);
        let expected = [a, b].map(|part| fresh(&mut engine, part));
        let mut sequences: [Sequence; 2] = Default::default();
        feed(&mut engine, &mut sequences[1], &b[..32]);
        let [one, two] = &mut sequences;
        let mut inputs = [
            SeqInput::tokens(one, a, LogitsRequest::Last),
            SeqInput::tokens(two, &b[32..], LogitsRequest::Last),
        ];
        let mut logits = [Vec::new(), Vec::new()];
        let take = &mut |input: usize, _: usize, row: &[f32]| {
            logits[input] = row.iter().map(|x| x.to_bits()).collect();
        };
        engine.step(&mut inputs, take).unwrap().all().unwrap();
        assert!(logits == expected, "{case}");
    }
}

/// The logits of the last token, as bits.
fn feed(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]) -> Vec<u32> {
    let mut last = Vec::new();
    let take = &mut |_: usize, logits: &[f32]| last = logits.iter().map(|x| x.to_bits()).collect();
    engine.prefill(sequence, tokens, 256, LogitsRequest::Last, take, &mut |_| true).unwrap();
    last
}

/// The logits of a new sequence after `tokens`.
fn fresh(engine: &mut Engine, tokens: &[u32]) -> Vec<u32> {
    fresh_steps(engine, &[tokens])
}

/// The logits of a new sequence after tokens that run in these steps.
fn fresh_steps(engine: &mut Engine, steps: &[&[u32]]) -> Vec<u32> {
    let mut sequence = Sequence::default();
    let last = steps.iter().map(|tokens| feed(engine, &mut sequence, tokens)).last().unwrap();
    engine.release(sequence);
    last
}

/// The mean relative square difference of logits.
fn difference(a: &[u32], b: &[u32]) -> f64 {
    let [a, b] = [a, b].map(|row| row.iter().map(|x| f32::from_bits(*x)).collect::<Vec<f32>>());
    error(&a, &b)
}

fn positions(sequence: &Sequence) -> Vec<usize> {
    sequence.snapshots().collect()
}

#[test]
fn truncated_and_shared_sequences_continue_from_the_nearest_snapshot() {
    for case in CASES {
        let tokens = fixture(case).tokens;
        let mut engine = load(case, 2);
        let expected = fresh(&mut engine, &tokens);
        let mut sequence = Sequence::default();
        feed(&mut engine, &mut sequence, &tokens[..140]);
        assert_eq!(positions(&sequence), [64, 128]);
        // A fork within the sequence and one at its end. Then the sequence itself continues.
        let mut within = engine.share(&sequence, 100);
        let mut whole = engine.share(&sequence, 140);
        assert_eq!((within.len(), whole.len()), (64, 140), "{case}");
        assert!(feed(&mut engine, &mut within, &tokens[64..]) == expected, "{case}");
        let steps = fresh_steps(&mut engine, &[&tokens[..140], &tokens[140..]]);
        assert!(feed(&mut engine, &mut whole, &tokens[140..]) == steps, "{case}");
        assert!(difference(&steps, &expected) < 1e-5, "{case}: {:e}", difference(&steps, &expected));
        feed(&mut engine, &mut sequence, &[5, 6, 7]);
        // Back to the nearest snapshot: only the tokens after it run again.
        assert_eq!(engine.truncate(&mut sequence, 139), 128, "{case}");
        assert!(feed(&mut engine, &mut sequence, &tokens[128..]) == expected, "{case}");
        // A requested snapshot within a block and within a step.
        let mut asked = Sequence::default();
        engine.snapshot_at(&mut asked, 37).unwrap();
        feed(&mut engine, &mut asked, &tokens[..60]);
        assert_eq!(engine.truncate(&mut asked, 59), 37, "{case}");
        let again = feed(&mut engine, &mut asked, &tokens[37..]);
        assert!(difference(&again, &expected) < 1e-5, "{case}: {:e}", difference(&again, &expected));
        let refused = engine.shift(&mut asked, 3..40).unwrap_err();
        assert!(matches!(refused, EngineError::NoContextShift), "{refused}");
        for sequence in [within, whole, sequence, asked] {
            engine.release(sequence);
        }
        let cache = engine.kv_cache();
        assert_eq!(cache.available_states(), cache.state_slots(), "{case}");
    }
}

#[test]
fn a_cancelled_step_changes_nothing() {
    for case in CASES {
        let tokens = fixture(case).tokens;
        let mut engine = load(case, 2);
        let expected = fresh_steps(&mut engine, &[&tokens[..70], &tokens[70..]]);
        let mut sequence = Sequence::default();
        feed(&mut engine, &mut sequence, &tokens[..70]);
        let cancelled = CancelToken::new();
        cancelled.cancel();
        engine.set_cancel_token(cancelled);
        let mut inputs = [SeqInput::tokens(&mut sequence, &[9; 60], LogitsRequest::Last)];
        assert!(engine.step(&mut inputs, &mut |_, _, _| {}).is_err(), "{case}");
        engine.set_cancel_token(CancelToken::new());
        assert_eq!((sequence.len(), positions(&sequence)), (70, vec![64]), "{case}");
        assert!(feed(&mut engine, &mut sequence, &tokens[70..]) == expected, "{case}");
    }
}

#[test]
fn saved_sequences_continue_in_another_engine_and_backend() {
    let folder_of_files = tempfile::tempdir().unwrap();
    for case in CASES {
        let tokens = fixture(case).tokens;
        let path = folder_of_files.path().join(case);
        let (mut engine, mut other) = (load(case, 1), load(case, 3));
        let expected = fresh(&mut engine, &tokens);
        let mut sequence = Sequence::default();
        feed(&mut engine, &mut sequence, &tokens[..140]);
        engine.save(&sequence, &path).unwrap();
        let (mut restored, rows) = other
            .restore(&path)
            .map(|(sequence, _)| {
                let rows = sequence.len();
                (sequence, rows)
            })
            .unwrap();
        assert_eq!((rows, positions(&restored)), (140, vec![64, 128, 140]), "{case}");
        let steps = fresh_steps(&mut engine, &[&tokens[..140], &tokens[140..]]);
        assert!(feed(&mut other, &mut restored, &tokens[140..]) == steps, "{case}");
        assert_eq!(other.truncate(&mut restored, 100), 64, "{case}");
        assert!(feed(&mut other, &mut restored, &tokens[64..]) == expected, "{case}");
    }
}

/// The demo model's tokenizer, for models without one. The tests look only at token ids.
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    let file = Checkpoint::open(&demo::models().join("mla-demo-Q4_K_M.gguf")).unwrap();
    Arc::new(Tokenizer::from_checkpoint(&file).unwrap())
}

pub(crate) fn job(tokens: &[u32], most: usize) -> Job {
    let mut job = Job::default();
    job.request.prompt = tokens.to_vec();
    job.request.sampling = SamplingParams::greedy();
    job.request.max_tokens = Some(most);
    job
}

fn scheduler(case: &str, states: StateOptions, disk: Option<&Path>) -> Scheduler {
    let options = EngineOptions { states, ..options(2) };
    let engine = engine(&checkpoint(&folder(case)), &options);
    let disk = disk.map(|path| DiskCache { path: path.to_owned(), max_bytes: 1 << 30 });
    Scheduler::new(engine, tokenizer(), SchedulerOptions { disk, ..SchedulerOptions::default() })
}

/// The number of cached tokens, and the answer.
fn ask(scheduler: &mut Scheduler, tokens: &[u32]) -> (usize, Vec<u32>) {
    let mut heard = HeardEvents::default();
    let id = scheduler.submit(job(tokens, 6)).unwrap();
    heard.run(scheduler);
    (heard.cached(id), heard.tokens(id))
}

#[test]
fn prompts_continue_from_snapshots_in_memory_and_on_disk() {
    for case in CASES {
        let disk = tempfile::tempdir().unwrap();
        let text = fixture(case).tokens;
        let mut other = text[..140].to_vec();
        other.extend([11, 12, 13, 14]);
        let alone = |tokens: &[u32]| ask(&mut scheduler(case, OFTEN, None), tokens);
        let (first, edited) = (alone(&text), alone(&other));
        assert_eq!((first.0, edited.0), (0, 0), "{case}");
        let mut scheduler_one = scheduler(case, OFTEN, Some(disk.path()));
        assert_eq!(ask(&mut scheduler_one, &text), first, "{case}");
        // Regenerated: only the last token of the prompt runs again.
        assert_eq!(ask(&mut scheduler_one, &text), (149, first.1.clone()), "{case}");
        // Edited at token 140: continues from the snapshot at 128.
        assert_eq!(ask(&mut scheduler_one, &other), (128, edited.1.clone()), "{case}");
        // The next message continues from the last row of the answer.
        let said = [&text[..], &first.1, &[21, 22, 23]].concat();
        let next = ask(&mut scheduler_one, &said);
        assert!(next.0 >= 154, "{case}: {} tokens of {} were cached", next.0, said.len());
        assert_eq!(next.1, alone(&said).1, "{case}");
        // Several answers share the state of their prompt.
        let mut heard = HeardEvents::default();
        let choices = vec![JobChoice::default(), JobChoice::default()];
        let all = scheduler_one.submit_choices(job(&other, 6), choices).unwrap();
        heard.run(&mut scheduler_one);
        for id in &all {
            assert_eq!(heard.tokens(*id), edited.1, "{case}");
            assert!(heard.cached(*id) >= 128, "{case}");
        }
        scheduler_one.flush_disk();
        nothing_is_left(&mut scheduler_one);
        drop(scheduler_one);
        // After a restart, the blocks on the disk that have a state at their end are used.
        let mut restarted = scheduler(case, OFTEN, Some(disk.path()));
        assert_eq!(ask(&mut restarted, &text), (128, first.1), "{case}");
        nothing_is_left(&mut restarted);
    }
}

#[test]
fn preempted_jobs_of_recurrent_models_generate_the_same_text() {
    for case in CASES {
        let tokens = fixture(case).tokens;
        let prompts: Vec<Vec<u32>> = (0..6).map(|i| tokens[i * 5..i * 5 + 110].to_vec()).collect();
        let alone: Vec<Vec<u32>> =
            prompts.iter().map(|prompt| ask(&mut scheduler(case, OFTEN, None), prompt).1).collect();
        // States for two sequences, fewer than are submitted at once.
        let scarce = StateOptions { sequences: 2, snapshots: 1, every: 64 };
        let mut scheduler = scheduler(case, scarce, None);
        let mut heard = HeardEvents::default();
        let ids: Vec<_> = prompts.iter().map(|prompt| scheduler.submit(job(prompt, 6)).unwrap()).collect();
        heard.run(&mut scheduler);
        for (id, expected) in ids.iter().zip(&alone) {
            assert_eq!(&heard.tokens(*id), expected, "{case}");
        }
        nothing_is_left(&mut scheduler);
        let cache = scheduler.engine().kv_cache();
        assert_eq!(cache.available_states(), cache.state_slots(), "{case}");
    }
}

#[test]
fn memory_of_states_is_counted() {
    for (case, state, rows) in [
        // 3 layers: 3 heads of 18 × 18, and 3 inputs of 3 · 54 channels
        ("kimi-linear-kda", 3 * 4 * (3 * 18 * 18 + 3 * 3 * 54), 1),
        ("ling-3-kda", 2 * 4 * (4 * 16 * 16 + 3 * 3 * 64), 2),
    ] {
        let engine = load(case, 1);
        let layout = engine.kv_cache().layout();
        assert_eq!((layout.state_bytes(), layout.state_slots), (state, 24), "{case}");
        assert_eq!(layout.layers.iter().filter(|layer| layer.per_token().is_some()).count(), rows, "{case}");
        assert_eq!(engine.needed().state, 24 * state as u64, "{case}");
    }
}

/// Random models of both families as GGUF files, whose keys and names of tensors are llama.cpp's.
#[test]
fn gguf_files_of_every_kind_of_types_run_close_to_exact_arithmetic() {
    let made = tempfile::tempdir().unwrap();
    let tokens: Vec<u32> = (0..70).map(|i| (i * i * 7 + 3 * i) % 500).collect();
    let shapes = ["small-kimi-linear", "small-ling-3"];
    let cases: Vec<_> =
        shapes.iter().flat_map(|shape| ["F32", "Q8_0", "Q4_K_M"].map(|types| (*shape, types))).collect();
    side_by_side(&cases, |&(shape, types)| {
        let path = made.path().join(format!("{shape}-{types}.gguf"));
        ModelRecipe::new(shape, types.parse().unwrap()).write_gguf(&path).unwrap();
        let file = checkpoint(&path);
        let backend = latent_backends::reference();
        let reference = EngineOptions { context: Some(128), threads: Some(1), ..EngineOptions::default() };
        let mut reference = Engine::load(&*backend, &file, &reference, &mut |_, _| {}).unwrap();
        let truth = all_logits(&mut reference, &tokens, 70);
        let mean = |logits: &[Vec<f32>]| {
            truth.iter().zip(logits).map(|(truth, row)| error(row, truth)).sum::<f64>() / truth.len() as f64
        };
        for tier in tiers() {
            let exact = exact(tier, (MlaChoice::Auto, CacheForm::Latent));
            let logits = all_logits(&mut engine(&file, &exact), &tokens, 33);
            assert!(mean(&logits) <= EXACT, "{shape} {types} {tier}: {:e}", mean(&logits));
        }
        let whole = all_logits(&mut engine(&file, &options(1)), &tokens, 70);
        let mut errors: Vec<f64> = truth.iter().zip(&whole).map(|(truth, row)| error(row, truth)).collect();
        errors.sort_by(f64::total_cmp);
        assert!(errors[errors.len() / 2] < 3e-2, "{shape} {types}: {:e}", errors[errors.len() / 2]);
        let rows = all_logits(&mut engine(&file, &options(1)), &tokens, 1);
        for (threads, chunk, expected) in [(2, 70, &whole), (5, 16, &whole), (3, 1, &rows)] {
            let again = all_logits(&mut engine(&file, &options(threads)), &tokens, chunk);
            assert!(bits(&again) == bits(expected), "{shape} {types} {threads} {chunk}");
        }
    });
}

#[test]
fn rejected_drafts_leave_the_state_of_the_accepted_ones() {
    for case in CASES {
        let tokens = fixture(case).tokens;
        let mut engine = load(case, 2);
        let mut sequence = Sequence::default();
        let mut expected = vec![feed(&mut engine, &mut sequence, &tokens[..60])];
        // A snapshot is due within the step, at 64.
        for token in &tokens[60..70] {
            expected.push(feed(&mut engine, &mut sequence, &[*token]));
        }
        engine.release(sequence);
        for right in 0..6 {
            let mut sequence = Sequence::default();
            feed(&mut engine, &mut sequence, &tokens[..60]);
            let mut drafts = tokens[60..67].to_vec();
            drafts[right + 1..].fill(1);
            let mut logits = vec![Vec::new(); drafts.len()];
            let take = &mut |_: usize, row: usize, all: &[f32]| {
                logits[row] = all.iter().map(|x| x.to_bits()).collect();
            };
            let mut inputs = [SeqInput::drafted(&mut sequence, &drafts)];
            engine.step(&mut inputs, take).unwrap().all().unwrap();
            assert!(logits[..=right] == expected[1..right + 2], "{case} {right}");
            // No row has to run again.
            let len = 61 + right;
            assert_eq!(engine.truncate(&mut sequence, len), len, "{case}");
            let snapshots = if len < 64 { vec![] } else { vec![64] };
            assert_eq!(positions(&sequence), snapshots, "{case} {right}");
            assert!(feed(&mut engine, &mut sequence, &tokens[len..len + 1]) == expected[right + 2], "{case}");
            engine.release(sequence);
        }
        let cache = engine.kv_cache();
        assert_eq!(cache.available_states(), cache.state_slots(), "{case}");
    }
}

#[test]
fn answers_are_the_same_with_drafts_that_are_looked_up() {
    // Many slots of states, and only those that two jobs need.
    let few = StateOptions { sequences: 2, snapshots: 1, every: 64 };
    for (case, states) in CASES.into_iter().flat_map(|case| [(case, OFTEN), (case, few)]) {
        let text = fixture(case).tokens;
        // Prompts that repeat, and answers of only four different tokens, so that n-grams repeat
        // too.
        let likely: Vec<(u32, f32)> = (20..24).map(|token| (token, 1000.0)).collect();
        let prompts: Vec<Vec<u32>> = (0..4).map(|i| text[10 * i..10 * i + 25].repeat(3)).collect();
        let answers = |draft: Draft, together: bool| {
            // Preempted jobs run their answers again in chunks, which round differently. In exact
            // precision the difference is too small to change a token.
            let precision = Precision::Exact;
            let options = EngineOptions { states, draft, precision, draft_cost: Some(0.0), ..options(2) };
            let engine = engine(&checkpoint(&folder(case)), &options);
            let mut scheduler = Scheduler::new(engine, tokenizer(), SchedulerOptions::default());
            let mut heard = HeardEvents::default();
            let mut ids = Vec::new();
            for prompt in &prompts {
                let mut job = job(prompt, 60);
                job.request.sampling.logit_bias = likely.clone();
                ids.push(scheduler.submit(job).unwrap());
                if !together {
                    heard.run(&mut scheduler);
                }
            }
            heard.run(&mut scheduler);
            let drafts = scheduler.stats().drafts;
            assert_eq!(scheduler.stats().failed, 0);
            nothing_is_left(&mut scheduler);
            let tokens: Vec<_> = ids.iter().map(|id| heard.tokens(*id)).collect();
            (tokens, drafts)
        };
        for together in [false, true] {
            let (plain, none) = answers(Draft::None, together);
            let (drafted, counts) = answers(Draft::Ngram, together);
            assert_eq!(drafted, plain, "{case} {together}");
            assert_eq!(none.drafted, 0);
            // With few slots, four jobs leave none for drafts.
            let scarce = together && states == few;
            assert!(
                scarce || (counts.drafted > counts.accepted && counts.accepted > 0),
                "{case} {states:?} {together}: {counts:?}"
            );
        }
    }
}

#[test]
fn a_budget_of_states_decides_how_many_snapshots_stay() {
    for case in CASES {
        let text = fixture(case).tokens;
        let file = checkpoint(&folder(case));
        let slot = load(case, 1).kv_cache().layout().state_bytes() as u64;
        let with = |bytes: u64| EngineOptions { state_cache: Some(bytes), ..options(2) };
        for (bytes, slots) in [(2 * slot, 2), (6 * slot, 6), (8 * slot - 1, 7), (40 * slot, 40)] {
            let engine = engine(&file, &with(bytes));
            assert_eq!(
                (engine.kv_cache().state_slots(), engine.needed().state),
                (slots, slots as u64 * slot)
            );
        }
        for (bytes, says) in
            [(0, "too small for one sequence"), (2 * slot - 1, "at least"), (u64::MAX, "too many states")]
        {
            let refused =
                Engine::load(&*latent_backends::cpu(), &file, &with(bytes), &mut |_, _| {}).err().unwrap();
            let EngineError::Options(refused) = refused else { panic!("{refused}") };
            assert!(refused.contains(says) && refused.contains(&bytes.to_string()), "{refused}");
        }
        // Three texts of 149 tokens with snapshots at 64 and 128, and then each again.
        let cached = |bytes: u64| {
            let engine = engine(&file, &with(bytes));
            let mut scheduler = Scheduler::new(engine, tokenizer(), SchedulerOptions::default());
            let texts = [0, 1, 2].map(|first| [&[first + 7], &text[..148]].concat());
            for text in &texts {
                assert_eq!(ask(&mut scheduler, text).0, 0);
            }
            let stats = scheduler.stats();
            assert_eq!((stats.states as u64, stats.state_bytes as u64), (bytes / slot, slot));
            let again = texts.each_ref().map(|text| ask(&mut scheduler, text).0);
            nothing_is_left(&mut scheduler);
            again
        };
        // With a large budget all snapshots stay. With a small one, newer snapshots evict the
        // oldest.
        assert_eq!(cached(40 * slot), [148, 148, 148], "{case}");
        let few = cached(8 * slot);
        println!("{case}: {few:?} tokens are cached with 8 states");
        assert!(few.iter().any(|tokens| *tokens < 148), "{case}: {few:?}");
        // The answers are the same with a budget for one sequence.
        let engine = engine(&file, &with(2 * slot));
        let mut scarce = Scheduler::new(engine, tokenizer(), SchedulerOptions::default());
        let plain = ask(&mut self::scheduler(case, OFTEN, None), &text);
        assert_eq!(ask(&mut scarce, &text).1, plain.1, "{case}");
    }
}
