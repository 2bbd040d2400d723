//! Limits and bans of a request in one answer, in a scheduler, and with drafts.

use crate::support::demo::{DemoEngine, DemoListener, demo};
use crate::support::jobs::{HeardEvents, engine, options, prompt, request, scheduler};
use latent_engine::sampling::{Sampler, SamplerKind, SamplingParams};
use latent_engine::scheduler::{Job, SchedulerOptions};
use latent_engine::{Draft, EngineOptions, Request, Session, StopReason};
use std::time::Duration;

fn answer(demo: &mut DemoEngine, request: &Request) -> latent_engine::Answer {
    demo.engine.generate(&mut Session::default(), request, &demo.tokenizer, &mut DemoListener).unwrap()
}

#[test]
fn drafts_do_not_change_answers_of_samplers_with_state() {
    let drafting = |draft| EngineOptions { draft, ..options(512, 512) };
    let [mut plain, mut drafted] = [Draft::None, Draft::Mtp].map(|draft| demo(&drafting(draft)));
    let base = SamplingParams { temperature: 0.7, seed: 3, ..SamplingParams::default() };
    let chains = [
        SamplingParams { mirostat: 1, mirostat_tau: 2.0, ..base.clone() },
        SamplingParams { mirostat: 2, mirostat_tau: 2.0, ..base.clone() },
        SamplingParams { adaptive_target: 0.6, ..base.clone() },
        SamplingParams { dynatemp_range: 0.5, top_n_sigma: 2.0, ..base.clone() },
        SamplingParams { samplers: Some(vec![SamplerKind::Temperature, SamplerKind::TopK]), ..base.clone() },
        base,
    ];
    let mut accepted = 0;
    for sampling in chains {
        for question in ["Tell me a story about a fox and a lantern.", "What is 7 + 8?"] {
            let request = Request {
                prompt: plain.prompt(question),
                sampling: sampling.clone(),
                max_tokens: Some(60),
                min_tokens: 20,
                bad_words: vec![vec![20], vec![301, 323]],
                ..Request::default()
            };
            let (without, with) = (answer(&mut plain, &request), answer(&mut drafted, &request));
            assert_eq!((with.tokens, with.stop), (without.tokens, without.stop), "{sampling:?}");
            accepted += with.drafts.accepted;
        }
    }
    assert!(accepted > 30, "{accepted} drafts accepted");
}

#[test]
fn bans_and_ends_hold_for_every_token() {
    let mut demo = demo(&options(512, 512));
    let base = Request {
        prompt: demo.prompt("Who are you?"),
        sampling: SamplingParams::greedy(),
        max_tokens: Some(80),
        ..Request::default()
    };
    let whole = answer(&mut demo, &base);
    assert!(whole.stop == StopReason::End && whole.tokens.len() > 12, "{whole:?}");
    let (first, then) = (whole.tokens[3], whole.tokens[4]);
    let without = answer(&mut demo, &Request { bad_words: vec![vec![first, then]], ..base.clone() });
    assert_eq!(without.tokens[..4], whole.tokens[..4]);
    assert!(without.tokens.windows(2).all(|pair| pair != [first, then]) && without.tokens[4] != then);
    let single = answer(&mut demo, &Request { bad_words: vec![vec![first], vec![]], ..base.clone() });
    assert!(!single.tokens.contains(&first));
    let at = (2..).find(|at| !whole.tokens[..*at].contains(&whole.tokens[*at])).unwrap();
    let stopped = answer(&mut demo, &Request { stop_tokens: vec![whole.tokens[at]], ..base.clone() });
    assert_eq!((&stopped.tokens[..], stopped.stop), (&whole.tokens[..=at], StopReason::End));
    let count = whole.tokens.len() + 10;
    let longer =
        Request { min_tokens: count, stop_tokens: vec![whole.tokens[at]], max_tokens: None, ..base.clone() };
    let longer = answer(&mut demo, &longer);
    assert!(longer.tokens.len() > count && longer.tokens[..at] == whole.tokens[..at]);
    assert!(!longer.tokens[..count].contains(&whole.tokens[at]));
    let endless = answer(&mut demo, &Request { ignore_eos: true, ..base.clone() });
    assert_eq!((endless.tokens.len(), endless.stop), (80, StopReason::Length));
    let late = Request { max_prompt_time: Some(Duration::ZERO), ..base };
    let late = answer(&mut demo, &late);
    assert_eq!((late.tokens.len(), late.text.as_str(), late.stop), (0, "", StopReason::Length));
}

#[test]
fn jobs_without_the_cache_run_their_whole_prompt() {
    let mut scheduler = scheduler(512, 1024, SchedulerOptions::default());
    let (_, tokenizer) = engine(512, 512);
    let job = |uncached| Job { request: request(&tokenizer, prompt(1, 150), 3), uncached, ..Job::default() };
    let mut cached = |uncached: bool| {
        let id = scheduler.submit(job(uncached)).unwrap();
        let mut heard = HeardEvents::default();
        heard.run(&mut scheduler);
        (heard.cached(id), heard.tokens(id))
    };
    let first = cached(false);
    assert_eq!(first.0, 0);
    assert!(cached(false).0 > 100);
    assert_eq!(cached(true), first);
    assert!(cached(false).0 > 100);
}

#[test]
fn a_job_whose_prompt_takes_too_long_ends_without_a_token() {
    let mut scheduler = scheduler(512, 1024, SchedulerOptions::default());
    let (_, tokenizer) = engine(512, 512);
    let limited = |limit| Job {
        request: Request { max_prompt_time: Some(limit), ..request(&tokenizer, prompt(2, 400), 3) },
        ..Job::default()
    };
    let ids =
        [Duration::ZERO, Duration::from_secs(3600)].map(|limit| scheduler.submit(limited(limit)).unwrap());
    let mut heard = HeardEvents::default();
    heard.run(&mut scheduler);
    let (reason, _, usage) = heard.finished(ids[0]);
    assert_eq!((reason, usage.completion, heard.tokens(ids[0]).len()), (StopReason::Length, 0, 0));
    assert_eq!(heard.tokens(ids[1]).len(), 3);
}

#[test]
fn the_infill_sampler_ends_or_joins_tokens() {
    let (_, tokenizer) = engine(512, 512);
    let vocab = tokenizer.vocab_size();
    let params =
        SamplingParams { samplers: Some(vec![SamplerKind::Infill]), seed: 1, ..SamplingParams::default() };
    // The tokens that are sampled from these probabilities in many draws.
    let possible = |probabilities: &[(u32, f32)]| {
        let mut logits = vec![f32::NEG_INFINITY; vocab];
        probabilities.iter().for_each(|(id, p)| logits[*id as usize] = p.ln());
        let mut sampler = Sampler::of_tokenizer(params.clone(), vocab, &tokenizer).unwrap();
        let mut ids: Vec<u32> = (0..300).map(|_| sampler.sample(&logits).unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let end = tokenizer.eos().unwrap();
    let piece = |id: u32| tokenizer.piece(id).unwrap_or_default();
    let words: Vec<u32> =
        (0..vocab as u32).filter(|id| !tokenizer.is_special(*id) && piece(*id).len() > 1).collect();
    let begins = |a: u32, b: u32| piece(b).starts_with(piece(a)) || piece(a).starts_with(piece(b));
    let (short, long) = words
        .iter()
        .flat_map(|a| words.iter().map(move |b| (*a, *b)))
        .find(|(a, b)| a != b && piece(*b).starts_with(piece(*a)))
        .unwrap();
    let apart =
        |others: &[u32]| *words.iter().find(|id| others.iter().all(|other| !begins(**id, *other))).unwrap();
    let other = apart(&[short, long]);
    // The end token is likely enough for this number of candidates, so that it is the only choice.
    assert_eq!(possible(&[(short, 0.45), (other, 0.4), (end, 0.15)]), [end]);
    // If one token is a prefix of another, the likelier of the two gets the probability of both.
    let mut expected = [short, other];
    expected.sort_unstable();
    assert_eq!(possible(&[(short, 0.3), (long, 0.25), (other, 0.45)]), expected);
    assert_eq!(possible(&[(short, 0.1), (long, 0.1), (other, 0.8)]), [other]);
    // If no token is likely, the answer ends.
    let mut many = vec![short];
    while many.len() < 8 {
        many.push(apart(&many));
    }
    assert_eq!(possible(&many.iter().map(|id| (*id, 0.125)).collect::<Vec<_>>()), [end]);
}
