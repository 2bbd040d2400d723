//! The worker by itself, on the demo model: Dynamo's own conformance tests, and what each field of
//! a request does.
#![allow(missing_docs, reason = "tests")]

use dynamo_backend_common::testing::{mock_context, run_conformance};
use dynamo_backend_common::{
    AsyncEngineContext, BackendError, DynamoError, ErrorType, FinishReason, GenerateContext,
    GuidedDecodingOptions, LLMEngine, LLMEngineOutput, OutputOptions, PreprocessedRequest, SamplingOptions,
    StopConditions,
};
use futures::StreamExt;
use latent_dynamo::{LatentEngine, Options, card};
use latent_formats::Checkpoint;
use latent_text::{EncodeOptions, Tokenizer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/mla-demo-Q4_K_M.gguf")
}

fn options() -> Options {
    Options {
        model: demo(),
        served_model_name: Some("demo".into()),
        parallel: 8,
        threads: Some(2),
        device: "cpu".into(),
        precision: "exact".parse().unwrap(),
        ..Options::default()
    }
}

fn engine() -> LatentEngine {
    LatentEngine::new(options(), Duration::from_secs(20))
}

async fn started() -> LatentEngine {
    let engine = engine();
    let config = engine.start(7).await.unwrap();
    assert_eq!(config.model, "demo");
    let llm = config.llm.unwrap();
    assert_eq!((llm.kv_cache_block_size, llm.context_length), (Some(64), Some(2048)));
    engine
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_checkpoint(&Checkpoint::open(&demo()).unwrap()).unwrap()
}

fn story() -> Vec<u32> {
    let text = "<｜User｜>Tell me a story about a fox and a lantern.<｜Assistant｜>";
    tokenizer().encode(text, EncodeOptions { add_special: true, parse_special: true }).unwrap()
}

/// A greedy request for as many tokens.
fn request(max_tokens: u32) -> PreprocessedRequest {
    PreprocessedRequest::builder()
        .model("demo".to_owned())
        .token_ids(story())
        .stop_conditions(StopConditions { max_tokens: Some(max_tokens), ..StopConditions::default() })
        .sampling_options(SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() })
        .output_options(OutputOptions::default())
        .build()
        .unwrap()
}

/// Tokens, the last item, and all others.
struct Heard {
    tokens: Vec<u32>,
    parts: Vec<LLMEngineOutput>,
    last: LLMEngineOutput,
}

async fn ask(engine: &LatentEngine, request: PreprocessedRequest) -> Result<Heard, DynamoError> {
    listen(engine, request, mock_context()).await
}

async fn listen(
    engine: &LatentEngine,
    request: PreprocessedRequest,
    context: Arc<dyn AsyncEngineContext>,
) -> Result<Heard, DynamoError> {
    let mut stream = engine.generate(request, GenerateContext::new(context, None)).await?;
    let mut parts = Vec::new();
    while let Some(item) = stream.next().await {
        parts.push(item?);
    }
    let tokens: Vec<u32> = parts.iter().flat_map(|part| part.token_ids.clone()).collect();
    let last = parts.pop().expect("an answer has an end");
    assert!(last.finish_reason.is_some() && parts.iter().all(|part| part.finish_reason.is_none()));
    let usage = last.completion_usage.clone().unwrap();
    assert_eq!(usage.completion_tokens as usize, tokens.len());
    Ok(Heard { tokens, parts, last })
}

fn text(tokens: &[u32]) -> String {
    let tokenizer = tokenizer();
    let ends = tokenizer.end_of_generation().to_vec();
    let bytes: Vec<u8> = tokens
        .iter()
        .filter(|token| !ends.contains(token))
        .flat_map(|token| tokenizer.piece(*token).unwrap_or_default().to_vec())
        .collect();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn dynamo_finds_that_the_worker_keeps_its_contract() {
    run_conformance(engine).await.unwrap();
}

#[tokio::test]
async fn answers_end_where_the_request_says() {
    let engine = started().await;
    let whole = ask(&engine, request(40)).await.unwrap();
    assert_eq!((whole.tokens.len(), whole.last.finish_reason), (40, Some(FinishReason::Length)));
    let again = ask(&engine, request(40)).await.unwrap();
    assert_eq!(again.tokens, whole.tokens, "greedy answers are the same again");
    let details = again.last.completion_usage.unwrap().prompt_tokens_details.unwrap();
    assert_eq!(details.cached_tokens, Some(story().len() as u32 - 1));

    // a token that ends it, the first time that it comes
    let stop = whole.tokens[10];
    let first = whole.tokens.iter().position(|token| *token == stop).unwrap();
    let mut hidden = request(40);
    hidden.stop_conditions.stop_token_ids_hidden = Some(vec![stop]);
    let ended = ask(&engine, hidden.clone()).await.unwrap();
    assert_eq!(
        (ended.tokens, ended.last.finish_reason),
        (whole.tokens[..=first].to_vec(), Some(FinishReason::Stop))
    );
    // but not before there are enough, and until then the token is not chosen
    hidden.stop_conditions.min_tokens = Some(first as u32 + 2);
    let late = ask(&engine, hidden).await.unwrap();
    assert!(late.tokens.len() >= first + 2 && !late.tokens[..=first].contains(&stop));

    // a text that ends it
    let answer = text(&whole.tokens);
    let word = answer.split_whitespace().nth(4).unwrap();
    let mut stopped = request(40);
    stopped.stop_conditions.stop = Some(vec![word.to_owned()]);
    let stopped = ask(&engine, stopped).await.unwrap();
    assert_eq!(stopped.last.finish_reason, Some(FinishReason::Stop));
    assert!(text(&stopped.tokens).contains(word) && stopped.tokens.len() < 40);

    // the model's own end, and an answer that must not have it
    let own = ask(&engine, request(1500)).await.unwrap();
    assert_eq!(own.last.finish_reason, Some(FinishReason::EoS));
    let mut on = request(own.tokens.len() as u32 + 5);
    on.stop_conditions.ignore_eos = Some(true);
    let on = ask(&engine, on).await.unwrap();
    assert_eq!((on.tokens.len(), on.last.finish_reason), (own.tokens.len() + 5, Some(FinishReason::Length)));
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn probabilities_come_with_the_tokens_when_they_are_asked_for() {
    let engine = started().await;
    let silent = ask(&engine, request(3)).await.unwrap();
    assert!(silent.parts.iter().all(|part| part.log_probs.is_none() && part.top_logprobs.is_none()));
    let mut asked = request(3);
    asked.output_options.logprobs = Some(4);
    let heard = ask(&engine, asked).await.unwrap();
    assert_eq!((&heard.tokens, heard.parts.len()), (&silent.tokens, 3));
    for part in &heard.parts {
        let (own, top) = (part.log_probs.as_ref().unwrap(), part.top_logprobs.as_ref().unwrap());
        assert_eq!((own.len(), top.len(), top[0].len()), (1, 1, 4));
        // the likeliest is chosen, and is the first
        assert_eq!((top[0][0].token_id, top[0][0].rank, top[0][0].logprob), (part.token_ids[0], 1, own[0]));
        assert!(top[0].windows(2).all(|pair| pair[0].logprob >= pair[1].logprob));
        assert!(top[0].iter().map(|other| other.logprob.exp()).sum::<f64>() <= 1.0 + 1e-6);
    }
    let mut none = request(2);
    none.output_options.logprobs = Some(0);
    let heard = ask(&engine, none).await.unwrap();
    assert!(heard.parts.iter().all(|part| part.log_probs.as_ref().unwrap().len() == 1));
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn answers_follow_their_constraints() {
    let engine = started().await;
    let guided = |guided: GuidedDecodingOptions| {
        let mut request = request(120);
        request.sampling_options.guided_decoding = Some(guided);
        request
    };
    let schema = serde_json::json!({"type": "object", "required": ["red"], "additionalProperties": false,
        "properties": {"red": {"type": "boolean"}}});
    let json = ask(&engine, guided(GuidedDecodingOptions { json: Some(schema), ..Default::default() }))
        .await
        .unwrap();
    let value: serde_json::Value = serde_json::from_str(&text(&json.tokens)).unwrap();
    assert!(value["red"].is_boolean(), "{value}");
    let regex = GuidedDecodingOptions { regex: Some("[ab]{3}-[0-9]{2}".into()), ..Default::default() };
    let answer = text(&ask(&engine, guided(regex)).await.unwrap().tokens);
    assert!(answer.len() == 6 && answer.as_bytes()[3] == b'-', "{answer:?}");
    let choice =
        GuidedDecodingOptions { choice: Some(vec!["left".into(), "right".into()]), ..Default::default() };
    let answer = text(&ask(&engine, guided(choice)).await.unwrap().tokens);
    assert!(["left", "right"].contains(&&*answer), "{answer:?}");
    let broken = GuidedDecodingOptions { regex: Some("(".into()), ..Default::default() };
    let error = ask(&engine, guided(broken)).await.err().unwrap();
    assert_eq!(error.error_type(), ErrorType::Backend(BackendError::InvalidArgument), "{error}");
    assert!(error.public_message().unwrap().contains("regular expression"), "{error}");
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_done_is_said_to_the_client() {
    let engine = started().await;
    let mut cases: Vec<(&str, PreprocessedRequest)> = Vec::new();
    let mut case = |words, change: fn(&mut PreprocessedRequest)| {
        let mut changed = request(4);
        change(&mut changed);
        cases.push((words, changed));
    };
    case("n is 2", |request| request.sampling_options.n = Some(2));
    case("prompt_logprobs", |request| request.output_options.prompt_logprobs = Some(1));
    case("logprobs is 21", |request| request.output_options.logprobs = Some(21));
    case("max_thinking_tokens", |request| request.stop_conditions.max_thinking_tokens = Some(9));
    case("temperature", |request| request.sampling_options.temperature = Some(-1.0));
    case("the context holds 2048", |request| request.token_ids = Arc::new(vec![5; 3000]));
    case("out of range", |request| request.token_ids = Arc::new(vec![5, 1 << 20]));
    case("no tokens", |request| request.token_ids = Arc::new(Vec::new()));
    for (words, request) in cases {
        let error = ask(&engine, request).await.err().unwrap_or_else(|| panic!("{words}: it was answered"));
        assert_eq!(error.error_type(), ErrorType::Backend(BackendError::InvalidArgument), "{error}");
        assert!(error.public_message().unwrap_or_default().contains(words), "{words}: {error}");
    }
    assert_eq!(ask(&engine, request(4)).await.unwrap().tokens.len(), 4);
    engine.cleanup().await.unwrap();
}

/// An answer that goes on until it is stopped.
fn endless() -> PreprocessedRequest {
    let mut request = request(100_000);
    request.stop_conditions.ignore_eos = Some(true);
    request
}

#[tokio::test]
async fn an_aborted_request_ends_and_the_others_go_on() {
    let engine = started().await;
    let alone = ask(&engine, request(30)).await.unwrap();
    let context = mock_context();
    let mut stream = engine.generate(endless(), GenerateContext::new(context.clone(), None)).await.unwrap();
    assert!(stream.next().await.unwrap().unwrap().finish_reason.is_none());
    assert_eq!(engine.is_quiescent().await.unwrap(), Some(false));
    // this alone ends the job; reading the stream is not needed
    engine.abort(context).await;
    let other = ask(&engine, request(30)).await.unwrap();
    assert_eq!(other.tokens, alone.tokens);
    let rest: Vec<_> = stream.by_ref().collect().await;
    assert_eq!(rest.last().unwrap().as_ref().unwrap().finish_reason, Some(FinishReason::Cancelled));
    assert!(rest.len() < 1500, "{} tokens after the end", rest.len());
    drop(stream);
    // one that is dropped is forgotten too
    let stream = engine.generate(endless(), GenerateContext::new(mock_context(), None)).await.unwrap();
    drop(stream);
    assert_eq!(engine.is_quiescent().await.unwrap(), Some(true));
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn at_the_end_running_answers_are_finished_and_no_more_are_taken() {
    let engine = Arc::new(started().await);
    let mut stream = engine.generate(request(200), GenerateContext::new(mock_context(), None)).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    let (mut tokens, mut end) = (first.token_ids, None);
    let own = Arc::clone(&engine);
    let ending = tokio::spawn(async move { own.cleanup().await });
    while let Some(item) = stream.next().await {
        assert!(!ending.is_finished(), "the end does not wait for who reads");
        let item = item.unwrap();
        tokens.extend(item.token_ids);
        end = item.finish_reason;
    }
    drop(stream);
    ending.await.unwrap().unwrap();
    assert!(
        matches!(end, Some(FinishReason::EoS | FinishReason::Length)),
        "{end:?} after {} tokens",
        tokens.len()
    );
    let error = ask(&engine, request(3)).await.err().unwrap();
    assert_eq!(error.error_type(), ErrorType::Backend(BackendError::EngineShutdown));
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn what_has_no_time_to_end_is_left_to_another_worker() {
    let engine = LatentEngine::new(options(), Duration::ZERO);
    engine.start(1).await.unwrap();
    let mut stream = engine.generate(endless(), GenerateContext::new(mock_context(), None)).await.unwrap();
    stream.next().await.unwrap().unwrap();
    engine.cleanup().await.unwrap();
    let rest: Vec<_> = stream.collect().await;
    let error = rest.last().unwrap().as_ref().unwrap_err();
    // what the frontend sends to another worker
    assert_eq!(error.error_type(), ErrorType::Backend(BackendError::EngineShutdown), "{error}");
}

#[tokio::test]
async fn requests_of_an_engine_that_fails_are_left_to_another_worker() {
    let steps = AtomicUsize::new(0);
    let hook = move || assert!(steps.fetch_add(1, Ordering::SeqCst) < 20, "the test's fault");
    let engine = engine().with_hook(Arc::new(hook));
    engine.start(1).await.unwrap();
    let both = [endless(), endless()].map(|request| ask(&engine, request));
    for heard in futures::future::join_all(both).await {
        let error = heard.err().unwrap();
        assert_eq!(error.error_type(), ErrorType::Backend(BackendError::EngineShutdown), "{error}");
        assert!(error.message().contains("the test's fault"), "{error}");
    }
    let error = ask(&engine, request(3)).await.err().unwrap();
    assert_eq!(error.error_type(), ErrorType::Backend(BackendError::EngineShutdown), "{error}");
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn a_model_that_is_not_there_is_an_error_that_names_it() {
    let missing = Options { model: "/nowhere/model.gguf".into(), ..options() };
    let engine = LatentEngine::new(missing.clone(), Duration::ZERO);
    let error = engine.start(0).await.unwrap_err();
    assert!(error.message().contains("/nowhere/model.gguf"), "{error}");
    engine.cleanup().await.unwrap();
    assert!(card(&missing).err().unwrap().to_string().contains("/nowhere/model.gguf"));
}

#[test]
fn replicas_show_the_frontend_the_same_folder() {
    let cards = tempfile::tempdir().unwrap();
    let made = Options { cards: Some(cards.path().to_owned()), ..options() };
    let folder = card(&made).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        assert!(serde_json::from_str::<serde_json::Value>(&read(name)).unwrap().is_object(), "{name}");
    }
    // what somebody has broken is mended
    let config = read("config.json");
    std::fs::write(folder.join("config.json"), "{").unwrap();
    assert_eq!(card(&made).unwrap(), folder);
    assert_eq!(read("config.json"), config);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 4, "nothing else is left there");
    let empty = tempfile::tempdir().unwrap();
    let given = Options { model_files: Some(empty.path().to_owned()), ..options() };
    assert!(card(&given).err().unwrap().to_string().contains("config.json"));
}
