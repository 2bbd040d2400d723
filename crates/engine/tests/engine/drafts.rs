//! Drafts by the MTP layer do not change the text.

use latent_engine::cache::Sequence;
use latent_engine::sampling::SamplingParams;
use latent_engine::{
    AnswerProgress, ContextShift, Draft, DraftCount, EngineOptions, Generation, Listener, Request,
    RunningAnswer, Session,
};
use latent_graph::passes::Precision;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

use crate::support::demo::{DemoEngine, DemoListener, demo, models};

fn options(draft: Draft) -> EngineOptions {
    EngineOptions { threads: Some(1), draft, ..EngineOptions::default() }
}

/// Chats in which llama.cpp accepted 224 of 248 drafts (models/README.md).
const CHATS: [&str; 4] = [
    "Hello!",
    "Who are you?",
    "Tell me a story about a fox and a lantern.",
    "Tell me a story about an owl called Greta and a kite.",
];
const CHAT_TOKENS: usize = 400;

#[test]
fn as_many_drafts_are_accepted_as_in_llama_cpp() {
    for precision in [Precision::Default, Precision::Exact] {
        let [mut plain, mut drafting] =
            [Draft::None, Draft::Mtp].map(|draft| demo(&EngineOptions { precision, ..options(draft) }));
        let mut count = DraftCount::default();
        for chat in CHATS {
            let ask = |demo: &mut DemoEngine| {
                demo.ask(&mut Session::default(), chat, CHAT_TOKENS, &SamplingParams::greedy())
            };
            let (without, with) = (ask(&mut plain), ask(&mut drafting));
            assert_eq!(with.text, without.text, "{precision}");
            assert_eq!((with.tokens, with.stop), (without.tokens, without.stop));
            assert_eq!(without.drafts, DraftCount::default());
            count.drafted += with.drafts.drafted;
            count.accepted += with.drafts.accepted;
        }
        eprintln!("{precision}: {} of {} drafts accepted", count.accepted, count.drafted);
        assert!((count.acceptance() - 224.0 / 248.0).abs() <= 0.03, "{precision}: {count:?}");
    }
}

fn questions() -> Vec<String> {
    let lines = std::fs::read_to_string(models().join("eval.jsonl")).unwrap();
    let prompt = |line: &str| {
        let question: Value = serde_json::from_str(line).unwrap();
        question["prompt"].as_str().unwrap().to_owned()
    };
    lines.lines().map(prompt).collect()
}

/// The number of answers that have the same tokens with drafts as without, the number of questions,
/// and the count of drafts.
fn equal_answers(questions: impl Iterator<Item = String>) -> (usize, usize, DraftCount) {
    let [mut plain, mut drafting] = [Draft::None, Draft::Mtp].map(|draft| demo(&options(draft)));
    let (mut count, mut same, mut total) = (DraftCount::default(), 0, 0);
    for question in questions {
        let ask = |demo: &mut DemoEngine| {
            demo.ask(&mut Session::default(), &question, 300, &SamplingParams::greedy())
        };
        let (without, with) = (ask(&mut plain), ask(&mut drafting));
        count.drafted += with.drafts.drafted;
        count.accepted += with.drafts.accepted;
        same += usize::from((with.tokens, with.stop) == (without.tokens, without.stop));
        total += 1;
    }
    assert!(count.accepted * 10 > count.drafted * 8);
    (same, total, count)
}

#[test]
fn greedy_answers_are_the_same_with_drafts() {
    let (same, total, _) = equal_answers(questions().into_iter().step_by(30));
    assert_eq!((same, total), (10, 10));
}

#[test]
#[ignore = "all 300 questions take a minute"]
fn greedy_answers_are_the_same_with_drafts_for_all_questions() {
    let (same, total, count) = equal_answers(questions().into_iter());
    eprintln!("{} of {} drafts accepted", count.accepted, count.drafted);
    assert_eq!((same, total), (300, 300));
}

#[test]
fn a_seed_gives_the_same_text_with_drafts_whatever_the_sampler_does() {
    let [mut plain, mut drafting] = [Draft::None, Draft::Mtp].map(|draft| demo(&options(draft)));
    let default = SamplingParams::default();
    let penalties = SamplingParams { repeat_penalty: 1.3, presence_penalty: 0.4, ..default.clone() };
    let mut accepted = 0;
    for (seed, sampling) in
        (0..).zip([default.clone(), penalties, SamplingParams { temperature: 1.6, ..default }])
    {
        let sampling = SamplingParams { seed, ..sampling };
        for (question, stop) in [(CHATS[2], None), (CHATS[3], Some(" the "))] {
            let ask = |demo: &mut DemoEngine| {
                let request = Request {
                    prompt: demo.prompt(question),
                    sampling: sampling.clone(),
                    max_tokens: Some(150),
                    stop: stop.into_iter().map(str::to_owned).collect(),
                    logprobs: Some(2),
                    ..Request::default()
                };
                let mut heard = HeardTokens::default();
                let mut session = Session::default();
                let answer =
                    demo.engine.generate(&mut session, &request, &demo.tokenizer, &mut heard).unwrap();
                // Rejected drafts leave no rows in the cache.
                assert_eq!(session.sequence.len(), session.tokens().len());
                (answer, heard.0, session.tokens().to_vec())
            };
            let (without, with) = (ask(&mut plain), ask(&mut drafting));
            assert_eq!(
                (&with.0.text, &with.0.tokens, with.0.stop),
                (&without.0.text, &without.0.tokens, without.0.stop)
            );
            assert!(with.1 == without.1, "tokens, texts and log-probabilities as they come");
            assert_eq!(with.2, without.2);
            accepted += with.0.drafts.accepted;
        }
    }
    assert!(accepted > 50, "{accepted} drafts accepted");
}

/// Records the tokens with their texts and log-probabilities.
#[derive(Default, PartialEq)]
struct HeardTokens(Vec<(u32, String, Vec<u32>)>);

impl Listener for HeardTokens {
    fn token(&mut self, event: &latent_engine::TokenEvent<'_>) -> bool {
        let (own, top) = event.logprob.unwrap_or((f32::NAN, &[]));
        let bits = std::iter::once(own).chain(top.iter().map(|of| of.logprob)).map(f32::to_bits);
        self.0.push((event.token, event.text.to_owned(), bits.collect()));
        true
    }
}

#[test]
fn drafts_do_not_change_the_distribution_of_sampled_tokens() {
    const SAMPLES: u64 = 400;
    let [mut plain, mut drafting] = [Draft::None, Draft::Mtp].map(|draft| demo(&options(draft)));
    let mut accepted = 0;
    // At a temperature of 1.5 many drafts are rejected. The two samples use different seeds: with
    // the same seeds the texts would be equal token by token, which would prove nothing.
    let mut sampled = |demo: &mut DemoEngine, seeds: std::ops::Range<u64>| {
        let mut counts: Vec<HashMap<u32, f64>> = vec![HashMap::new(); 4];
        let mut session = Session::default();
        for seed in seeds {
            let sampling = SamplingParams { seed, temperature: 1.5, ..SamplingParams::default() };
            let answer = demo.ask(&mut session, "Tell me a story.", 12, &sampling);
            accepted += answer.drafts.accepted;
            for (counts, at) in counts.iter_mut().zip([3, 5, 8, 11]) {
                *counts.entry(answer.tokens.get(at).copied().unwrap_or(u32::MAX)).or_default() += 1.0;
            }
        }
        counts
    };
    let without = sampled(&mut plain, 0..SAMPLES);
    let with = sampled(&mut drafting, SAMPLES..2 * SAMPLES);
    for (place, (a, b)) in without.iter().zip(&with).enumerate() {
        // The chi-squared statistic of two samples of equal size: Σ (a − b)² / (a + b). Rare tokens
        // are one class, since the approximation needs enough counts in each class.
        let tokens: HashSet<u32> = a.keys().chain(b.keys()).copied().collect();
        let (mut chi, mut classes, mut seldom) = (0.0, 0, (0.0, 0.0));
        for token in tokens {
            let (a, b) = (a.get(&token).copied().unwrap_or(0.0), b.get(&token).copied().unwrap_or(0.0));
            if a + b < 20.0 {
                seldom = (seldom.0 + a, seldom.1 + b);
                continue;
            }
            chi += (a - b).powi(2) / (a + b);
            classes += 1;
        }
        if seldom.0 + seldom.1 > 0.0 {
            chi += (seldom.0 - seldom.1).powi(2) / (seldom.0 + seldom.1);
            classes += 1;
        }
        // The approximation of Wilson and Hilferty: a chi-squared variable of `degrees` degrees of
        // freedom exceeds this bound once in a thousand.
        let degrees = f64::from(classes - 1);
        let bound = degrees * (1.0 - 2.0 / (9.0 * degrees) + 3.09 * (2.0 / (9.0 * degrees)).sqrt()).powi(3);
        eprintln!("place {place}: {chi:.1} of {degrees} degrees, bound {bound:.1}");
        assert!(classes > 4 && chi <= bound, "place {place}: {chi:.1} of {degrees} degrees");
    }
    assert!(accepted > 600, "{accepted}");
}

#[test]
fn a_restored_session_runs_again_and_a_continued_one_does_not() {
    let mut demo = demo(&options(Draft::Mtp));
    let mut plain = self::demo(&options(Draft::None));
    let made = tempfile::tempdir().unwrap();
    let (first, path) = ("Tell me a story about a bear and a drum.", made.path().join("session"));
    let greedy = SamplingParams::greedy();
    let mut session = Session::default();
    let told = demo.ask(&mut session, first, 60, &greedy);
    let again = demo.ask(&mut session, first, 60, &greedy);
    assert_eq!((again.cached_tokens, again.tokens), (told.prompt_tokens - 1, told.tokens.clone()));
    assert!(again.drafts.accepted > 10);
    // A file does not depend on drafts: an engine without them reads it.
    demo.engine.save(&session.sequence, &path).unwrap();
    let (sequence, _) = plain.engine.restore(&path).unwrap();
    let there = plain.ask(&mut Session::from(sequence), first, 60, &greedy);
    assert_eq!((there.cached_tokens, &there.tokens), (told.prompt_tokens - 1, &told.tokens));
    let (sequence, _) = demo.engine.restore(&path).unwrap();
    let here = demo.ask(&mut Session::from(sequence), first, 60, &greedy);
    assert_eq!((here.cached_tokens, &here.tokens), (0, &told.tokens));
    assert!(here.drafts.accepted > 10);
    // Another question reuses one row less: the MTP row before the difference was computed from the
    // other token.
    let other = demo.ask(&mut session, "Tell me a story about a fox and a drum.", 60, &greedy);
    let shared = plain.ask(&mut Session::default(), "Tell me a story about a fox and a drum.", 60, &greedy);
    assert_eq!(other.tokens, shared.tokens);
    assert!(other.cached_tokens > 3 && other.drafts.accepted > 10);
    // A request without drafts in an engine with an MTP layer.
    let request = Request {
        prompt: demo.prompt(first),
        sampling: greedy,
        max_tokens: Some(60),
        max_drafts: Some(0),
        ..Request::default()
    };
    let plainly = demo.engine.generate(&mut session, &request, &demo.tokenizer, &mut DemoListener).unwrap();
    assert_eq!((plainly.tokens, plainly.drafts.drafted), (told.tokens, 0));
}

#[test]
fn a_full_context_ends_or_shifts_an_answer_as_without_drafts() {
    let small = |draft| EngineOptions { context: Some(64), ..options(draft) };
    let [mut plain, mut drafting] = [Draft::None, Draft::Mtp].map(|draft| demo(&small(draft)));
    for (shift, most) in [(None, 200), (Some(ContextShift { keep: 4, discard: 0 }), 120), (None, 7)] {
        let ask = |demo: &mut DemoEngine| {
            let request = Request {
                prompt: demo.prompt(CHATS[3]),
                sampling: SamplingParams::greedy(),
                max_tokens: Some(most),
                shift,
                ..Request::default()
            };
            demo.engine
                .generate(&mut Session::default(), &request, &demo.tokenizer, &mut DemoListener)
                .unwrap()
        };
        let (without, with) = (ask(&mut plain), ask(&mut drafting));
        assert_eq!((with.tokens, with.stop), (without.tokens, without.stop), "{shift:?}");
        assert_eq!(with.discarded_tokens, without.discarded_tokens);
        assert!(with.drafts.accepted > 1);
    }
}

#[test]
fn steps_of_few_rows_draft_as_far_as_they_can() {
    let few = |draft, most| EngineOptions { max_batch_tokens: Some(most), ..options(draft) };
    for most in [1, 2, 3, 8] {
        let [mut plain, mut drafting] = [Draft::None, Draft::Mtp].map(|draft| demo(&few(draft, most)));
        let mut sessions = [Session::default(), Session::default()];
        for (question, tokens) in [(CHATS[2], 30), (CHATS[3], 31)] {
            let without = plain.ask(&mut sessions[0], question, tokens, &SamplingParams::greedy());
            let with = drafting.ask(&mut sessions[1], question, tokens, &SamplingParams::greedy());
            assert_eq!((with.text, with.stop), (without.text, without.stop), "steps of {most}");
            assert_eq!(with.drafts.accepted > 5, most > 1, "steps of {most}: {:?}", with.drafts);
        }
    }
}

#[test]
fn a_long_prompt_goes_on_after_an_accepted_draft() {
    let mut demo = demo(&EngineOptions { max_batch_tokens: Some(16), ..options(Draft::Mtp) });
    let greedy = SamplingParams::greedy();
    for most in 3..9 {
        let mut session = Session::default();
        let first = demo.ask(&mut session, CHATS[2], most, &greedy);
        // The next prompt of the conversation follows all rows of the first, in full steps.
        let more: Vec<u32> = (0..64).map(|i| 100 + i % 50).collect();
        let prompt = [demo.prompt(CHATS[2]), first.tokens, more].concat();
        let request = Request { prompt, sampling: greedy.clone(), max_tokens: Some(5), ..Request::default() };
        let answer =
            demo.engine.generate(&mut session, &request, &demo.tokenizer, &mut DemoListener).unwrap();
        assert!(answer.cached_tokens >= first.prompt_tokens + most - 2, "{}", answer.cached_tokens);
    }
}

#[test]
fn many_answers_at_once_are_those_of_one() {
    let mut demo = demo(&EngineOptions { context: Some(2048), ..options(Draft::Mtp) });
    let mut plain = self::demo(&options(Draft::None));
    let sampling = |seed| SamplingParams { seed, ..SamplingParams::default() };
    let request = |demo: &DemoEngine, seed: u64| Request {
        prompt: demo.prompt(CHATS[seed as usize]),
        sampling: sampling(seed),
        max_tokens: Some(80),
        ..Request::default()
    };
    let mut all: Vec<(Sequence, Generation)> = (0..4)
        .map(|seed| (Sequence::default(), demo.engine.start(&request(&demo, seed), &demo.tokenizer).unwrap()))
        .collect();
    let mut together = 0;
    while all.iter().any(|(_, generation)| !generation.is_finished()) {
        let mut running: Vec<RunningAnswer<'_>> =
            all.iter_mut().map(|(sequence, generation)| RunningAnswer::new(sequence, generation)).collect();
        for progress in demo.engine.advance(&mut running).unwrap() {
            together +=
                usize::from(matches!(progress.unwrap(), AnswerProgress::Tokens(chosen) if chosen.len() == 2));
        }
    }
    let mut same = 0;
    for (seed, (sequence, generation)) in (0..).zip(&all) {
        let request = request(&demo, seed);
        let alone = plain
            .engine
            .generate(&mut Session::default(), &request, &plain.tokenizer, &mut DemoListener)
            .unwrap();
        // In default precision, the bits of a prompt may depend on other rows of its step.
        same += usize::from(generation.tokens() == alone.tokens);
        assert!(generation.drafts().accepted > 0 || generation.tokens().len() < 4);
        assert_eq!(sequence.len(), demo.prompt(CHATS[seed as usize]).len() + generation.tokens().len() - 1);
    }
    assert!(same >= 3 && together > 20, "{same} of 4 the same, {together} drafts accepted");
}
