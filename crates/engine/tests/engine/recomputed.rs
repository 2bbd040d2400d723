//! How many tokens of a text run again in a model with recurrent states: only those after the
//! nearest snapshot.

use crate::kda::{job, tokenizer};
use crate::support::jobs::{HeardEvents, nothing_is_left};
use crate::support::{checkpoint, engine, fixture, folder};
use latent_engine::cache::{DiskCache, Sequence, StateOptions};
use latent_engine::scheduler::{JobChoice, JobId, Scheduler, SchedulerOptions};
use latent_engine::{
    CancelToken, Draft, DraftInput, Engine, EngineError, EngineOptions, LogitsRequest, SeqInput,
};
use latent_graph::passes::MlaChoice;
use latent_testing::{ModelRecipe, MtpLayer};
use std::path::Path;

const CASES: [&str; 2] = ["kimi-linear-kda", "ling-3-kda"];

/// A snapshot after each block of 64 tokens.
const EVERY: usize = 64;

fn options(states: StateOptions) -> EngineOptions {
    EngineOptions {
        mla: MlaChoice::Absorbed,
        threads: Some(1),
        context: Some(512),
        cache_tokens: Some(2048),
        max_batch_tokens: Some(64),
        states,
        ..EngineOptions::default()
    }
}

const OFTEN: StateOptions = StateOptions { sequences: 4, snapshots: 4, every: EVERY };

/// A scheduler, with a count of the prompt tokens that ran.
struct Counted {
    scheduler: Scheduler,
    heard: HeardEvents,
    ran: u64,
}

impl Counted {
    fn new(case: &str, states: StateOptions, disk: Option<&Path>) -> Counted {
        let disk = disk.map(|path| DiskCache { path: path.to_owned(), max_bytes: 1 << 30 });
        let engine = engine(&checkpoint(&folder(case)), &options(states));
        let options = SchedulerOptions { disk, ..SchedulerOptions::default() };
        let scheduler = Scheduler::new(engine, tokenizer(), options);
        Counted { scheduler, heard: HeardEvents::default(), ran: 0 }
    }

    /// Number of prompt tokens that ran since the last call.
    fn since(&mut self) -> usize {
        let before = std::mem::replace(&mut self.ran, self.scheduler.stats().tokens_in);
        (self.ran - before) as usize
    }

    /// Submits the prompts together. Gives the number of their tokens that ran, and the answers.
    fn ask(&mut self, prompts: &[&[u32]]) -> (usize, Vec<Vec<u32>>) {
        let submit = |prompt: &&[u32]| self.scheduler.submit(job(prompt, 6)).unwrap();
        let ids: Vec<JobId> = prompts.iter().map(submit).collect();
        self.heard.run(&mut self.scheduler);
        let answers = ids.iter().map(|id| self.heard.tokens(*id)).collect();
        (self.since(), answers)
    }
}

#[test]
fn conversations_run_only_their_new_tokens() {
    for case in CASES {
        let disk = tempfile::tempdir().unwrap();
        let mut talk = Counted::new(case, OFTEN, Some(disk.path()));
        let text = fixture(case).tokens;
        let (ran, answers) = talk.ask(&[&text]);
        assert_eq!(ran, text.len(), "{case}");
        // Regenerated: only the last token runs again, for its logits.
        let (ran, again) = talk.ask(&[&text]);
        assert_eq!((ran, &again), (1, &answers), "{case}");
        // The next message: the rows of the answer are used too.
        let said = [&text[..], &answers[0], &[21, 22, 23]].concat();
        let (ran, _) = talk.ask(&[&said]);
        assert!((1..=4).contains(&ran), "{case}: {ran} tokens for a message of three");
        // Edited at token 140: continues from the snapshot at 128.
        let edited = [&text[..140], &[11, 12, 13]].concat();
        assert_eq!(talk.ask(&[&edited]).0, 143 - 128, "{case}");
        // Two tabs of one page: a common prompt of 128 tokens and different questions.
        let tabs = [[&text[..128], &[31, 32, 33, 34]].concat(), [&text[..128], &[41, 42]].concat()];
        assert_eq!(talk.ask(&[&tabs[0], &tabs[1]]).0, 4 + 2, "{case}");
        // Back to the first tab: it has a snapshot of its own at its end.
        assert_eq!(talk.ask(&[&tabs[0]]).0, 1, "{case}");
        // Five answers to one prompt, which runs once, and its last token once more for each.
        let choices = (0..4).map(|_| JobChoice::default()).collect();
        let new = [&text[..70], &[51; 40]].concat();
        talk.scheduler.submit_choices(job(&new, 6), choices).unwrap();
        talk.heard.run(&mut talk.scheduler);
        assert!(talk.since() <= 110 - 64 + 4, "{case}");
        talk.scheduler.flush_disk();
        nothing_is_left(&mut talk.scheduler);
        drop(talk);
        // A restart continues from the last block on the disk that has a state at its end.
        let mut restarted = Counted::new(case, OFTEN, Some(disk.path()));
        assert_eq!(restarted.ask(&[&text]), (text.len() - 128, answers), "{case}");
        nothing_is_left(&mut restarted.scheduler);
    }
}

#[test]
fn cancelled_and_preempted_jobs_run_little_again() {
    for case in CASES {
        let text = fixture(case).tokens;
        // Cancelled after two steps of 64 tokens.
        let mut talk = Counted::new(case, OFTEN, None);
        let id = talk.scheduler.submit(job(&text, 6)).unwrap();
        while talk.scheduler.stats().tokens_in < 128 {
            assert!(talk.heard.step(&mut talk.scheduler));
        }
        talk.scheduler.cancel(id);
        talk.heard.run(&mut talk.scheduler);
        let ran = talk.since();
        assert!((128..text.len()).contains(&ran), "{case}: {ran}");
        assert_eq!(talk.ask(&[&text]).0, text.len() - 128, "{case}");
        // Fewer states than jobs: a preempted job runs again only the tokens after its snapshot at
        // 64.
        let scarce = StateOptions { sequences: 2, snapshots: 2, every: EVERY };
        let mut talk = Counted::new(case, scarce, None);
        let prompts: Vec<Vec<u32>> = (0..6).map(|i| text[i * 5..i * 5 + 100].to_vec()).collect();
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let (ran, _) = talk.ask(&prompts);
        let again = talk.scheduler.stats().preemptions as usize * (100 + 6);
        assert!(ran <= 600 + again, "{case}: {ran} tokens ran, {:?}", talk.scheduler.stats());
    }
}

fn feed(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]) {
    engine.prefill(sequence, tokens, 64, LogitsRequest::Last, &mut |_, _| {}, &mut |_| true).unwrap();
}

#[test]
fn sequences_go_back_to_the_nearest_snapshot_only() {
    let made = tempfile::tempdir().unwrap();
    for case in CASES {
        let text = fixture(case).tokens;
        let mut engine = engine(&checkpoint(&folder(case)), &options(OFTEN));
        let mut sequence = Sequence::default();
        feed(&mut engine, &mut sequence, &text[..140]);
        // A restored conversation runs nothing again. After an edit, the tokens after the snapshot
        // run again.
        let path = made.path().join(case);
        engine.save(&sequence, &path).unwrap();
        let (mut restored, _) = engine.restore(&path).unwrap();
        assert_eq!(restored.len(), 140, "{case}");
        assert_eq!(engine.truncate(&mut restored, 139), 128, "{case}");
        assert_eq!(engine.truncate(&mut restored, 100), 64, "{case}");
        // A cancelled step does not change the sequence.
        let cancelled = CancelToken::new();
        cancelled.cancel();
        engine.set_cancel_token(cancelled);
        let mut inputs = [SeqInput::tokens(&mut sequence, &[3; 20], LogitsRequest::Last)];
        assert!(engine.step(&mut inputs, &mut |_, _, _| {}).is_err(), "{case}");
        engine.set_cancel_token(CancelToken::new());
        assert_eq!(sequence.len(), 140, "{case}");
        // A context shift is refused, since a state cannot forget tokens. The sequence is
        // unchanged.
        let refused = engine.shift(&mut sequence, 3..40).unwrap_err();
        assert!(matches!(refused, EngineError::NoContextShift), "{refused}");
        assert!(refused.to_string().contains("cannot forget tokens"), "{refused}");
        assert_eq!(sequence.len(), 140, "{case}");
    }
}

/// The MTP layer of Ling-3.0: a rejected draft leaves the accepted rows, and none runs again.
#[test]
fn rejected_drafts_of_the_mtp_layer_cost_no_row() {
    let made = tempfile::tempdir().unwrap();
    let path = made.path().join("ling.gguf");
    let recipe = ModelRecipe {
        mtp: MtpLayer::Own,
        layers: Some(4),
        ..ModelRecipe::new("small-ling-3", "Q8_0".parse().unwrap())
    };
    recipe.write_gguf(&path).unwrap();
    let options = EngineOptions { draft: Draft::Mtp, ..options(OFTEN) };
    let mut engine = engine(&checkpoint(&path), &options);
    let mut sequence = Sequence::default();
    let text: Vec<u32> = (0..60).map(|i| i * 7 % 190).collect();
    feed(&mut engine, &mut sequence, &text);
    // Across the end of the block at 64, where a snapshot is taken.
    for at in 60..70 {
        engine.draft(&mut [DraftInput { sequence: &mut sequence, token: 5 }], &mut |_, _| {}).unwrap();
        let mut inputs = [SeqInput::drafted(&mut sequence, &[5, 9])];
        engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
        assert_eq!(engine.truncate(&mut sequence, at + 1), at + 1);
    }
    let snapshots: Vec<usize> = sequence.snapshots().collect();
    assert_eq!(snapshots, [64]);
}

/// With room for few states, texts share them. Each resumes from its nearest remaining snapshot,
/// and its answer stays the same.
#[test]
fn with_few_states_texts_resume_from_the_remaining_snapshots() {
    for case in CASES {
        let text = fixture(case).tokens;
        let others: Vec<Vec<u32>> =
            (1..4).map(|i| text.iter().map(|token| (token + 7 * i) % 150).collect()).collect();
        let mut costs = Vec::new();
        for states in [2, 3, 4, 6, 9, 16] {
            let options = EngineOptions { state_cache: None, ..options(OFTEN) };
            let file = checkpoint(&folder(case));
            let bytes = engine(&file, &options).summary().state_bytes as u64;
            let options = EngineOptions { state_cache: Some(states * bytes), ..options };
            let scheduler = Scheduler::new(engine(&file, &options), tokenizer(), SchedulerOptions::default());
            let mut talk = Counted { scheduler, heard: HeardEvents::default(), ran: 0 };
            let (ran, first) = talk.ask(&[&text]);
            assert_eq!(ran, text.len(), "{case}, {states} states");
            for other in &others {
                talk.ask(&[other]);
            }
            let (ran, again) = talk.ask(&[&text]);
            assert_eq!(again, first, "{case}, {states} states");
            // A text resumes from its start, the end of a block, or the end of the prompt.
            let from = [0, EVERY, 2 * EVERY, text.len() - 1];
            assert!(from.contains(&(text.len() - ran)), "{case}, {states} states: {ran} tokens ran");
            nothing_is_left(&mut talk.scheduler);
            costs.push(ran);
        }
        assert!(costs.is_sorted_by(|few, many| few >= many), "{case}: {costs:?}");
        assert_eq!(costs.last(), Some(&1), "{case}: {costs:?}");
    }
}

/// A long text with two snapshots goes back to the nearest remaining one, not to its start.
#[test]
fn the_nearest_remaining_snapshot_is_taken() {
    for case in CASES {
        let states = StateOptions { snapshots: 2, ..OFTEN };
        let mut engine = engine(&checkpoint(&folder(case)), &options(states));
        let text: Vec<u32> = (0..400).map(|i| i * 11 % 150).collect();
        let mut sequence = Sequence::default();
        feed(&mut engine, &mut sequence, &text);
        let left: Vec<usize> = sequence.snapshots().collect();
        assert!(left.len() == 2 && left.iter().all(|at| at % EVERY == 0), "{case}: {left:?}");
        for to in [399, left[1] + 1, left[1], left[1] - 1, left[0]] {
            let nearest = left.iter().rev().find(|at| **at <= to).unwrap();
            let mut fork = engine.share(&sequence, 400);
            assert_eq!(engine.truncate(&mut fork, to), *nearest, "{case}: to {to} of {left:?}");
        }
        assert_eq!(engine.truncate(&mut sequence, left[0] - 1), 0, "{case}");
    }
}
