//! Jobs that generate beyond a full context.

use crate::support::demo::{self, DemoEngine};
use crate::support::jobs::{HeardEvents, alone, nothing_is_left, options, prompt, request, scheduler};
use latent_engine::scheduler::{Job, JobChoice, JobId, Scheduler, SchedulerOptions};
use latent_engine::{ContextShift, Draft, EngineOptions, Request, StopReason};
use latent_text::Tokenizer;
use std::sync::Arc;

fn shifting(tokenizer: &Tokenizer, prompt: Vec<u32>, tokens: usize, shift: ContextShift) -> Request {
    Request { shift: Some(shift), ..request(tokenizer, prompt, tokens) }
}

fn submit(scheduler: &mut Scheduler, request: &Request) -> JobId {
    scheduler.submit(Job { request: request.clone(), ..Job::default() }).unwrap()
}

#[test]
fn jobs_shift_with_other_jobs_as_they_do_alone() {
    for draft in [Draft::None, Draft::Mtp] {
        let DemoEngine { mut engine, tokenizer, .. } =
            demo::demo(&EngineOptions { draft, ..options(128, 2048) });
        let shift = |keep, discard| ContextShift { keep, discard };
        let mut requests = [
            shifting(&tokenizer, prompt(0, 40), 300, shift(0, 0)),
            shifting(&tokenizer, prompt(0, 100), 250, shift(4, 10)),
            shifting(&tokenizer, prompt(1, 127), 200, shift(70, 0)),
            shifting(&tokenizer, prompt(2, 5), 60, shift(5, 0)),
            request(&tokenizer, prompt(0, 70), 40),
            shifting(&tokenizer, prompt(0, 100), 150, shift(100, usize::MAX)),
        ];
        (requests[1].sampling.temperature, requests[1].sampling.seed) = (0.8, 7);
        let answers: Vec<_> =
            requests.iter().map(|request| alone(&mut engine, &tokenizer, request)).collect();
        assert!(answers[0].discarded_tokens >= 3 * 32 && answers[3].discarded_tokens == 0);
        let mut scheduler = Scheduler::new(engine, Arc::clone(&tokenizer), SchedulerOptions::default());
        let mut heard = HeardEvents::default();
        // In the second round, the prompts are cached.
        for round in 0..2 {
            let ids: Vec<_> = requests
                .iter()
                .map(|request| {
                    let id = submit(&mut scheduler, request);
                    heard.steps(&mut scheduler, 3);
                    id
                })
                .collect();
            heard.run(&mut scheduler);
            for (id, answer) in ids.iter().zip(&answers) {
                heard.is_answer(*id, answer);
                let (.., usage) = heard.finished(*id);
                assert_eq!(usage.discarded, answer.discarded_tokens);
                assert!(draft == Draft::None || usage.drafts.accepted > 0, "{round}");
            }
        }
        // The rows after a shift were computed with tokens that are discarded now, so that they
        // must not be cached as rows of the text that is left.
        let cut: Vec<u32> =
            requests[0].prompt[..0].iter().chain(&answers[0].tokens[200..299]).copied().collect();
        let rest = request(&tokenizer, cut, 20);
        let id = submit(&mut scheduler, &rest);
        heard.run(&mut scheduler);
        assert_eq!(heard.cached(id), 0);
        nothing_is_left(&mut scheduler);
        let mut engine = scheduler.into_engine();
        heard.is_answer(id, &alone(&mut engine, &tokenizer, &rest));
    }
}

#[test]
fn shifting_jobs_can_be_preempted() {
    let mut scheduler = scheduler(192, 384, SchedulerOptions::default());
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let shift = ContextShift { keep: 10, discard: 0 };
    let requests: Vec<_> = (0..3).map(|kind| shifting(&tokenizer, prompt(kind, 30), 350, shift)).collect();
    let ids: Vec<_> = requests.iter().map(|request| submit(&mut scheduler, request)).collect();
    let mut heard = HeardEvents::default();
    heard.run(&mut scheduler);
    for id in ids {
        let (reason, _, usage) = heard.finished(id);
        assert_eq!((reason, usage.prompt, usage.completion), (StopReason::Length, 30, 350));
        assert!(usage.discarded >= 380 - 192, "{usage:?}");
        assert_eq!(heard.tokens(id).len(), 350);
    }
    let stats = nothing_is_left(&mut scheduler);
    assert!(stats.preemptions > 0, "{stats:?}");
}

#[test]
fn a_shifted_job_runs_its_remaining_tokens_again_after_preemption() {
    let options = SchedulerOptions { max_running: 1, ..SchedulerOptions::default() };
    let mut scheduler = scheduler(128, 512, options);
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let asked = shifting(&tokenizer, prompt(0, 40), 300, ContextShift { keep: 6, discard: 0 });
    let id = submit(&mut scheduler, &asked);
    let mut heard = HeardEvents::default();
    heard.steps(&mut scheduler, 200);
    let before = heard.tokens(id);
    // A job of higher priority preempts it.
    let other = Job { priority: 1, request: request(&tokenizer, prompt(1, 50), 5), ..Job::default() };
    let other = scheduler.submit(other).unwrap();
    heard.run(&mut scheduler);
    assert_eq!(heard.finished(other).2.completion, 5);
    let (reason, _, usage) = heard.finished(id);
    assert_eq!((reason, usage.completion, usage.preemptions), (StopReason::Length, 300, 1));
    assert!(heard.tokens(id).starts_with(&before) && before.len() > 150);
    nothing_is_left(&mut scheduler);
    let mut engine = scheduler.into_engine();
    let answer = alone(&mut engine, &tokenizer, &asked);
    assert!(answer.tokens.starts_with(&before));
    assert_eq!(answer.discarded_tokens, usage.discarded);
}

#[test]
fn choices_of_one_prompt_shift_independently() {
    // A shift has to copy the blocks that the four choices share. The cache has eight blocks, too
    // few for four copies of a prompt of four.
    let mut scheduler = scheduler(256, 512, SchedulerOptions::default());
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let mut asked = shifting(&tokenizer, prompt(3, 200), 200, ContextShift { keep: 3, discard: 0 });
    asked.sampling.temperature = 1.0;
    let choices = (1..4).map(|seed| JobChoice { seed, ..JobChoice::default() }).collect();
    let ids = scheduler.submit_choices(Job { request: asked, ..Job::default() }, choices).unwrap();
    let mut heard = HeardEvents::default();
    heard.run(&mut scheduler);
    for id in ids {
        let (reason, _, usage) = heard.finished(id);
        assert_eq!((reason, usage.completion), (StopReason::Length, 200));
        assert!(usage.discarded > 0);
    }
    nothing_is_left(&mut scheduler);
}

#[test]
fn an_answer_without_a_limit_ends_at_the_models_context() {
    let mut scheduler = scheduler(64, 128, SchedulerOptions::default());
    let tokenizer = Arc::clone(scheduler.tokenizer());
    let limit = scheduler.engine().config().context_length;
    let asked = Request {
        max_tokens: None,
        ..shifting(&tokenizer, prompt(3, 20), 1, ContextShift { keep: 3, discard: 0 })
    };
    let id = submit(&mut scheduler, &asked);
    let mut heard = HeardEvents::default();
    heard.run(&mut scheduler);
    let (reason, _, usage) = heard.finished(id);
    assert_eq!((reason, usage.completion), (StopReason::Length, limit));
    nothing_is_left(&mut scheduler);
}
