//! A panic in the code of one job ends that job: the others generate the same text as alone, and
//! every block is freed.

use crate::support::demo;
use crate::support::jobs::{HeardEvents, alone, engine, job, nothing_is_left, options, prompt, request};
use latent_engine::scheduler::{Job, JobChoice, JobError, JobEvent, JobId, Scheduler, SchedulerOptions};
use latent_engine::{Draft, EngineError, EngineOptions, LogitsProcessor, Request, Session, StopReason};
use std::sync::Arc;

/// Where a processor panics.
#[derive(Clone, Copy, PartialEq)]
enum PanicSite {
    Process,
    Accepted,
    Failure,
    Drop,
}

/// Panics in the function `place` from the `at`th call of `process` on. Any later call but the drop
/// fails the test, since a processor may be in an inconsistent state after a panic.
struct PanickingProcessor {
    place: PanicSite,
    at: usize,
    calls: usize,
    over: bool,
}

impl PanickingProcessor {
    fn boxed(place: PanicSite, at: usize) -> Vec<Box<dyn LogitsProcessor>> {
        vec![Box::new(PanickingProcessor { place, at, calls: 0, over: false })]
    }

    fn call(&mut self, place: PanicSite) {
        assert!(!self.over || place == PanicSite::Drop, "called after its panic");
        self.calls += usize::from(place == PanicSite::Process);
        if place == self.place && self.calls >= self.at {
            self.over = true;
            panic!("call {}", self.calls);
        }
    }
}

impl LogitsProcessor for PanickingProcessor {
    fn process(&mut self, _tokens: &[u32], _logits: &mut [f32]) {
        self.call(PanicSite::Process);
    }

    fn accepted(&mut self, _tokens: &[u32]) {
        self.call(PanicSite::Accepted);
    }

    fn failure(&self) -> Option<String> {
        assert!(self.place != PanicSite::Failure || self.calls < self.at, "call {}", self.calls);
        None
    }
}

impl Drop for PanickingProcessor {
    fn drop(&mut self) {
        if self.place == PanicSite::Drop {
            self.call(PanicSite::Drop);
        }
    }
}

/// The error of a processor that panics at this call.
fn at_call(call: usize) -> JobError {
    JobError::Job(EngineError::Panicked(format!("call {call}")).to_string())
}

#[test]
fn a_panic_in_a_processor_ends_its_job_and_no_other() {
    let (mut engine, tokenizer) = engine(1024, 4096);
    let of = [
        None,
        // In the last step of a prompt of several steps.
        Some((PanicSite::Process, 1)),
        Some((PanicSite::Process, 7)),
        None,
        Some((PanicSite::Accepted, 3)),
        Some((PanicSite::Failure, 9)),
        None,
        Some((PanicSite::Accepted, 1)),
    ];
    let mut requests: Vec<Request> =
        (0..8).map(|kind| request(&tokenizer, prompt(kind, 20 + 20 * kind as usize), 25)).collect();
    requests[1].prompt = prompt(9, 300);
    for request in &mut requests[3..] {
        (request.sampling.temperature, request.sampling.seed) = (0.9, 5);
    }
    let answers: Vec<_> = requests.iter().map(|request| alone(&mut engine, &tokenizer, request)).collect();
    // All jobs together, so that both threads sample tokens, then one job after the other.
    engine = demo::demo(&EngineOptions { threads: Some(2), ..options(512, 2048) }).engine;
    for together in [true, false] {
        let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());
        let (mut heard, mut ids) = (HeardEvents::default(), Vec::new());
        for (request, panics) in requests.iter().zip(of) {
            let processors = panics.map_or_else(Vec::new, |(place, at)| PanickingProcessor::boxed(place, at));
            ids.push(
                scheduler.submit(Job { request: request.clone(), processors, ..Job::default() }).unwrap(),
            );
            if !together {
                heard.run(&mut scheduler);
            }
        }
        heard.run(&mut scheduler);
        for ((id, answer), panics) in ids.iter().zip(&answers).zip(of) {
            match panics {
                None => heard.is_answer(*id, answer),
                Some((_, at)) => {
                    assert_eq!(heard.failed(*id), at_call(at));
                    assert_eq!(heard.tokens(*id), answer.tokens[..at - 1]);
                }
            }
        }
        let stats = nothing_is_left(&mut scheduler);
        assert_eq!((stats.finished, stats.failed, stats.submitted), (3, 5, 8));
        engine = scheduler.into_engine();
    }
}

#[test]
fn choices_share_their_prompt_whichever_of_them_panics() {
    let (mut engine, tokenizer) = engine(512, 2048);
    let request = request(&tokenizer, prompt(3, 200), 12);
    let answer = alone(&mut engine, &tokenizer, &request);
    for (bad, at) in [(0, 1), (0, 5), (1, 1), (2, 4)] {
        for prefix_cache in [false, true] {
            let options = SchedulerOptions { prefix_cache, ..SchedulerOptions::default() };
            let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), options);
            let processors = |choice| match choice == bad {
                true => PanickingProcessor::boxed(PanicSite::Process, at),
                false => Vec::new(),
            };
            let job = Job { request: request.clone(), processors: processors(0), ..Job::default() };
            let others = (1..3).map(|choice| JobChoice { seed: 0, processors: processors(choice) }).collect();
            let ids = scheduler.submit_choices(job, others).unwrap();
            let mut heard = HeardEvents::default();
            heard.run(&mut scheduler);
            for (choice, id) in ids.iter().enumerate() {
                match choice == bad {
                    true => {
                        assert_eq!(heard.failed(*id), at_call(at));
                        assert_eq!(heard.tokens(*id), answer.tokens[..at - 1]);
                    }
                    false => heard.is_answer(*id, &answer),
                }
                assert_eq!(heard.cached(*id), if choice == 0 { 0 } else { 199 });
            }
            // The prompt runs once. Each other choice runs only its last token again.
            assert_eq!(nothing_is_left(&mut scheduler).tokens_in, 200 + 2);
            engine = scheduler.into_engine();
        }
    }
}

#[test]
fn drafts_accepted_before_a_panic_are_reported() {
    let demo = demo::demo(&EngineOptions { draft: Draft::Mtp, ..options(512, 2048) });
    let (mut engine, tokenizer) = (demo.engine, demo.tokenizer);
    let requests = [1, 2].map(|kind| request(&tokenizer, prompt(kind, 40), 14));
    let answers = requests.clone().map(|request| {
        let answer = alone(&mut engine, &tokenizer, &request);
        assert!(answer.drafts.accepted > 0);
        answer
    });
    for at in 1..=13 {
        let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());
        let submit = |scheduler: &mut Scheduler, of: usize, processors| {
            scheduler.submit(Job { request: requests[of].clone(), processors, ..Job::default() }).unwrap()
        };
        let bad = submit(&mut scheduler, 0, PanickingProcessor::boxed(PanicSite::Process, at));
        let good = submit(&mut scheduler, 1, Vec::new());
        let mut heard = HeardEvents::default();
        heard.run(&mut scheduler);
        assert_eq!(heard.failed(bad), at_call(at));
        assert_eq!(heard.tokens(bad), answers[0].tokens[..at - 1]);
        heard.is_answer(good, &answers[1]);
        // The rows that the failed job left in the prefix cache give the right text.
        let again = submit(&mut scheduler, 0, Vec::new());
        heard.run(&mut scheduler);
        assert!(heard.cached(again) > 0);
        heard.is_answer(again, &answers[0]);
        nothing_is_left(&mut scheduler);
        engine = scheduler.into_engine();
    }
}

/// Runs two jobs with a listener that panics at those events of the first for which `at` is true.
/// Gives the events of that job and the number of panics, after checking the other job.
fn with_listener(at: impl Fn(&JobEvent, bool) -> bool) -> (Vec<JobEvent>, usize) {
    let (mut engine, tokenizer) = engine(512, 1024);
    let good = job(&tokenizer, prompt(1, 90), 12);
    let answer = alone(&mut engine, &tokenizer, &good.request);
    let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());
    let bad = scheduler.submit(job(&tokenizer, prompt(2, 90), 12)).unwrap();
    let good = scheduler.submit(good).unwrap();
    let (mut heard, mut panics) = (HeardEvents::default(), 0);
    let mut more = true;
    while more {
        let mut events: Vec<(JobId, JobEvent)> = Vec::new();
        more = scheduler
            .step(&mut |id, event| {
                if id == bad && at(&event, panics > 0) {
                    panics += 1;
                    panic!("a reader that fails");
                }
                events.push((id, event));
            })
            .unwrap();
        events.into_iter().for_each(|(id, event)| heard.hear(id, event));
    }
    heard.is_answer(good, &answer);
    nothing_is_left(&mut scheduler);
    (heard.0.remove(&bad).unwrap_or_default(), panics)
}

#[test]
fn a_panic_in_the_listener_ends_the_job_of_the_event() {
    let failed =
        JobEvent::Failed(JobError::Job("the code of this request panicked: a reader that fails".into()));
    let started = |event: &JobEvent, _| matches!(event, JobEvent::Started { .. });
    assert_eq!(with_listener(started), (vec![failed.clone()], 1));
    let first_token = |event: &JobEvent, _| matches!(event, JobEvent::Token(_));
    let (events, panics) = with_listener(first_token);
    assert_eq!((events.last(), panics), (Some(&failed), 1));
    assert!(!events.iter().any(|event| matches!(event, JobEvent::Token(_))), "{events:?}");
    // A panic at the last event: the failure is reported instead.
    let finished = |event: &JobEvent, _| matches!(event, JobEvent::Finished { .. });
    let (events, panics) = with_listener(finished);
    assert_eq!((events.last(), panics), (Some(&failed), 1));
    assert_eq!(events.iter().filter(|event| matches!(event, JobEvent::Token(_))).count(), 12);
    // A listener that always panics gets the first event, the failure, and the failure of reporting
    // that. Then the job ends without an event.
    assert_eq!(with_listener(|_, _| true), (Vec::new(), 3));
}

#[test]
fn a_panic_in_dropping_a_processor_fails_no_job() {
    let (mut engine, tokenizer) = engine(512, 1024);
    let request = request(&tokenizer, prompt(1, 90), 12);
    let answer = alone(&mut engine, &tokenizer, &request);
    let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());
    let mut submit = |place| {
        let job = Job {
            request: request.clone(),
            processors: PanickingProcessor::boxed(place, 0),
            ..Job::default()
        };
        scheduler.submit(job).unwrap()
    };
    let (ends, waits) = (submit(PanicSite::Drop), submit(PanicSite::Drop));
    scheduler.cancel(waits);
    let mut heard = HeardEvents::default();
    heard.run(&mut scheduler);
    heard.is_answer(ends, &answer);
    assert_eq!(heard.finished(waits).0, StopReason::Interrupted);
    nothing_is_left(&mut scheduler);
}

#[test]
fn a_panic_in_generate_is_an_error_and_the_engine_stays_usable() {
    let (mut engine, tokenizer) = engine(512, 512);
    let request = request(&tokenizer, prompt(1, 90), 12);
    let answer = alone(&mut engine, &tokenizer, &request);
    let mut session = Session::default();
    let error = engine
        .generate_with(
            &mut session,
            &request,
            &tokenizer,
            PanickingProcessor::boxed(PanicSite::Process, 4),
            &mut demo::DemoListener,
        )
        .unwrap_err();
    assert!(matches!(&error, EngineError::Panicked(problem) if problem == "call 4"), "{error}");
    let again = engine.generate(&mut session, &request, &tokenizer, &mut demo::DemoListener).unwrap();
    assert_eq!((again.tokens, again.cached_tokens), (answer.tokens, 89));
}
