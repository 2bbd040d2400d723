//! The demo model as other languages use it.
#![allow(missing_docs, reason = "tests")]

use latent_bindings::{
    ChatOptions, Error, ErrorKind, GenerateOptions, GenerationUpdate, LoadOptions, ModelHandle,
};
use latent_engine::sampling::SamplingParams;
use latent_engine::{Engine, EngineOptions, Request, Session, StopReason};
use latent_graph::passes::Precision;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// Exact, so that the same tokens have the same logits alone and in a batch.
fn options() -> EngineOptions {
    EngineOptions {
        context: Some(512),
        threads: Some(2),
        precision: Precision::Exact,
        ..EngineOptions::default()
    }
}

fn model() -> ModelHandle {
    let options = LoadOptions { engine: options(), ..LoadOptions::default() };
    ModelHandle::load(None, options, &mut || true).unwrap()
}

fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max_tokens),
        sampling: SamplingParams::greedy(),
        ..GenerateOptions::default()
    }
}

fn kind<T>(result: Result<T, Error>) -> ErrorKind {
    result.err().expect("an error").kind
}

#[test]
fn an_answer_is_the_engines_own() {
    let model = model();
    let prompt = model.encode("Once upon a time", true, false).unwrap();
    let answer = model.generate(prompt.clone(), &greedy(20)).unwrap().finish(&mut || true).unwrap();
    let checkpoint = latent_bindings::open(None).unwrap();
    let mut engine = Engine::load(&*latent_backends::cpu(), &checkpoint, &options(), &mut |_, _| {}).unwrap();
    let request =
        Request { prompt, sampling: SamplingParams::greedy(), max_tokens: Some(20), ..Request::default() };
    let tokenizer = Arc::new(latent_text::Tokenizer::from_checkpoint(&checkpoint).unwrap());
    struct IgnoringListener;
    impl latent_engine::Listener for IgnoringListener {}
    let own = engine.generate(&mut Session::default(), &request, &tokenizer, &mut IgnoringListener).unwrap();
    assert_eq!((answer.text, answer.tokens, answer.stop), (own.text, own.tokens, own.stop));
}

#[test]
fn a_reader_can_stop_where_it_is() {
    let model = model();
    let mut generating = model.generate(vec![1, 20, 30], &greedy(100)).unwrap();
    let (mut heard, mut text) = (Vec::new(), String::new());
    while let Some(piece) = generating.next_piece(&mut || true).unwrap() {
        if let GenerationUpdate::Token { token, text: more, .. } = piece {
            heard.push(token);
            text.push_str(&more);
        }
        if heard.len() == 7 {
            generating.stop();
        }
    }
    let answer = generating.answer().unwrap();
    assert_eq!((answer.stop, answer.usage.completion), (StopReason::Interrupted, 7));
    assert_eq!((answer.tokens, answer.text), (heard, text));
}

#[test]
fn a_caller_who_gives_up_waiting_ends_the_answer_and_not_the_model() {
    let model = model();
    let long = vec![20; 400];
    let mut generating = model.generate(long, &greedy(100)).unwrap();
    assert_eq!(
        kind(loop {
            match generating.next_piece(&mut || false) {
                Ok(Some(_)) => {}
                other => break other,
            }
        }),
        ErrorKind::Stopped
    );
    drop(generating);
    assert_eq!(
        model.logits(vec![1, 2, 3], false, &mut || true).unwrap().len(),
        model.description().vocab_size
    );
}

#[test]
fn threads_share_the_model() {
    let model = model();
    let alone = model.generate(vec![1, 20, 30], &greedy(12)).unwrap().finish(&mut || true).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let model = model.clone();
            std::thread::spawn(move || {
                // some ask for logits meanwhile, which wait for the answers that run
                if i % 2 == 0 {
                    model.logits(vec![1, 2], true, &mut || true).unwrap();
                }
                model.generate(vec![1, 20, 30], &greedy(12)).unwrap().finish(&mut || true).unwrap()
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap().text, alone.text);
    }
}

#[test]
fn logits_do_not_depend_on_what_is_in_the_prefix_cache() {
    let model = model();
    let tokens: Vec<u32> = (1..=500).map(|i| i % 200).collect();
    let first = model.logits(tokens.clone(), true, &mut || true).unwrap();
    // fills the KV cache with prefixes, which have to go
    for start in 0..4 {
        let prompt = (0..400).map(|i| start + i % 100).collect();
        model.generate(prompt, &greedy(4)).unwrap().finish(&mut || true).unwrap();
    }
    assert_eq!(model.logits(tokens, true, &mut || true).unwrap(), first);
}

#[test]
fn a_conversation_is_rendered_answered_and_continued() {
    let model = model();
    let mut messages = json!([{"role": "user", "content": "Tell me a story about a fox and a lantern."}]);
    let prompt = model.chat_prompt(messages.clone(), &ChatOptions::default()).unwrap();
    assert!(prompt.text().contains("fox"), "{}", prompt.text());
    let answer = model.chat(&prompt, &greedy(60)).unwrap().finish(&mut || true).unwrap();
    let message = answer.message.unwrap();
    assert_eq!(message.content, answer.text.trim());
    let list = messages.as_array_mut().unwrap();
    list.extend([message.to_json(), json!({"role": "user", "content": "And then?"})]);
    let next = model.chat_prompt(messages, &ChatOptions::default()).unwrap();
    let answer = model.chat(&next, &greedy(4)).unwrap().finish(&mut || true).unwrap();
    assert!(answer.usage.cached > 0, "{:?}", answer.usage);
}

#[test]
fn embeddings_have_length_one_and_a_bad_text_is_named() {
    let model = model();
    let texts = ["a fox", "a lantern", "a fox"].map(str::to_owned);
    let values = model.embed(&texts, &mut || true).unwrap();
    let rows: Vec<&[f32]> = values.chunks(model.description().hidden_size).collect();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0], rows[2]);
    assert!(rows.iter().all(|row| (row.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-4));
    // more than a queue of the scheduler's own length would take
    let many = vec!["a fox".to_owned(); 700];
    let values = model.embed(&many, &mut || true).unwrap();
    assert!(values.chunks(model.description().hidden_size).all(|row| row == rows[0]));
    let error = model.embed(&["fine".into(), "word ".repeat(2000)], &mut || true).unwrap_err();
    assert_eq!(error.kind, ErrorKind::TooLong);
    assert!(error.message.starts_with("text 1: "), "{error}");
}

#[test]
fn a_profile_and_a_plan_say_what_steps_do() {
    let model = model();
    let profile = model.profile(64, 4, &mut || true).unwrap();
    let steps = profile["steps"].as_array().unwrap();
    assert_eq!((steps[0]["rows"].as_u64(), steps[1]["rows"].as_u64()), (Some(64), Some(1)));
    assert!(profile["limits"]["read_bandwidth"].as_f64().unwrap() > 0.0);
    assert_eq!(kind(model.profile(512, 1, &mut || true)), ErrorKind::Argument);
    let plan = model.plan(1).unwrap();
    let operations = plan.operations();
    assert!(operations.len() > 10 && operations.iter().any(|operation| !operation.kernels.is_empty()));
    assert_eq!(operations.iter().map(|operation| operation.phase).max(), Some(plan.phases() - 1));
    assert!(plan.text().starts_with("plan for decode") && plan.svg().unwrap().starts_with("<svg"));
    assert!(plan.html().unwrap().starts_with("<!doctype html>"));
    assert_eq!(kind(model.plan(0)), ErrorKind::Argument);
}

#[test]
fn errors_say_what_kind_they_are() {
    let load = |path: &Path| ModelHandle::load(Some(path), LoadOptions::default(), &mut || true);
    assert_eq!(kind(load(Path::new("/no/such/model.gguf"))), ErrorKind::NotFound);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    std::fs::write(&file, b"GGUF").unwrap();
    assert_eq!(kind(load(&file)), ErrorKind::File);
    let model = model();
    let finish = |prompt: Vec<u32>, options: &GenerateOptions| {
        model.generate(prompt, options).unwrap().finish(&mut || true)
    };
    assert_eq!(kind(finish(Vec::new(), &greedy(1))), ErrorKind::Argument);
    assert_eq!(kind(finish(vec![1; 600], &greedy(1))), ErrorKind::TooLong);
    assert_eq!(kind(model.logits(vec![u32::MAX], false, &mut || true)), ErrorKind::Argument);
    assert_eq!(kind(model.logits(Vec::new(), false, &mut || true)), ErrorKind::Argument);
    assert_eq!(kind(model.decode(&[u32::MAX], false)), ErrorKind::Argument);
    assert_eq!(
        kind(model.chat_prompt(json!([{"content": "x"}]), &ChatOptions::default())),
        ErrorKind::Argument
    );
    let mut hot = greedy(1);
    hot.sampling.temperature = -1.0;
    let error = finish(vec![1], &hot).unwrap_err();
    assert!(error.kind == ErrorKind::Argument && error.message.contains("temperature is -1"), "{error}");
}

#[test]
fn loading_can_be_given_up() {
    assert_eq!(kind(ModelHandle::load(None, LoadOptions::default(), &mut || false)), ErrorKind::Stopped);
}
