//! A cancelled answer ends with the text so far, and no other answer is affected.

use crate::support::demo::{DemoEngine, demo};
use latent_engine::sampling::SamplingParams;
use latent_engine::scheduler::{Canceller, Job, Scheduler, SchedulerOptions};
use latent_engine::{
    Answer, CancelToken, EngineError, EngineOptions, Listener, LogitsProcessor, LogitsRequest, Request,
    SeqInput, Session, StopReason, TokenEvent,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const QUESTION: &str = "Tell me about the sea.";

/// Cancels its answer at the `at`th token.
struct CancellingListener {
    cancel: CancelToken,
    at: usize,
    heard: usize,
    text: String,
}

impl CancellingListener {
    fn new(cancel: &CancelToken, at: usize) -> CancellingListener {
        CancellingListener { cancel: cancel.clone(), at, heard: 0, text: String::new() }
    }
}

impl Listener for CancellingListener {
    fn token(&mut self, event: &TokenEvent<'_>) -> bool {
        self.heard += 1;
        self.text.push_str(event.text);
        if self.heard == self.at {
            self.cancel.cancel();
        }
        true
    }
}

fn options() -> EngineOptions {
    EngineOptions { context: Some(256), threads: Some(1), ..EngineOptions::default() }
}

fn request(demo: &DemoEngine, cancel: Option<&CancelToken>) -> Request {
    Request {
        prompt: demo.prompt(QUESTION),
        sampling: SamplingParams::greedy(),
        max_tokens: Some(20),
        ignore_eos: true,
        cancel: cancel.cloned(),
        ..Request::default()
    }
}

fn ask(
    demo: &mut DemoEngine,
    cancel: Option<&CancelToken>,
    listener: &mut dyn Listener,
) -> (Session, Answer) {
    let request = request(demo, cancel);
    let mut session = Session::default();
    let answer = demo.engine.generate(&mut session, &request, &demo.tokenizer, listener).unwrap();
    (session, answer)
}

#[test]
fn a_cancelled_answer_keeps_its_text_and_its_stop_reason() {
    let mut demo = demo(&options());
    let never = CancelToken::new();
    let (_, whole) = ask(&mut demo, None, &mut CancellingListener::new(&never, 0));
    let cancel = CancelToken::new();
    let mut listener = CancellingListener::new(&cancel, 7);
    let (session, cut) = ask(&mut demo, Some(&cancel), &mut listener);
    assert_eq!((cut.stop, cut.tokens.len()), (StopReason::Interrupted, 7));
    assert_eq!(cut.tokens, whole.tokens[..7]);
    assert!(!cut.text.is_empty() && cut.text == listener.text, "{:?} {:?}", cut.text, listener.text);
    // The session can be continued: all tokens but the last have rows in the cache.
    assert_eq!(session.tokens(), [&demo.prompt(QUESTION)[..], &cut.tokens[..6]].concat());
}

#[test]
fn a_cancel_after_the_end_does_not_affect_later_answers() {
    let mut demo = demo(&options());
    let cancel = CancelToken::new();
    let (_, first) = ask(&mut demo, Some(&cancel), &mut CancellingListener::new(&cancel, 0));
    assert_eq!((first.stop, first.tokens.len()), (StopReason::Length, 20));
    cancel.cancel();
    let (_, second) = ask(&mut demo, None, &mut CancellingListener::new(&cancel, 0));
    assert_eq!((second.stop, &second.tokens), (StopReason::Length, &first.tokens));
    let fresh = CancelToken::new();
    let (_, third) = ask(&mut demo, Some(&fresh), &mut CancellingListener::new(&cancel, 0));
    assert_eq!(third.tokens, first.tokens);
    // Steps that the caller runs directly are not affected either.
    let mut session = Session::default();
    let mut inputs = [SeqInput::tokens(&mut session.sequence, &[24], LogitsRequest::Last)];
    demo.engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
    // An answer whose cancel token was cancelled before it began has no tokens.
    let (_, none) = ask(&mut demo, Some(&cancel), &mut CancellingListener::new(&fresh, 0));
    assert_eq!((none.stop, none.tokens.len()), (StopReason::Interrupted, 0));
}

#[test]
fn a_panic_in_the_listener_leaves_no_cancel_token_in_the_engine() {
    struct Panics;
    impl Listener for Panics {
        fn token(&mut self, _: &TokenEvent<'_>) -> bool {
            panic!("of the listener")
        }
    }
    let mut demo = demo(&options());
    let cancel = CancelToken::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| ask(&mut demo, Some(&cancel), &mut Panics)));
    assert!(panicked.is_err());
    cancel.cancel();
    let (_, answer) = ask(&mut demo, None, &mut CancellingListener::new(&cancel, 0));
    assert_eq!(answer.stop, StopReason::Length);
}

/// Stops the step that calls it.
struct StepStopper(Canceller);

impl LogitsProcessor for StepStopper {
    fn process(&mut self, _tokens: &[u32], _logits: &mut [f32]) {
        self.0.stop_step();
    }

    fn accepted(&mut self, _tokens: &[u32]) {}
}

#[test]
fn a_stopped_step_of_a_scheduler_leaves_no_cancel_token_in_the_engine() {
    let DemoEngine { engine, tokenizer, .. } = demo(&options());
    let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());
    let processors: Vec<Box<dyn LogitsProcessor>> = vec![Box::new(StepStopper(scheduler.canceller()))];
    let request = Request { prompt: vec![24, 25], max_tokens: Some(3), ..Request::default() };
    scheduler.submit(Job { request, processors, ..Job::default() }).unwrap();
    let mut ended = false;
    for _ in 0..20 {
        scheduler.step(&mut |_, event| ended |= event.is_last()).unwrap();
    }
    assert!(ended);
    let mut engine = scheduler.into_engine();
    let mut session = Session::default();
    let mut inputs = [SeqInput::tokens(&mut session.sequence, &[24], LogitsRequest::Last)];
    engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
}

#[test]
fn a_cancel_token_of_the_engine_stops_its_steps_until_it_is_replaced() {
    let mut demo = demo(&options());
    let cancel = CancelToken::new();
    demo.engine.set_cancel_token(cancel.clone());
    cancel.cancel();
    let mut session = Session::default();
    let mut inputs = [SeqInput::tokens(&mut session.sequence, &[24], LogitsRequest::Last)];
    let stopped = demo.engine.step(&mut inputs, &mut |_, _, _| {});
    assert!(matches!(stopped, Err(EngineError::Stopped)));
    // An answer with a cancel token of its own watches only that token.
    let own = CancelToken::new();
    let (_, answer) = ask(&mut demo, Some(&own), &mut CancellingListener::new(&own, 0));
    assert_eq!(answer.stop, StopReason::Length);
    assert!(demo.engine.set_cancel_token(CancelToken::new()).is_cancelled());
    let mut inputs = [SeqInput::tokens(&mut session.sequence, &[24], LogitsRequest::Last)];
    demo.engine.step(&mut inputs, &mut |_, _, _| {}).unwrap().all().unwrap();
}
