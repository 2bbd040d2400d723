//! Jobs of a scheduler in tests: the demo model in exact precision, the events of each job, and a
//! clock that the test sets.
#![allow(dead_code, reason = "each test program uses a part of it")]

use super::demo;
use latent_engine::sampling::SamplingParams;
use latent_engine::scheduler::{
    Job, JobError, JobEvent, JobId, JobUsage, Scheduler, SchedulerClock, SchedulerOptions, SchedulerStats,
};
use latent_engine::{Answer, ChosenToken, Engine, EngineOptions, Request, Session, StopReason};
use latent_graph::passes::{MlaChoice, Precision};
use latent_text::Tokenizer;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Options with which the bits do not depend on the number of rows of a step: exact precision and
/// one formulation of the attention for prompts and decoding.
pub fn options(context: usize, cache: usize) -> EngineOptions {
    EngineOptions {
        precision: Precision::Exact,
        mla: MlaChoice::Absorbed,
        threads: Some(1),
        context: Some(context),
        cache_tokens: Some(cache),
        max_batch_tokens: Some(256),
        ..EngineOptions::default()
    }
}

pub fn engine(context: usize, cache: usize) -> (Engine, Arc<Tokenizer>) {
    let demo::DemoEngine { engine, tokenizer, .. } = demo::demo(&options(context, cache));
    (engine, tokenizer)
}

pub fn scheduler(context: usize, cache: usize, options: SchedulerOptions) -> Scheduler {
    let (engine, tokenizer) = engine(context, cache);
    Scheduler::new(engine, tokenizer, options)
}

/// A clock that advances by `micros` whenever it is read.
pub fn ticking(micros: u64) -> (SchedulerClock, Arc<AtomicU64>) {
    let (start, passed) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let read = Arc::clone(&passed);
    let clock = move || start + Duration::from_micros(read.fetch_add(micros, Ordering::Relaxed));
    (Arc::new(clock), passed)
}

/// A prompt of `len` tokens. The shorter of two prompts of one `kind` is a prefix of the longer.
pub fn prompt(kind: u32, len: usize) -> Vec<u32> {
    // The ids of control tokens are below 24.
    (0..len as u32).map(|i| 24 + (i * i * 7 + i * (kind + 3) + kind * 31) % 990).collect()
}

/// A greedy answer of exactly `tokens` tokens.
pub fn request(tokenizer: &Tokenizer, prompt: Vec<u32>, tokens: usize) -> Request {
    Request {
        prompt,
        sampling: SamplingParams {
            logit_bias: tokenizer.end_of_generation().iter().map(|id| (*id, f32::NEG_INFINITY)).collect(),
            ..SamplingParams::greedy()
        },
        max_tokens: Some(tokens),
        ..Request::default()
    }
}

pub fn job(tokenizer: &Tokenizer, prompt: Vec<u32>, tokens: usize) -> Job {
    Job { request: request(tokenizer, prompt, tokens), ..Job::default() }
}

/// The answer of an engine without other jobs.
pub fn alone(engine: &mut Engine, tokenizer: &Arc<Tokenizer>, request: &Request) -> Answer {
    engine.generate(&mut Session::default(), request, tokenizer, &mut demo::DemoListener).unwrap()
}

/// The events of each job.
#[derive(Default)]
pub struct HeardEvents(pub HashMap<JobId, Vec<JobEvent>>);

impl HeardEvents {
    /// Runs one step, and checks that no block is lost.
    pub fn step(&mut self, scheduler: &mut Scheduler) -> bool {
        // The events are checked after the step: a panic in the listener would end the job, not the
        // test.
        let mut events = Vec::new();
        let more = scheduler.step(&mut |id, event| events.push((id, event))).unwrap();
        events.into_iter().for_each(|(id, event)| self.hear(id, event));
        let stats = scheduler.stats();
        assert_eq!(stats.blocks, stats.blocks_free + stats.blocks_cached + stats.blocks_used, "{stats:?}");
        assert!(stats.running > 0 || stats.waiting > 0 || stats.blocks_used == 0, "{stats:?}");
        more
    }

    pub fn steps(&mut self, scheduler: &mut Scheduler, count: usize) {
        for _ in 0..count {
            self.step(scheduler);
        }
    }

    pub fn hear(&mut self, id: JobId, event: JobEvent) {
        let events = self.0.entry(id).or_default();
        assert!(!events.last().is_some_and(JobEvent::is_last), "{event:?} after the last event");
        let started = |event: &JobEvent| matches!(event, JobEvent::Started { .. });
        assert!(!(started(&event) && events.iter().any(started)), "{id:?} starts twice");
        events.push(event);
    }

    pub fn run(&mut self, scheduler: &mut Scheduler) {
        let mut steps = 0;
        while self.step(scheduler) {
            steps += 1;
            assert!(steps < 20_000, "no end");
        }
    }

    pub fn is_over(&self, id: JobId) -> bool {
        self.0.get(&id).is_some_and(|events| events.last().is_some_and(JobEvent::is_last))
    }

    pub fn chosen(&self, id: JobId) -> Vec<ChosenToken> {
        let chosen = |event: &JobEvent| match event {
            JobEvent::Token(chosen) => Some(chosen.clone()),
            _ => None,
        };
        self.0.get(&id).into_iter().flatten().filter_map(chosen).collect()
    }

    pub fn tokens(&self, id: JobId) -> Vec<u32> {
        self.chosen(id).iter().map(|chosen| chosen.token).collect()
    }

    pub fn text(&self, id: JobId) -> String {
        let (_, rest, _) = self.finished(id);
        self.chosen(id).iter().map(|chosen| chosen.text.as_str()).chain([rest.as_str()]).collect()
    }

    pub fn finished(&self, id: JobId) -> (StopReason, String, JobUsage) {
        match self.0[&id].last() {
            Some(JobEvent::Finished { reason, rest, usage }) => (*reason, rest.clone(), *usage),
            other => panic!("{id:?}: {other:?}"),
        }
    }

    pub fn failed(&self, id: JobId) -> JobError {
        match self.0[&id].last() {
            Some(JobEvent::Failed(error)) => error.clone(),
            other => panic!("{id:?}: {other:?}"),
        }
    }

    pub fn cached(&self, id: JobId) -> usize {
        let started = |event: &JobEvent| match event {
            JobEvent::Started { cached_tokens, .. } => Some(*cached_tokens),
            _ => None,
        };
        self.0[&id].iter().find_map(started).unwrap()
    }

    pub fn embedding(&self, id: JobId) -> Vec<f32> {
        match self.0[&id].last() {
            Some(JobEvent::Embedded { values, .. }) => values.clone(),
            other => panic!("{id:?}: {other:?}"),
        }
    }

    pub fn is_answer(&self, id: JobId, answer: &Answer) {
        let (reason, _, usage) = self.finished(id);
        assert_eq!(
            (self.tokens(id), self.text(id), reason),
            (answer.tokens.clone(), answer.text.clone(), answer.stop)
        );
        assert_eq!((usage.prompt, usage.completion), (answer.prompt_tokens, answer.tokens.len()));
    }
}

/// Checks that no job is left, and that every block is free once the prefix cache is cleared.
pub fn nothing_is_left(scheduler: &mut Scheduler) -> SchedulerStats {
    scheduler.clear_prefixes();
    let stats = scheduler.stats();
    assert_eq!(
        (stats.blocks_free, stats.blocks_used, stats.prefixes.blocks),
        (stats.blocks, 0, 0),
        "{stats:?}"
    );
    assert_eq!((stats.running, stats.waiting), (0, 0));
    stats
}
