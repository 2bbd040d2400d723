//! Processors of logits that are not ready in time: their jobs skip steps, other jobs do not, and
//! every text stays the same.

use crate::support::demo;
use crate::support::jobs::{HeardEvents, alone, engine, job, nothing_is_left, options, prompt, request};
use latent_engine::scheduler::{Job, JobError, Scheduler, SchedulerOptions};
use latent_engine::{Draft, EngineOptions, LogitsProcessor, StopReason};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Becomes ready for its next token after `times` calls of `is_ready`, and leaves the logits alone.
struct SlowProcessor {
    asked: usize,
    times: usize,
    failure: Option<String>,
}

impl SlowProcessor {
    fn boxed(times: usize) -> Vec<Box<dyn LogitsProcessor>> {
        vec![Box::new(SlowProcessor { asked: 0, times, failure: None })]
    }
}

impl LogitsProcessor for SlowProcessor {
    fn process(&mut self, _tokens: &[u32], _logits: &mut [f32]) {
        assert!(self.asked >= self.times, "processed before it is ready");
        self.asked = 0;
    }

    fn is_ready(&mut self, _limit: Duration) -> bool {
        self.asked += 1;
        self.asked >= self.times
    }

    fn failure(&self) -> Option<String> {
        self.failure.clone()
    }
}

/// Is ready once another job has this many tokens.
struct WaitingProcessor {
    tokens: Arc<AtomicUsize>,
    count: usize,
}

impl LogitsProcessor for WaitingProcessor {
    fn process(&mut self, _tokens: &[u32], _logits: &mut [f32]) {}

    fn is_ready(&mut self, _limit: Duration) -> bool {
        self.tokens.load(Ordering::SeqCst) >= self.count
    }
}

#[test]
fn a_late_processor_delays_no_other_job() {
    let (mut engine, tokenizer) = engine(512, 1024);
    let requests = [request(&tokenizer, prompt(0, 70), 12), request(&tokenizer, prompt(1, 30), 12)];
    let answers: Vec<_> = requests.iter().map(|request| alone(&mut engine, &tokenizer, request)).collect();
    let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());
    let tokens = Arc::new(AtomicUsize::new(0));
    let late = WaitingProcessor { tokens: Arc::clone(&tokens), count: 10 };
    let submit = |scheduler: &mut Scheduler, at: usize, processors: Vec<Box<dyn LogitsProcessor>>| {
        scheduler.submit(Job { request: requests[at].clone(), processors, ..Job::default() }).unwrap()
    };
    let late = submit(&mut scheduler, 0, vec![Box::new(late)]);
    let plain = submit(&mut scheduler, 1, Vec::new());
    let mut heard = HeardEvents::default();
    let mut steps = 0;
    while heard.tokens(plain).len() < 10 {
        let before = heard.tokens(plain).len();
        heard.step(&mut scheduler);
        let now = heard.tokens(plain).len();
        tokens.store(now, Ordering::SeqCst);
        // Once its prompt has run, the other job gets a token in each step.
        assert!(before == 0 || now == before + 1, "{before} tokens, then {now}");
        assert!(heard.tokens(late).is_empty());
        steps += 1;
        assert!(steps < 100);
    }
    heard.run(&mut scheduler);
    heard.is_answer(late, &answers[0]);
    heard.is_answer(plain, &answers[1]);
    nothing_is_left(&mut scheduler);
}

#[test]
fn late_answers_have_the_same_text_as_alone() {
    for draft in [Draft::None, Draft::Mtp] {
        let options = EngineOptions { draft, ..options(512, 1024) };
        let demo::DemoEngine { mut engine, tokenizer, .. } = demo::demo(&options);
        let mut requests = Vec::new();
        for kind in 0..4_u32 {
            let mut request = request(&tokenizer, prompt(kind, 20 + 40 * kind as usize), 25);
            if kind % 2 == 1 {
                request.sampling.temperature = 0.9;
                request.sampling.seed = u64::from(kind);
            }
            requests.push(request);
        }
        let answers: Vec<_> =
            requests.iter().map(|request| alone(&mut engine, &tokenizer, request)).collect();
        let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());
        let submit = |(times, request): (usize, &latent_engine::Request)| {
            let processors = if times == 0 { Vec::new() } else { SlowProcessor::boxed(times) };
            scheduler.submit(Job { request: request.clone(), processors, ..Job::default() }).unwrap()
        };
        let ids: Vec<_> = requests.iter().enumerate().map(submit).collect();
        let mut heard = HeardEvents::default();
        heard.run(&mut scheduler);
        for (id, answer) in ids.iter().zip(&answers) {
            heard.is_answer(*id, answer);
        }
        nothing_is_left(&mut scheduler);
    }
}

#[test]
fn late_jobs_can_be_preempted_cancelled_and_fail() {
    // The cache has four blocks; two jobs of 160 rows need six.
    let (mut engine, tokenizer) = engine(256, 256);
    let requests = [request(&tokenizer, prompt(0, 100), 60), request(&tokenizer, prompt(1, 100), 60)];
    let answers: Vec<_> = requests.iter().map(|request| alone(&mut engine, &tokenizer, request)).collect();
    let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());
    let mut ids = Vec::new();
    for request in &requests {
        let processors = SlowProcessor::boxed(3);
        ids.push(scheduler.submit(Job { request: request.clone(), processors, ..Job::default() }).unwrap());
    }
    let mut heard = HeardEvents::default();
    heard.run(&mut scheduler);
    for (id, answer) in ids.iter().zip(&answers) {
        heard.is_answer(*id, answer);
    }
    // A processor that is never ready blocks only its own job, which can be cancelled.
    let never = Job { processors: SlowProcessor::boxed(usize::MAX), ..job(&tokenizer, prompt(2, 20), 5) };
    let never = scheduler.submit(never).unwrap();
    for _ in 0..5 {
        heard.step(&mut scheduler);
    }
    assert!(!heard.is_over(never) && heard.tokens(never).is_empty());
    scheduler.cancel(never);
    heard.run(&mut scheduler);
    assert_eq!(heard.finished(never).0, StopReason::Interrupted);
    // A processor that fails once it is ready: the reason is the error of its job.
    let failing = SlowProcessor { asked: 0, times: 2, failure: Some("too ambiguous".into()) };
    let failing = Job { processors: vec![Box::new(failing)], ..job(&tokenizer, prompt(3, 20), 5) };
    let failing = scheduler.submit(failing).unwrap();
    heard.run(&mut scheduler);
    assert_eq!(heard.failed(failing), JobError::Constraint("too ambiguous".into()));
    nothing_is_left(&mut scheduler);
}
