//! The scheduler: each job generates the text that it generates alone, whichever other jobs run
//! with it, and frees every block and state that it used.

use crate::support::jobs::{
    HeardEvents, alone, engine, job, nothing_is_left, prompt, request, scheduler, ticking,
};
use latent_engine::sampling::SamplingParams;
use latent_engine::scheduler::{
    FairnessKey, Job, JobChoice, JobError, JobEvent, Refusal, Scheduler, SchedulerOptions,
};
use latent_engine::{ContextShift, LogitsProcessor, Pooling, Request, StopReason};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn every_job_generates_the_same_text_as_alone() {
    let (mut engine, tokenizer) = engine(1024, 4096);
    let mut requests = Vec::new();
    for (kind, len) in [(0, 5), (1, 700), (2, 64), (3, 130), (0, 300), (4, 1), (5, 65), (6, 500)] {
        let mut request = request(&tokenizer, prompt(kind, len), 20 + 3 * kind as usize);
        if kind % 2 == 1 {
            request.sampling.temperature = 0.9;
            request.sampling.seed = u64::from(kind);
        }
        requests.push(request);
    }
    let answers: Vec<_> = requests.iter().map(|request| alone(&mut engine, &tokenizer, request)).collect();
    for prefix_cache in [true, false] {
        let options = SchedulerOptions { prefix_cache, ..SchedulerOptions::default() };
        let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), options);
        let (mut heard, mut ids) = (HeardEvents::default(), Vec::new());
        for request in &requests {
            ids.push(scheduler.submit(Job { request: request.clone(), ..Job::default() }).unwrap());
            heard.step(&mut scheduler);
            heard.step(&mut scheduler);
        }
        heard.run(&mut scheduler);
        for (id, answer) in ids.iter().zip(&answers) {
            heard.is_answer(*id, answer);
        }
        let stats = nothing_is_left(&mut scheduler);
        assert_eq!((stats.finished, stats.preemptions), (8, 0));
        assert!(stats.steps < 1500, "{stats:?}");
        engine = scheduler.into_engine();
    }
}

#[test]
fn preempted_jobs_generate_the_same_text() {
    // Each job needs at least 250 rows, so the cache of 448 rows has room for only one of them
    // until its end.
    let (mut engine, tokenizer) = engine(448, 448);
    let requests: Vec<Request> =
        (0..5).map(|kind| request(&tokenizer, prompt(kind, 100 + 9 * kind as usize), 150)).collect();
    let answers: Vec<_> = requests.iter().map(|request| alone(&mut engine, &tokenizer, request)).collect();
    for prefix_cache in [true, false] {
        let options = SchedulerOptions { prefix_cache, ..SchedulerOptions::default() };
        let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), options);
        let submit =
            |request: &Request| scheduler.submit(Job { request: request.clone(), ..Job::default() }).unwrap();
        let ids: Vec<_> = requests.iter().map(submit).collect();
        let mut heard = HeardEvents::default();
        heard.run(&mut scheduler);
        for (id, answer) in ids.iter().zip(&answers) {
            heard.is_answer(*id, answer);
        }
        // The oldest job is never preempted, so that at least one job always gets to its end.
        assert_eq!(heard.finished(ids[0]).2.preemptions, 0);
        assert!(nothing_is_left(&mut scheduler).preemptions > 0);
        engine = scheduler.into_engine();
    }
}

#[test]
fn a_job_may_fill_the_whole_cache() {
    let mut scheduler = scheduler(192, 192, SchedulerOptions::default());
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let mut heard = HeardEvents::default();
    // The cache keeps all three blocks of this job. The second job starts with the same tokens: it
    // shares two of these blocks and a part of the third.
    let before = scheduler.submit(job(&tokenizer, prompt(1, 150), 30)).unwrap();
    heard.run(&mut scheduler);
    let id = scheduler.submit(job(&tokenizer, prompt(1, 149), 1000)).unwrap();
    heard.run(&mut scheduler);
    let (reason, _, usage) = heard.finished(id);
    assert_eq!((reason, usage.completion, heard.cached(id)), (StopReason::Context, 192 - 149, 148));
    assert_eq!(heard.finished(before).0, StopReason::Length);
    nothing_is_left(&mut scheduler);
}

#[test]
fn a_job_of_higher_priority_preempts_a_running_one() {
    let options = SchedulerOptions { max_running: 2, min_chunk: 64, ..SchedulerOptions::default() };
    let mut scheduler = scheduler(512, 1024, options);
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let mut heard = HeardEvents::default();
    let low: Vec<_> =
        (0..3).map(|kind| scheduler.submit(job(&tokenizer, prompt(kind, 40), 60)).unwrap()).collect();
    for _ in 0..10 {
        heard.step(&mut scheduler);
    }
    let urgent = Job { priority: 5, ..job(&tokenizer, prompt(7, 40), 10) };
    let urgent = scheduler.submit(urgent).unwrap();
    let mut steps = 0;
    while !heard.is_over(urgent) {
        heard.step(&mut scheduler);
        steps += 1;
    }
    assert!(steps < 30 && !heard.is_over(low[0]), "{steps}");
    heard.run(&mut scheduler);
    assert!(low.iter().all(|id| heard.tokens(*id).len() == 60));
    assert_eq!(heard.finished(low[1]).2.preemptions, 1);
    nothing_is_left(&mut scheduler);
}

#[test]
fn keys_share_evenly_whatever_their_number_of_jobs() {
    let options = SchedulerOptions { max_running: 2, ..SchedulerOptions::default() };
    let mut scheduler = scheduler(256, 1024, options);
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let mut ids = Vec::new();
    let submit = |scheduler: &mut Scheduler, key, kind| {
        let job = Job { key: FairnessKey(key), ..job(&tokenizer, prompt(kind, 20), 10) };
        scheduler.submit(job).unwrap()
    };
    for kind in 0..20 {
        ids.push((1, submit(&mut scheduler, 1, kind)));
    }
    let mut heard = HeardEvents::default();
    let mut ends = Vec::new();
    for step in 0.. {
        if step == 3 {
            for kind in 0..4 {
                ids.push((2, submit(&mut scheduler, 2, 30 + kind)));
            }
        }
        let more = heard.step(&mut scheduler);
        ids.retain(|(key, id)| {
            let over = heard.is_over(*id);
            ends.extend(over.then_some(*key));
            !over
        });
        if !more {
            break;
        }
    }
    // The second key submits last and has four jobs against twenty: with an even share, all four
    // are among the first ten to end.
    assert_eq!(ends[..10].iter().filter(|key| **key == 2).count(), 4, "{ends:?}");
}

#[test]
fn prompts_do_not_delay_decoding_jobs() {
    // A slowdown of 1 lets prompts lengthen no step, so that a step has only the minimum of prompt
    // tokens.
    let (clock, _) = ticking(1000);
    let options =
        SchedulerOptions { prompt_slowdown: 1.0, min_chunk: 16, clock, ..SchedulerOptions::default() };
    let mut scheduler = scheduler(1024, 4096, options);
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let mut heard = HeardEvents::default();
    let first = scheduler.submit(job(&tokenizer, prompt(0, 300), 200)).unwrap();
    heard.step(&mut scheduler);
    // No job decodes: the step is filled with prompt tokens.
    assert_eq!(scheduler.stats().last_prompt_tokens, 256);
    heard.step(&mut scheduler);
    let long = scheduler.submit(job(&tokenizer, prompt(1, 900), 5)).unwrap();
    let mut tokens = heard.tokens(first).len();
    let mut chunks = 0;
    while heard.tokens(long).is_empty() {
        heard.step(&mut scheduler);
        let stats = scheduler.stats();
        assert_eq!((heard.tokens(first).len(), stats.last_decoding), (tokens + 1, 1));
        assert!(stats.last_prompt_tokens <= 16, "{stats:?}");
        (tokens, chunks) = (tokens + 1, chunks + usize::from(stats.last_prompt_tokens > 0));
    }
    assert_eq!(chunks, 900usize.div_ceil(16));
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let mut scheduler = scheduler(2048, 8192, SchedulerOptions::default());
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let mut heard = HeardEvents::default();
    let long: Vec<_> =
        (0..2).map(|kind| scheduler.submit(job(&tokenizer, prompt(kind, 2000), 2)).unwrap()).collect();
    heard.steps(&mut scheduler, 3);
    let short = scheduler.submit(job(&tokenizer, prompt(9, 30), 2)).unwrap();
    while !heard.is_over(short) {
        heard.step(&mut scheduler);
    }
    assert!(!long.iter().any(|id| heard.is_over(*id)));
    heard.run(&mut scheduler);
    nothing_is_left(&mut scheduler);
}

#[test]
fn choices_share_a_prompt_that_runs_once() {
    let (mut engine, tokenizer) = engine(512, 2048);
    let mut request = request(&tokenizer, prompt(3, 200), 25);
    (request.sampling.temperature, request.sampling.top_k) = (1.0, 0);
    let seeds = [11, 12, 13];
    let answers: Vec<_> = seeds
        .iter()
        .map(|seed| {
            let sampling = SamplingParams { seed: *seed, ..request.sampling.clone() };
            alone(&mut engine, &tokenizer, &Request { sampling, ..request.clone() })
        })
        .collect();
    assert!(answers[0].tokens != answers[1].tokens && answers[1].tokens != answers[2].tokens);
    for prefix_cache in [false, true] {
        let options = SchedulerOptions { prefix_cache, ..SchedulerOptions::default() };
        let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), options);
        let sampling = SamplingParams { seed: seeds[0], ..request.sampling.clone() };
        let job = Job { request: Request { sampling, ..request.clone() }, ..Job::default() };
        let others =
            seeds[1..].iter().map(|seed| JobChoice { seed: *seed, processors: Vec::new() }).collect();
        let ids = scheduler.submit_choices(job, others).unwrap();
        let mut heard = HeardEvents::default();
        heard.run(&mut scheduler);
        for (id, answer) in ids.iter().zip(&answers) {
            heard.is_answer(*id, answer);
        }
        assert_eq!((heard.cached(ids[0]), heard.cached(ids[1])), (0, 199));
        assert_eq!(nothing_is_left(&mut scheduler).tokens_in, 200 + 2);
        engine = scheduler.into_engine();
    }
}

#[test]
fn choices_go_on_when_the_first_is_cancelled() {
    let mut scheduler = scheduler(512, 2048, SchedulerOptions::default());
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let choices = || (1..3).map(|seed| JobChoice { seed, processors: Vec::new() }).collect();
    let ids = scheduler.submit_choices(job(&tokenizer, prompt(3, 400), 5), choices()).unwrap();
    let mut heard = HeardEvents::default();
    heard.step(&mut scheduler);
    scheduler.cancel(ids[0]);
    heard.run(&mut scheduler);
    assert_eq!(heard.finished(ids[0]).0, StopReason::Interrupted);
    assert!(ids[1..].iter().all(|id| heard.tokens(*id).len() == 5));
    assert_eq!(heard.tokens(ids[1]), heard.tokens(ids[2]));
    nothing_is_left(&mut scheduler);
}

#[test]
fn embeddings_do_not_depend_on_other_jobs() {
    let (engine, tokenizer) = engine(1024, 2048);
    let hidden = engine.config().hidden_size;
    let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());
    let embed = |prompt| Job { embed: true, ..job(&tokenizer, prompt, 0) };
    let mut heard = HeardEvents::default();
    let short = scheduler.submit(embed(prompt(1, 30))).unwrap();
    heard.run(&mut scheduler);
    let company: Vec<_> =
        (0..4).map(|kind| scheduler.submit(job(&tokenizer, prompt(kind, 90), 40)).unwrap()).collect();
    heard.steps(&mut scheduler, 5);
    let again = scheduler.submit(embed(prompt(1, 30))).unwrap();
    // Longer than the largest step (256 tokens), and as long as the context.
    let long = scheduler.submit(embed(prompt(2, 1024))).unwrap();
    heard.run(&mut scheduler);
    let bits = |id| heard.embedding(id).iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(short), bits(again));
    for id in [short, long] {
        let values = heard.embedding(id);
        let length: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
        assert!(values.len() == hidden && (length - 1.0).abs() < 1e-5, "{length}");
    }
    let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    assert!(cosine(&heard.embedding(short), &heard.embedding(long)) < 0.9999);
    assert!(company.iter().all(|id| heard.tokens(*id).len() == 40));
    nothing_is_left(&mut scheduler);
}

#[test]
fn poolings_take_the_hidden_states_of_their_tokens() {
    let (engine, tokenizer) = engine(1024, 2048);
    let hidden = engine.config().hidden_size;
    let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());
    let mut heard = HeardEvents::default();
    // Longer than the largest step (256 tokens): pooling adds up over several steps.
    let text = prompt(2, 700);
    let mut embed = |prompt: &[u32], pooling| {
        let id =
            scheduler.submit(Job { embed: true, pooling, ..job(&tokenizer, prompt.to_vec(), 0) }).unwrap();
        heard.run(&mut scheduler);
        heard.embedding(id)
    };
    let all = embed(&text, Pooling::None);
    assert_eq!(all.len(), text.len() * hidden);
    let direction = |row: &mut dyn Iterator<Item = f64>| {
        let row: Vec<f64> = row.collect();
        let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        row.into_iter().map(|x| x / length).collect::<Vec<_>>()
    };
    let state = |token: usize| direction(&mut all[token * hidden..][..hidden].iter().map(|x| f64::from(*x)));
    let mean =
        direction(&mut (0..hidden).map(|i| all[i..].iter().step_by(hidden).map(|x| f64::from(*x)).sum()));
    for (pooling, expected) in
        [(Pooling::Mean, mean), (Pooling::First, state(0)), (Pooling::Last, state(text.len() - 1))]
    {
        let found = embed(&text, pooling);
        assert_eq!(found.len(), hidden);
        for (found, expected) in found.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{pooling:?}: {found}, expected {expected}");
        }
    }
}

#[test]
fn overdue_and_cancelled_jobs_free_their_blocks() {
    let (clock, passed) = ticking(0);
    let options =
        SchedulerOptions { max_running: 2, clock: Arc::clone(&clock), ..SchedulerOptions::default() };
    let mut scheduler = scheduler(512, 1024, options);
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let within = |seconds| Some(clock() + Duration::from_secs(seconds));
    let mut submit = |deadline, kind| {
        scheduler.submit(Job { deadline, ..job(&tokenizer, prompt(kind, 100), 100) }).unwrap()
    };
    let (soon, cancelled, waiting, late) =
        (submit(within(5), 0), submit(None, 1), submit(within(5), 2), submit(within(500), 3));
    let mut heard = HeardEvents::default();
    heard.steps(&mut scheduler, 12);
    let said = heard.tokens(soon).len();
    assert!(said > 5 && heard.tokens(waiting).is_empty());
    assert_eq!(scheduler.next_deadline(), within(5));
    passed.store(6_000_000, Ordering::Relaxed);
    scheduler.cancel(cancelled);
    // Cancelling an unknown job has no effect: clients cancel late, or twice.
    scheduler.cancel(latent_engine::scheduler::JobId(77));
    heard.run(&mut scheduler);
    assert_eq!(heard.failed(soon), JobError::Deadline { completion: said });
    assert_eq!(heard.failed(waiting), JobError::Deadline { completion: 0 });
    let (reason, _, usage) = heard.finished(cancelled);
    assert!(reason == StopReason::Interrupted && usage.completion == heard.tokens(cancelled).len());
    assert_eq!(heard.tokens(late).len(), 100);
    let stats = nothing_is_left(&mut scheduler);
    assert_eq!((stats.submitted, stats.finished, stats.cancelled, stats.failed), (4, 1, 1, 2));
}

#[test]
fn a_step_ends_when_all_its_jobs_are_cancelled() {
    let mut scheduler = scheduler(2048, 4096, SchedulerOptions::default());
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let ids: Vec<_> =
        (0..2).map(|kind| scheduler.submit(job(&tokenizer, prompt(kind, 1500), 100)).unwrap()).collect();
    let canceller = scheduler.canceller();
    let of_thread = ids.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        of_thread.into_iter().for_each(|id| canceller.cancel(id));
    });
    let mut heard = HeardEvents::default();
    heard.run(&mut scheduler);
    thread.join().unwrap();
    heard.run(&mut scheduler);
    for id in ids {
        assert_eq!(heard.finished(id).0, StopReason::Interrupted);
    }
    // The stop applies to that step only.
    let next = scheduler.submit(job(&tokenizer, prompt(5, 10), 3)).unwrap();
    heard.run(&mut scheduler);
    assert_eq!(heard.tokens(next).len(), 3);
    nothing_is_left(&mut scheduler);
}

#[test]
fn invalid_jobs_and_jobs_beyond_the_queue_are_refused() {
    let options = SchedulerOptions {
        max_running: 1,
        max_waiting: 3,
        max_waiting_tokens: 400,
        ..SchedulerOptions::default()
    };
    let mut scheduler = scheduler(256, 512, options);
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let too_long = scheduler.submit(job(&tokenizer, prompt(0, 256), 1)).unwrap_err();
    assert_eq!(too_long, Refusal::TooLong { tokens: 256, context: 256 });
    assert!(too_long.to_string().contains("256 tokens"), "{too_long}");
    let mut refused = |job: Job| match scheduler.submit(job).unwrap_err() {
        Refusal::Invalid(problem) => problem,
        Refusal::Parameter(error) => format!("{}: {error}", error.name),
        other => panic!("{other}"),
    };
    assert!(refused(job(&tokenizer, Vec::new(), 1)).contains("prompt: the prompt has no tokens"));
    assert!(refused(job(&tokenizer, vec![4_000_000], 1)).contains("prompt: token id 4000000"));
    let mut hot = job(&tokenizer, vec![300], 1);
    hot.request.sampling.temperature = -1.0;
    assert!(refused(hot).contains("temperature: temperature is -1"));
    let mut shifted = job(&tokenizer, vec![300], 1);
    shifted.request.shift = Some(ContextShift { keep: usize::MAX, discard: 0 });
    assert!(refused(shifted).contains("too many kept tokens"));
    // The queue is full first by its number of jobs, then by its number of tokens.
    let mut heard = HeardEvents::default();
    scheduler.submit(job(&tokenizer, prompt(0, 20), 20)).unwrap();
    heard.step(&mut scheduler);
    for kind in 0..3 {
        scheduler.submit(job(&tokenizer, prompt(kind, 20), 2)).unwrap();
    }
    let Refusal::Full { waiting, waiting_tokens, retry_after } =
        scheduler.submit(job(&tokenizer, prompt(0, 20), 2)).unwrap_err()
    else {
        panic!("the queue is full");
    };
    assert_eq!((waiting, waiting_tokens), (3, 60));
    assert!(retry_after >= Duration::from_secs(1) && retry_after <= Duration::from_secs(600));
    heard.run(&mut scheduler);
    for kind in 0..2 {
        scheduler.submit(job(&tokenizer, prompt(kind, 200), 2)).unwrap();
    }
    let full = scheduler.submit(job(&tokenizer, prompt(2, 20), 2)).unwrap_err();
    assert!(matches!(full, Refusal::Full { waiting_tokens: 400, .. }), "{full:?}");
    assert_eq!(scheduler.stats().refused, 2);
    scheduler.close();
    assert_eq!(scheduler.submit(job(&tokenizer, vec![300], 1)), Err(Refusal::Closed));
    // Jobs that were accepted before the scheduler was closed run to their ends.
    heard.run(&mut scheduler);
    assert_eq!(scheduler.stats().finished, 6);
    nothing_is_left(&mut scheduler);
}

/// Forbids every token.
struct ForbiddingProcessor;

impl LogitsProcessor for ForbiddingProcessor {
    fn process(&mut self, _tokens: &[u32], logits: &mut [f32]) {
        logits.fill(f32::NEG_INFINITY);
    }
}

#[test]
fn a_job_without_an_allowed_token_fails_alone() {
    let mut scheduler = scheduler(256, 512, SchedulerOptions::default());
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let bad = Job { processors: vec![Box::new(ForbiddingProcessor)], ..job(&tokenizer, prompt(0, 70), 5) };
    let (bad, good) =
        (scheduler.submit(bad).unwrap(), scheduler.submit(job(&tokenizer, prompt(1, 70), 5)).unwrap());
    let none = scheduler.submit(job(&tokenizer, prompt(2, 10), 0)).unwrap();
    let mut heard = HeardEvents::default();
    heard.run(&mut scheduler);
    assert!(matches!(heard.failed(bad), JobError::Job(_)));
    assert_eq!(heard.tokens(good).len(), 5);
    assert_eq!(heard.finished(none).0, StopReason::Length);
    // The end of the prompt is reported once.
    let done = |event: &&JobEvent| matches!(event, JobEvent::Prompt { done: 70, total: 70 });
    assert_eq!(heard.0[&good].iter().filter(done).count(), 1);
    nothing_is_left(&mut scheduler);
}

#[test]
fn jobs_without_tokens_to_generate_run_no_prompt() {
    let (clock, _) = ticking(1000);
    let options = SchedulerOptions { min_chunk: 2, clock, ..SchedulerOptions::default() };
    let mut scheduler = scheduler(512, 2048, options);
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let mut heard = HeardEvents::default();
    let decodes = scheduler.submit(job(&tokenizer, prompt(0, 20), 300)).unwrap();
    heard.steps(&mut scheduler, 10);
    let before = scheduler.stats();
    assert_eq!(before.tokens_in, 20);
    for kind in 1..4 {
        let none = scheduler.submit(job(&tokenizer, prompt(kind, 400), 0)).unwrap();
        while !heard.is_over(none) {
            heard.step(&mut scheduler);
            assert_eq!((scheduler.stats().last_decoding, scheduler.stats().last_prompt_tokens), (1, 0));
        }
        assert_eq!(heard.finished(none).0, StopReason::Length);
    }
    assert_eq!(scheduler.stats().tokens_in, 20);
    assert!(!heard.is_over(decodes));
    heard.run(&mut scheduler);
    nothing_is_left(&mut scheduler);
}
