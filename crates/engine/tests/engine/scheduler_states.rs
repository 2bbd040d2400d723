//! The scheduler with recurrent models, with a model that drafts, and with an engine that fails.

use crate::support::demo;
use crate::support::jobs;
use crate::support::jobs::{HeardEvents, alone, nothing_is_left, prompt};
use latent_backend_reference::{ReferenceBackend, ToyRecurrence};
use latent_engine::cache::{DiskCache, StateOptions};
use latent_engine::scheduler::{Job, JobChoice, JobError, JobId, Scheduler, SchedulerOptions};
use latent_engine::{Draft, Engine, EngineOptions};
use latent_formats::Checkpoint;
use latent_graph::passes::MlaChoice;
use latent_testing::{ModelRecipe, MtpLayer};
use latent_text::Tokenizer;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

struct StatefulModel {
    checkpoint: Arc<Checkpoint>,
    tokenizer: Arc<Tokenizer>,
    fails: Arc<AtomicBool>,
    _folder: tempfile::TempDir,
}

/// A random model of one layer, with the demo model's tokenizer. The tests look only at token ids.
fn model() -> StatefulModel {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let recipe = ModelRecipe { layers: Some(1), ..ModelRecipe::new("tiny-dense", "F32".parse().unwrap()) };
    recipe.write_gguf(&path).unwrap();
    StatefulModel {
        checkpoint: Arc::new(Checkpoint::open(&path).unwrap()),
        tokenizer: demo_tokenizer(),
        fails: Arc::default(),
        _folder: folder,
    }
}

fn demo_tokenizer() -> Arc<Tokenizer> {
    let file = Checkpoint::open(&demo::models().join("mla-demo-Q4_K_M.gguf")).unwrap();
    Arc::new(Tokenizer::from_checkpoint(&file).unwrap())
}

impl StatefulModel {
    fn engine(&self, states: StateOptions) -> Engine {
        let toy = ToyRecurrence { decay: 0.25, fails: Arc::clone(&self.fails) };
        let backend = ReferenceBackend::with_recurrences(vec![ToyRecurrence::new(0.75), toy]);
        let options = EngineOptions {
            mla: MlaChoice::Absorbed,
            context: Some(512),
            cache_tokens: Some(1024),
            max_batch_tokens: Some(128),
            threads: Some(1),
            states,
            ..EngineOptions::default()
        };
        Engine::load(&backend, &self.checkpoint, &options, &mut |_, _| {}).unwrap()
    }

    fn scheduler(&self, states: StateOptions, options: SchedulerOptions) -> Scheduler {
        Scheduler::new(self.engine(states), Arc::clone(&self.tokenizer), options)
    }
}

/// Tokens below 400, which the vocabulary of every tiny model has.
fn ids(kind: u32, len: usize) -> Vec<u32> {
    prompt(kind, len).into_iter().map(|token| token % 400).collect()
}

/// A greedy answer of at most `most` tokens. Unlike `jobs::job` it bans no end token, so that it
/// may be shorter.
fn tiny_job(tokens: Vec<u32>, most: usize) -> Job {
    let mut job = Job::default();
    job.request.prompt = tokens;
    job.request.sampling = latent_engine::sampling::SamplingParams::greedy();
    job.request.max_tokens = Some(most);
    job
}

const OFTEN: StateOptions = StateOptions { sequences: 4, snapshots: 4, every: 64 };

fn on_disk(path: &Path) -> SchedulerOptions {
    let disk = Some(DiskCache { path: path.to_owned(), max_bytes: 1 << 30 });
    SchedulerOptions { disk, ..SchedulerOptions::default() }
}

#[test]
fn recurrent_prefixes_are_reused_only_at_their_snapshots() {
    let model = model();
    let folder = tempfile::tempdir().unwrap();
    let mut scheduler = model.scheduler(OFTEN, on_disk(folder.path()));
    let ask = |scheduler: &mut Scheduler, tokens: Vec<u32>| {
        let mut heard = HeardEvents::default();
        let id = scheduler.submit(tiny_job(tokens, 6)).unwrap();
        heard.run(scheduler);
        (id, heard.cached(id), heard.tokens(id))
    };
    let text = ids(1, 200);
    let (_, cached, first) = ask(&mut scheduler, text.clone());
    assert_eq!(cached, 0);
    // The scheduler asks for a snapshot before the last token of a prompt.
    let (_, cached, again) = ask(&mut scheduler, text.clone());
    assert_eq!((cached, &again), (199, &first));
    // Within a text, snapshots are only at the ends of blocks.
    let mut other = text[..170].to_vec();
    other.extend(ids(7, 40).into_iter().map(|token| token + 1));
    let (_, cached, left) = ask(&mut scheduler, other.clone());
    assert_eq!(cached, 128);
    scheduler.flush_disk();
    let stats = nothing_is_left(&mut scheduler);
    assert_eq!((stats.disk.errors, stats.disk.blocks_dropped), (0, 0));
    assert_eq!(scheduler.engine().kv_cache().available_states(), scheduler.engine().kv_cache().state_slots());
    drop(scheduler);
    // The disk has only full blocks, with the states at their ends.
    let mut restarted = model.scheduler(OFTEN, on_disk(folder.path()));
    let (_, cached, from_disk) = ask(&mut restarted, text);
    assert_eq!((cached, &from_disk), (192, &first));
    nothing_is_left(&mut restarted);
    drop(restarted);
    let mut fresh = model.scheduler(OFTEN, SchedulerOptions::default());
    assert_eq!(ask(&mut fresh, other).2, left);
}

#[test]
fn cached_states_are_evicted_for_running_jobs() {
    let model = model();
    // Two sequences can run. The prefix cache keeps states only in the slots that they do not use.
    let scarce = StateOptions { sequences: 2, snapshots: 1, every: 64 };
    let mut scheduler = model.scheduler(scarce, SchedulerOptions::default());
    let mut heard = HeardEvents::default();
    let submit = |scheduler: &mut Scheduler, kind| scheduler.submit(tiny_job(ids(kind, 150), 8)).unwrap();
    let first: Vec<JobId> = (0..8).map(|kind| submit(&mut scheduler, kind)).collect();
    heard.run(&mut scheduler);
    let mut engine = model.engine(OFTEN);
    for (kind, id) in first.iter().enumerate() {
        let request = tiny_job(ids(kind as u32, 150), 8).request;
        heard.is_answer(*id, &alone(&mut engine, &model.tokenizer, &request));
    }
    nothing_is_left(&mut scheduler);
    let cache = scheduler.engine().kv_cache();
    assert_eq!(cache.available_states(), cache.state_slots());
}

#[test]
fn choices_of_a_recurrent_model_share_its_state() {
    let model = model();
    let mut scheduler = model.scheduler(OFTEN, SchedulerOptions::default());
    let mut heard = HeardEvents::default();
    let choices = vec![JobChoice::default(), JobChoice::default()];
    let all = scheduler.submit_choices(tiny_job(ids(3, 150), 6), choices).unwrap();
    heard.run(&mut scheduler);
    assert_eq!(heard.cached(all[1]), 149);
    assert!(heard.tokens(all[0]) == heard.tokens(all[1]) && heard.tokens(all[0]) == heard.tokens(all[2]));
    nothing_is_left(&mut scheduler);
}

#[test]
fn a_failed_step_fails_only_its_jobs() {
    let model = model();
    let options = SchedulerOptions { max_running: 2, ..SchedulerOptions::default() };
    let mut scheduler = model.scheduler(OFTEN, options);
    let mut heard = HeardEvents::default();
    let all: Vec<JobId> = (0..3).map(|kind| scheduler.submit(tiny_job(ids(kind, 100), 6)).unwrap()).collect();
    heard.step(&mut scheduler);
    model.fails.store(true, Ordering::Relaxed);
    let mut events = Vec::new();
    let error = scheduler.step(&mut |id, event| events.push((id, event))).unwrap_err();
    events.into_iter().for_each(|(id, event)| heard.hear(id, event));
    model.fails.store(false, Ordering::Relaxed);
    // Only the first job was in that step: the scheduler was measuring how long a step takes that
    // only decodes.
    assert!(matches!(heard.failed(all[0]), JobError::Engine(problem) if problem == error.to_string()));
    // The jobs that were not in the step are not affected.
    heard.run(&mut scheduler);
    assert!(all[1..].iter().all(|id| heard.finished(*id).2.completion > 0));
    let stats = nothing_is_left(&mut scheduler);
    assert_eq!((stats.failed, stats.finished), (1, 2));
    let cache = scheduler.engine().kv_cache();
    assert_eq!(cache.available_states(), cache.state_slots());
}

#[test]
fn drafts_change_no_text_and_use_cached_prefixes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let recipe = ModelRecipe {
        layers: Some(2),
        mtp: MtpLayer::Own,
        ..ModelRecipe::new("tiny-v3", "F32".parse().unwrap())
    };
    recipe.write_gguf(&path).unwrap();
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    let tokenizer = demo_tokenizer();
    let load = |draft| {
        let options = EngineOptions { draft, ..jobs::options(512, 1024) };
        Engine::load(&*latent_backends::cpu(), &checkpoint, &options, &mut |_, _| {}).unwrap()
    };
    let mut plain = load(Draft::None);
    let cache = folder.path().join("cache");
    let mut scheduler = Scheduler::new(load(Draft::Mtp), Arc::clone(&tokenizer), on_disk(&cache));
    let mut heard = HeardEvents::default();
    let mut all = Vec::new();
    for (kind, len, no_drafts) in
        [(1, 150, false), (1, 150, false), (2, 90, true), (1, 170, false), (3, 300, false), (2, 100, false)]
    {
        let mut job = tiny_job(ids(kind, len), 40);
        job.request.max_drafts = no_drafts.then_some(0);
        all.push((scheduler.submit(job).unwrap(), kind, len));
        heard.steps(&mut scheduler, 30);
    }
    heard.run(&mut scheduler);
    for (id, kind, len) in &all {
        let answer = alone(&mut plain, &tokenizer, &tiny_job(ids(*kind, *len), 40).request);
        let (_, _, usage) = heard.finished(*id);
        assert_eq!(heard.tokens(*id), answer.tokens, "{kind} {len}");
        assert_eq!(usage.drafts.drafted > 0, *len != 90, "{kind} {len}");
    }
    // The second job takes all but the last row of the same prompt from the cache.
    assert_eq!((heard.cached(all[0].0), heard.cached(all[1].0)), (0, 149));
    assert!(scheduler.stats().drafts.drafted > 0);
    scheduler.flush_disk();
    nothing_is_left(&mut scheduler);
    let mut restarted = Scheduler::new(load(Draft::Mtp), Arc::clone(&tokenizer), on_disk(&cache));
    let id = restarted.submit(tiny_job(ids(3, 300), 40)).unwrap();
    heard.0.clear();
    heard.run(&mut restarted);
    let answer = alone(&mut plain, &tokenizer, &tiny_job(ids(3, 300), 40).request);
    assert_eq!(heard.tokens(id), answer.tokens);
    assert_eq!(heard.cached(id), 255);
}
