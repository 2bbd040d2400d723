//! N-gram drafts do not change the text, whichever of them are accepted.

use crate::support::demo::{DemoEngine, DemoListener, demo};
use crate::support::{bits, checkpoint, engine, exhaustive, sample_of, tiers, weight_types};
use latent_engine::cache::Sequence;
use latent_engine::sampling::SamplingParams;
use latent_engine::{
    AnswerProgress, ContextShift, Draft, Engine, EngineOptions, Generation, LogitsProcessor, LogitsRequest,
    Request, RunningAnswer, SeqInput, Session,
};
use latent_graph::passes::Precision;
use latent_testing::{ModelRecipe, RandomWeightTypes};
use latent_types::CacheType;

fn options(draft: Draft) -> EngineOptions {
    // With a cost of 0, all drafts are verified on every machine. Otherwise the measured cost of a
    // row would decide.
    EngineOptions { threads: Some(1), draft, draft_cost: Some(0.0), ..EngineOptions::default() }
}

fn pair(options: impl Fn(Draft) -> EngineOptions) -> [DemoEngine; 2] {
    [Draft::None, Draft::Ngram].map(|draft| demo(&options(draft)))
}

/// Stories whose answers repeat words of the prompt and of themselves.
const QUESTIONS: [&str; 3] = [
    "Tell me a story about a fox and a lantern.",
    "Tell me a story about an owl called Greta and a kite.",
    "Repeat: the fox and the owl and the fox and the owl and the fox and the owl and the fox",
];

fn request(demo: &DemoEngine, question: &str) -> Request {
    Request {
        prompt: demo.prompt(question),
        sampling: SamplingParams::greedy(),
        max_tokens: Some(300),
        ..Request::default()
    }
}

fn answer(demo: &mut DemoEngine, request: &Request) -> (latent_engine::Answer, Session) {
    let mut session = Session::default();
    let answer = demo.engine.generate(&mut session, request, &demo.tokenizer, &mut DemoListener).unwrap();
    (answer, session)
}

#[test]
fn greedy_and_sampled_answers_are_the_same_with_drafts() {
    let [mut plain, mut drafting] = pair(options);
    let default = SamplingParams::default();
    let penalties = SamplingParams { repeat_penalty: 1.2, presence_penalty: 0.4, ..default.clone() };
    let mut accepted = 0;
    for question in QUESTIONS {
        for (seed, sampling) in (7..).zip([SamplingParams::greedy(), default.clone(), penalties.clone()]) {
            for stop in [None, Some(" the ")] {
                let request = Request {
                    sampling: SamplingParams { seed, ..sampling.clone() },
                    stop: stop.into_iter().map(str::to_owned).collect(),
                    ..request(&plain, question)
                };
                let (without, with) = (answer(&mut plain, &request), answer(&mut drafting, &request));
                assert_eq!((&with.0.text, &with.0.tokens), (&without.0.text, &without.0.tokens));
                assert_eq!(with.0.stop, without.0.stop);
                // Rejected drafts leave no rows in the cache.
                assert_eq!(with.1.tokens(), without.1.tokens());
                assert_eq!(with.1.sequence.len(), without.1.sequence.len());
                assert_eq!(without.0.drafts.drafted, 0);
                accepted += with.0.drafts.accepted;
            }
        }
    }
    // The number depends on the texts, which differ between machines.
    assert!(accepted > 0, "no draft was accepted");
}

#[test]
fn answers_end_where_they_end_without_drafts() {
    let small = |draft| EngineOptions { context: Some(96), max_batch_tokens: Some(8), ..options(draft) };
    let [mut plain, mut drafting] = pair(small);
    for shift in [None, Some(ContextShift { keep: 4, discard: 0 })] {
        for most in [1, 2, 3, 7, 20, 150] {
            let request = Request { max_tokens: Some(most), shift, ..request(&plain, QUESTIONS[2]) };
            let (without, with) = (answer(&mut plain, &request).0, answer(&mut drafting, &request).0);
            assert_eq!((with.tokens, with.stop), (without.tokens, without.stop), "{most} {shift:?}");
            assert_eq!(with.discarded_tokens, without.discarded_tokens);
        }
    }
    for most in 0..=2 {
        let request = Request { max_drafts: Some(most), ..request(&plain, QUESTIONS[2]) };
        let drafts = answer(&mut drafting, &request).0.drafts;
        assert!(drafts.drafted <= most * drafts.steps, "{most}: {drafts:?}");
    }
}

/// Forbids a token once an even number of tokens was chosen.
struct EvenBan(usize);

impl LogitsProcessor for EvenBan {
    fn process(&mut self, context: &[u32], logits: &mut [f32]) {
        if (context.len() - self.0).is_multiple_of(2) {
            logits[usize::from(context.last().is_some_and(|last| *last > 300)) + 260] = f32::NEG_INFINITY;
        }
    }
}

#[test]
fn processors_see_every_token_as_without_drafts() {
    let [mut plain, mut drafting] = pair(options);
    let request = request(&plain, QUESTIONS[2]);
    let prompt = request.prompt.len();
    let ask = |demo: &mut DemoEngine| {
        let processors: Vec<Box<dyn LogitsProcessor>> = vec![Box::new(EvenBan(prompt))];
        let session = &mut Session::default();
        let answer =
            demo.engine.generate_with(session, &request, &demo.tokenizer, processors, &mut DemoListener);
        answer.unwrap()
    };
    let (without, with) = (ask(&mut plain), ask(&mut drafting));
    assert_eq!((with.tokens, with.stop), (without.tokens, without.stop));
}

#[test]
fn both_kinds_of_drafts_give_the_text_of_none() {
    let [mut plain, mut both] = [Draft::None, Draft::All].map(|draft| demo(&options(draft)));
    let (mut accepted, mut drafted) = (0, 0);
    for question in QUESTIONS {
        let request = request(&plain, question);
        let (without, with) = (answer(&mut plain, &request).0, answer(&mut both, &request).0);
        assert_eq!((with.tokens, with.stop), (without.tokens, without.stop), "{question}");
        accepted += with.drafts.accepted;
        drafted += with.drafts.drafted;
    }
    assert!(accepted > 100 && drafted > accepted, "{accepted} of {drafted}");
}

#[test]
fn many_answers_at_once_share_the_rows_of_a_step() {
    let mut demo = demo(&EngineOptions { cache_tokens: Some(8192), ..options(Draft::Ngram) });
    let mut plain = self::demo(&options(Draft::None));
    for count in [2, 5, 12] {
        let mut together = 0;
        let requests: Vec<Request> =
            (0..count).map(|at| request(&demo, QUESTIONS[(at + 2) % QUESTIONS.len()])).collect();
        let start = |request: &Request| demo.engine.start(request, &demo.tokenizer).unwrap();
        let mut all: Vec<(Sequence, Generation)> =
            requests.iter().map(|request| (Sequence::default(), start(request))).collect();
        while all.iter().any(|(_, generation)| !generation.is_finished()) {
            let mut running: Vec<RunningAnswer<'_>> = all
                .iter_mut()
                .map(|(sequence, generation)| RunningAnswer::new(sequence, generation))
                .collect();
            for progress in demo.engine.advance(&mut running).unwrap() {
                if let AnswerProgress::Tokens(chosen) = progress.unwrap() {
                    together += chosen.len() - 1;
                }
            }
        }
        let mut same = 0;
        for (request, (sequence, generation)) in requests.iter().zip(&all) {
            let alone = answer(&mut plain, request).0;
            // In default precision, the bits of a prompt may depend on other rows of its step.
            same += usize::from(generation.tokens() == alone.tokens);
            assert_eq!(sequence.len(), request.prompt.len() + generation.tokens().len() - 1);
        }
        assert!(same * 4 >= 3 * count, "{same} of {count} the same");
        assert!(together > 0, "{count} answers have no accepted draft");
    }
}

/// Logits of the tokens `next` after a prompt: in one step as drafts, or in a step each.
fn after(engine: &mut Engine, prompt: &[u32], next: &[u32], together: bool) -> Vec<Vec<f32>> {
    let mut sequence = Sequence::default();
    engine.prefill(&mut sequence, prompt, 64, LogitsRequest::Nothing, &mut |_, _| {}, &mut |_| true).unwrap();
    let mut rows = Vec::new();
    for part in next.chunks(if together { next.len() } else { 1 }) {
        let mut inputs = [SeqInput::drafted(&mut sequence, part)];
        engine.step(&mut inputs, &mut |_, _, logits| rows.push(logits.to_vec())).unwrap().all().unwrap();
    }
    rows
}

#[test]
fn a_token_and_eight_drafts_have_the_bits_of_nine_steps() {
    let made = tempfile::tempdir().unwrap();
    let caches = [None, Some(CacheType::Int8), Some(CacheType::Bf16), Some(CacheType::Q4_0)];
    let types: Vec<_> = weight_types().collect();
    let prompts: Vec<Vec<u32>> =
        [3, 300].map(|length| (0..length as u32).map(|i| i * 37 % 188 + 3).collect()).into();
    for (turn, tier) in tiers().into_iter().enumerate() {
        let every = if exhaustive() { 1 } else { 6 };
        for (n, ty) in sample_of(types.iter().enumerate(), turn, every) {
            let shape = ["tiny-v3", "tiny-glm", "tiny-v2"][n % 3];
            let path = made.path().join(format!("{n}-{turn}.gguf"));
            let recipe =
                ModelRecipe { layers: Some(2), ..ModelRecipe::new(shape, RandomWeightTypes::from(*ty)) };
            recipe.write_gguf(&path).unwrap();
            let file = checkpoint(&path);
            for precision in sample_of([Precision::Default, Precision::Exact], (n + turn) / every, 2) {
                let cache = caches[n % caches.len()];
                let options = EngineOptions {
                    threads: Some(2),
                    context: Some(512),
                    tier: Some(tier),
                    precision,
                    cache,
                    ..EngineOptions::default()
                };
                let mut engine = engine(&file, &options);
                for (prompt, rows) in prompts.iter().zip([9, 5]) {
                    let next: Vec<u32> = (0..rows).map(|i| i * 31 % 150 + 9).collect();
                    let [one, many] = [true, false].map(|t| bits(&after(&mut engine, prompt, &next, t)));
                    assert!(
                        one == many,
                        "{shape} of {ty} {tier} {precision} {cache:?} after {}",
                        prompt.len()
                    );
                }
            }
        }
    }
}
