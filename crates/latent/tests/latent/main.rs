//! The demo model as applications use it.
#![allow(missing_docs, reason = "tests")]

mod hub;
mod public_api;
mod session;
mod streaming;

use latent::engine::{Engine, EngineOptions, Session};
use latent::{
    AnswerRequest, Chat, Error, ErrorKind, GenerationUpdate, LoadOptions, LogitsProcessor, Model, Precision,
    Request, SamplingParams, StopReason, TextCodec, Tokenizer,
};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Exact precision, so that the logits of a sequence do not depend on others in the batch.
fn options(options: &mut EngineOptions) {
    (options.context, options.threads, options.precision) = (Some(512), Some(2), Precision::Exact);
}

pub(crate) fn model() -> Model {
    Model::demo().engine(options).load().unwrap()
}

/// A greedy continuation of a prompt of three tokens. The answer has exactly `tokens` tokens.
fn greedy(model: &Model, tokens: usize) -> AnswerRequest {
    let request = model.complete(vec![1, 20, 30]).temperature(0.0).max_tokens(tokens);
    request.request(|request| request.ignore_eos = true)
}

/// Holds each token back until the test permits it, or drops the sender.
struct PermittedTokens(std::sync::mpsc::Receiver<()>);

impl LogitsProcessor for PermittedTokens {
    fn process(&mut self, _tokens: &[u32], _logits: &mut [f32]) {
        let _ = self.0.recv();
    }
}

fn kind<T>(result: Result<T, Error>) -> ErrorKind {
    result.err().expect("an error").kind().clone()
}

fn argument(name: &str) -> ErrorKind {
    ErrorKind::Argument { name: Some(name.to_owned()) }
}

#[test]
fn an_answer_is_that_of_the_engine() {
    let model = model();
    let answer = model.complete("Once upon a time").temperature(0.0).max_tokens(20).finish().unwrap();
    let (checkpoint, mut own_options) = (model.checkpoint(), EngineOptions::default());
    options(&mut own_options);
    let mut engine =
        Engine::load(&*latent_backends::cpu(), checkpoint, &own_options, &mut |_, _| {}).unwrap();
    let prompt = model.text().encode("Once upon a time", true, false).unwrap();
    let sampling = SamplingParams { temperature: 0.0, ..model.recommended_sampling().clone() };
    // The end of the answer could be the start of this stop string, so that the engine holds it
    // back.
    let (tail, _) = answer.text.char_indices().rev().nth(2).unwrap();
    let stop = vec![format!("{}\0", &answer.text[tail..])];
    let request = Request { prompt, sampling, max_tokens: Some(20), stop, ..Request::default() };
    let mut heard = HeardAnswer::default();
    let own = engine.generate(&mut Session::default(), &request, model.tokenizer(), &mut heard).unwrap();
    assert_eq!((&answer.text, &answer.tokens, answer.stop), (&own.text, &own.tokens, own.stop));
    // The listener gets each token once, and then the text that was held back.
    assert_eq!((heard.tokens, heard.text + &heard.rest), (own.tokens, own.text));
    assert_eq!(heard.rest, answer.text[tail..]);
}

/// Records the tokens and texts of an answer.
#[derive(Default)]
struct HeardAnswer {
    tokens: Vec<u32>,
    text: String,
    rest: String,
}

impl latent::engine::Listener for HeardAnswer {
    fn token(&mut self, event: &latent::engine::TokenEvent<'_>) -> bool {
        self.tokens.push(event.token);
        self.text.push_str(event.text);
        true
    }

    fn rest(&mut self, text: &str) {
        self.rest.push_str(text);
    }
}

#[test]
fn a_stopped_answer_has_the_tokens_that_were_read() {
    let model = model();
    let mut generating = greedy(&model, 100).start().unwrap();
    let (mut heard, mut text) = (Vec::new(), String::new());
    while let Some(piece) = generating.next_update().unwrap() {
        if let GenerationUpdate::Token { token, text: more, .. } = piece {
            heard.push(token);
            text.push_str(&more);
        }
        if heard.len() == 7 {
            generating.stop();
        }
    }
    let answer = generating.finish().unwrap();
    assert_eq!((answer.stop, answer.usage.completion), (StopReason::Interrupted, 7));
    assert_eq!((answer.tokens, answer.text), (heard, text));
}

#[test]
fn cancelling_a_wait_ends_the_answer_but_not_the_model() {
    let model = model();
    let mut generating = model.complete(vec![20; 400]).max_tokens(100).start().unwrap();
    assert_eq!(kind(generating.next_update_while(&mut || false)), ErrorKind::Cancelled);
    assert_eq!(generating.next_update(), Ok(None));
    assert_eq!(kind(generating.finish()), ErrorKind::Cancelled);
    assert_eq!(model.logits(&[1, 2, 3]).unwrap().len(), model.description().vocab_size);
}

#[test]
fn a_canceller_ends_one_answer_and_keeps_its_text() {
    let model = model();
    let other = greedy(&model, 40).start().unwrap();
    let (permit, permits) = std::sync::mpsc::channel();
    // Without drafts each step yields one token, so that each permit stands for one token.
    let alone = greedy(&model, 400).request(|request| request.max_drafts = Some(0));
    let mut answer = alone.processor(PermittedTokens(permits)).start().unwrap();
    let canceller = answer.canceller();
    (0..5).for_each(|_| permit.send(()).unwrap());
    let text: String = answer.by_ref().take(5).map(|piece| piece.unwrap().text).collect();
    canceller.cancel();
    drop(permit);
    let done = answer.finish().unwrap();
    assert_eq!(done.stop, StopReason::Interrupted);
    assert!((5..=6).contains(&done.tokens.len()) && done.text.starts_with(&text), "{done:?}");
    // A canceller has no effect after the end of its answer, on this or another answer.
    canceller.cancel();
    let other = other.finish().unwrap();
    canceller.cancel();
    let next = greedy(&model, 40).finish().unwrap();
    assert_eq!((other.tokens.len(), next.tokens.len()), (40, 40));
    assert_eq!(other.text, next.text);
}

#[test]
fn an_answer_that_is_cancelled_at_once_has_at_most_one_token() {
    let model = model();
    let (permit, permits) = std::sync::mpsc::channel();
    let mut first = greedy(&model, 3).processor(PermittedTokens(permits)).start().unwrap();
    permit.send(()).unwrap();
    first.next().unwrap().unwrap();
    // The model's thread waits for a permit, so that the second answer has not run yet.
    let second = greedy(&model, 40).start().unwrap();
    second.canceller().cancel();
    drop(permit);
    let done = second.finish().unwrap();
    assert!(done.stop == StopReason::Interrupted && done.tokens.len() <= 1, "{done:?}");
    assert_eq!(first.finish().unwrap().tokens.len(), 3);
}

#[test]
fn cancelling_a_request_for_logits_cancels_no_answer() {
    let model = model();
    let mut answer = greedy(&model, 300).start().unwrap();
    let first = answer.next().unwrap().unwrap();
    assert_eq!(kind(model.logits_while(&[1, 2], false, &mut || false)), ErrorKind::Cancelled);
    let done = answer.finish().unwrap();
    assert_eq!((done.tokens.len(), done.tokens[0]), (300, first.token.unwrap()));
}

#[test]
fn threads_share_the_model() {
    let model = model();
    let alone = greedy(&model, 12).finish().unwrap();
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let model = model.clone();
            std::thread::spawn(move || {
                // Some threads ask for logits too, which wait until the running answers have ended.
                if i % 2 == 0 {
                    model.all_logits(&[1, 2]).unwrap();
                }
                greedy(&model, 12).finish().unwrap()
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap().text, alone.text);
    }
    let batch = latent::finish_all((0..5).map(|_| greedy(&model, 12)));
    assert!(batch.into_iter().all(|answer| answer.unwrap().text == alone.text));
}

#[test]
fn logits_do_not_depend_on_the_prefix_cache() {
    let model = model();
    let tokens: Vec<u32> = (1..=500).map(|i| i % 200).collect();
    let first = model.all_logits(&tokens).unwrap();
    // Fills the KV cache with prefixes, which have to be evicted for the second run.
    for start in 0..4 {
        let prompt: Vec<u32> = (0..400).map(|i| start + i % 100).collect();
        model.complete(prompt).max_tokens(4).finish().unwrap();
    }
    assert_eq!(model.all_logits(&tokens).unwrap(), first);
}

#[test]
fn a_conversation_is_rendered_answered_and_continued() {
    let model = model();
    let chat = Chat::new().user("Tell me a story about a fox and a lantern.");
    assert!(model.text().render(&chat).unwrap().text().contains("fox"));
    let mut answer = model.chat(chat).temperature(0.0).max_tokens(60).start().unwrap();
    let content: String = answer.by_ref().map(|piece| piece.unwrap().content).collect();
    let done = answer.finish().unwrap();
    let message = done.message.as_ref().unwrap();
    assert_eq!((message.content.as_str(), content.as_str()), (done.text.trim(), message.content.as_str()));
    let next = done.chat().unwrap().user("And then?");
    assert_eq!((next.messages().len(), &next.messages()[1]["content"]), (3, &json!(message.content)));
    let answer = model.chat(next).max_tokens(4).finish().unwrap();
    assert!(answer.usage.cached > 0, "{:?}", answer.usage);
}

#[test]
fn a_template_gets_the_bos_and_eos_tokens() {
    let model = model();
    let input = latent::text::ChatInput::of_tokenizer(json!([]), model.tokenizer());
    let name = |id: Option<u32>| model.tokenizer().token_text(id.unwrap()).unwrap();
    assert_eq!(
        (input.bos_token.as_str(), input.eos_token.as_str()),
        (name(model.tokenizer().bos()), name(model.tokenizer().eos()))
    );
    assert!(!input.eos_token.is_empty());
}

#[test]
fn embeddings_have_length_one_and_errors_name_the_text() {
    let model = model();
    let rows = model.embed(["a fox", "a lantern", "a fox"]).unwrap();
    assert_eq!((rows.len(), rows[0].len()), (3, model.description().hidden_size));
    assert_eq!(rows[0], rows[2]);
    assert!(rows.iter().all(|row| (row.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-4));
    // More texts than the queue of the scheduler has room for.
    let many = model.embed(vec!["a fox"; 700]).unwrap();
    assert!(many.iter().all(|row| *row == rows[0]));
    let error = model.embed(["fine".to_owned(), "word ".repeat(2000)]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooLong { context: 512, .. }), "{error:?}");
    assert!(error.message().starts_with("text 1: "), "{error}");
}

#[test]
fn profiles_and_plans_describe_the_steps() {
    let model = model();
    let profile = model.profile(64, 4).unwrap();
    let steps = profile["steps"].as_array().unwrap();
    assert_eq!((steps[0]["rows"].as_u64(), steps[1]["rows"].as_u64()), (Some(64), Some(1)));
    assert!(profile["limits"]["read_bandwidth"].as_f64().unwrap() > 0.0);
    assert!(matches!(kind(model.profile(512, 1)), ErrorKind::Argument { .. }));
    let plan = model.plan(1).unwrap();
    let operations = plan.operations();
    assert!(operations.len() > 10 && operations.iter().any(|operation| !operation.kernels.is_empty()));
    assert_eq!(operations.len(), plan.ir().nodes.len());
    assert_eq!(operations.iter().map(|operation| operation.phase).max(), Some(plan.phases() - 1));
    assert!(plan.text().starts_with("plan for decode") && plan.svg().unwrap().starts_with("<svg"));
    assert!(plan.html().unwrap().starts_with("<!doctype html>"));
    assert_eq!(kind(model.plan(0)), argument("rows"));
}

#[test]
fn errors_have_their_kinds() {
    assert_eq!(kind(Model::builder("/no/such/model.gguf").load()), ErrorKind::NotFound);
    assert_eq!(kind(Model::bytes("bytes", b"GGUF".to_vec()).load()), ErrorKind::File);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    std::fs::write(&file, b"GGUF").unwrap();
    assert_eq!(kind(Model::builder(&file).load()), ErrorKind::File);
    let model = model();
    assert_eq!(kind(model.complete(Vec::new()).start()), argument("prompt"));
    assert_eq!(kind(model.complete(vec![u32::MAX]).start()), argument("prompt"));
    let long = model.complete(vec![1; 600]).start().err().unwrap();
    assert_eq!(long.kind(), &ErrorKind::TooLong { tokens: 600, context: 512 });
    let largest = model.description().largest_context;
    assert!(largest > 600 && long.message().contains(&format!("up to {largest} tokens")), "{long}");
    assert!(matches!(kind(model.logits(&[u32::MAX])), ErrorKind::Argument { .. }));
    assert_eq!(kind(model.logits(&[])), argument("tokens"));
    assert_eq!(kind(model.text().decode(&[u32::MAX], false)), argument("tokens"));
    assert_eq!(kind(model.chat(Chat::new().message(json!({"content": "x"}))).start()), argument("messages"));
    assert_eq!(kind(model.chat(Chat::new()).start()), argument("messages"));
    let error = greedy(&model, 1).temperature(-1.0).start().err().unwrap();
    assert_eq!(error.kind(), &argument("temperature"));
    assert!(error.message().contains("temperature is -1"), "{error}");
    assert_eq!(kind(greedy(&model, 1).logit_bias(u32::MAX, 1.0).start()), argument("logit_bias"));
    let schema = greedy(&model, 1).json_schema(json!({"type": "nothing"})).start();
    assert_eq!(kind(schema), ErrorKind::Grammar);
    assert!(matches!(kind(Model::demo().device("tpu").load()), ErrorKind::Argument { .. }));
}

#[test]
fn a_deadline_in_the_past_fails_an_answer() {
    let model = model();
    let answer = greedy(&model, 400).deadline(Duration::ZERO).start().unwrap();
    assert!(matches!(kind(answer.finish()), ErrorKind::Deadline { .. }));
    let far = greedy(&model, 3).deadline(Duration::MAX).finish().unwrap();
    assert_eq!(far.tokens.len(), 3);
}

#[test]
fn a_full_queue_is_busy() {
    let model = Model::demo().engine(options).max_running(1).max_waiting(1).load().unwrap();
    // One answer runs and one waits. The queue has no room for some of the others.
    let running: Vec<_> = (0..6).map(|_| greedy(&model, 300).start().unwrap()).collect();
    let results: Vec<_> = running.into_iter().map(|answer| answer.finish()).collect();
    let busy = results.iter().filter_map(|result| result.as_ref().err());
    let busy: Vec<_> = busy.map(|error| error.kind().clone()).collect();
    assert!(!busy.is_empty() && busy.len() <= 5);
    for kind in busy {
        assert!(matches!(kind, ErrorKind::Busy { retry_after } if retry_after > Duration::ZERO), "{kind:?}");
    }
}

#[test]
fn loading_can_be_cancelled() {
    assert_eq!(kind(Model::demo().load_while(&mut || false)), ErrorKind::Cancelled);
}

#[test]
fn progress_reaches_all_bytes() {
    let (sender, receiver) = std::sync::mpsc::channel();
    Model::demo()
        .engine(options)
        .progress(move |done, total| sender.send((done, total)).unwrap())
        .load()
        .unwrap();
    let (done, total) = receiver.into_iter().last().unwrap();
    assert!(done == total && total > 0);
}

#[test]
fn the_engine_is_lent_between_answers() {
    let model = model();
    let answer = greedy(&model, 60).start().unwrap();
    // Runs after the answer.
    let logits = model.with_engine(3, |engine| {
        let (mut sequence, mut logits) = (Default::default(), Vec::new());
        let (tokens, wanted) = (&[1_u32, 20, 30], latent::engine::LogitsRequest::Last);
        engine.prefill(
            &mut sequence,
            tokens,
            8,
            wanted,
            &mut |_, row| logits.extend_from_slice(row),
            &mut |_| true,
        )?;
        Ok::<_, latent::engine::EngineError>(logits)
    });
    assert_eq!(logits.unwrap().unwrap(), model.logits(&[1, 20, 30]).unwrap());
    assert_eq!(answer.finish().unwrap().tokens.len(), 60);
    let error = model.with_engine(0, |_| assert!(std::process::id() == 0, "of the test")).unwrap_err();
    assert!(error.kind() == &ErrorKind::Engine && error.message().contains("of the test"), "{error}");
    assert_eq!(greedy(&model, 3).finish().unwrap().tokens.len(), 3);
}

#[test]
fn a_caller_sets_the_backend_and_the_text_side() {
    let codec = |model: &Model| {
        let numbers = Tokenizer::of_numbers(model.checkpoint().source(), model.config().vocab_size);
        TextCodec::new(numbers.unwrap(), model.checkpoint(), model.config()).unwrap()
    };
    let plain = model();
    let own = Model::demo().engine(options).text(codec(&plain));
    let own = own.backend(latent_backends::reference().into()).load().unwrap();
    assert_eq!(own.description().device, "reference");
    let (words, numbers) = (greedy(&plain, 4).finish().unwrap(), greedy(&own, 4).finish().unwrap());
    assert_eq!(words.tokens, numbers.tokens);
    let ids: Vec<String> = numbers.tokens.iter().map(ToString::to_string).collect();
    assert_eq!(numbers.text.split_whitespace().collect::<Vec<_>>(), ids);
}

#[test]
fn the_progress_of_a_prompt_is_reported_to_the_reader() {
    let model = Model::demo().engine(options).max_batch_tokens(100).load().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let progress = move |done, total| sender.send((done, total, std::thread::current().id())).unwrap();
    let request = model.complete((1..=250).collect::<Vec<u32>>()).max_tokens(2).prompt_progress(progress);
    let pieces = request.start().unwrap().map(|piece| piece.unwrap().token).collect::<Vec<_>>();
    assert_eq!(pieces.len(), 2);
    let seen: Vec<_> = receiver.into_iter().collect();
    let here = std::thread::current().id();
    assert_eq!(seen, [100, 200, 250].map(|done| (done, 250, here)));
}

#[test]
fn a_model_is_loaded_again_after_a_fault_unless_the_caller_declines() {
    for reload in [true, false] {
        let broken = Arc::new(AtomicBool::new(false));
        let fault = Arc::clone(&broken);
        let mut load = LoadOptions::default();
        options(&mut load.engine);
        load.scheduler.clock = Arc::new(move || {
            assert!(!fault.load(Ordering::SeqCst), "a fault of the test");
            Instant::now()
        });
        let model = Model::demo().options(load).reload(reload).load().unwrap();
        let mut answer = greedy(&model, 400).start().unwrap();
        answer.next().unwrap().unwrap();
        broken.store(true, Ordering::SeqCst);
        assert_eq!(kind(answer.finish()), ErrorKind::Engine);
        broken.store(false, Ordering::SeqCst);
        let next = greedy(&model, 4).finish();
        assert_eq!(next.is_ok(), reload, "{next:?}");
        assert!(reload || kind(next) == ErrorKind::Engine);
    }
}
