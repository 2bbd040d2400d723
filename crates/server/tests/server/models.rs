//! Several models in one server.

use crate::client::receive;
use crate::support::{CHAT, TestServer, ask, config, loader, loader_of, open_demo, source, until, wrap};
use latent_engine::{Engine, EngineError, EngineOptions};
use latent_formats::Checkpoint;
use latent_server::{Extras, LoadAttempt, Loader, ModelSource, Server, ServerConfig};
use latent_testing::ModelRecipe;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// A random model in this folder.
pub fn tiny(folder: &Path) -> Loader {
    let path = folder.join("tiny.gguf");
    ModelRecipe::new("tiny-v3", "Q4_K_M".parse().unwrap()).write_gguf(&path).unwrap();
    loader_of("tiny", Box::new(move || Arc::new(Checkpoint::open(&path).unwrap())))
}

fn demo() -> Loader {
    loader_of("demo", Box::new(open_demo))
}

pub fn both(folder: &Path) -> Vec<ModelSource> {
    vec![source("demo", demo()), source("tiny", tiny(folder))]
}

pub fn serve(config: ServerConfig, models: Vec<ModelSource>) -> TestServer {
    let server = Server::start(config, models, Extras::default()).unwrap();
    server.wait_loaded(Duration::from_secs(10)).expect("nothing is loaded yet").unwrap();
    wrap(server)
}

pub fn state(server: &TestServer, name: &str) -> String {
    let list = server.get("/v1/models").ok();
    let entry = list["data"].as_array().unwrap().iter().find(|entry| entry["id"] == name).unwrap();
    entry["status"]["value"].as_str().unwrap().to_owned()
}

/// The value of a model's metric.
fn figure(server: &TestServer, name: &str, model: &str) -> String {
    let page = server.get("/metrics").text();
    let begin = format!("{name}{{model=\"{model}\"}} ");
    page.lines()
        .find_map(|line| line.strip_prefix(&begin))
        .unwrap_or_else(|| panic!("{begin}: {page}"))
        .to_owned()
}

/// The error of a cache that no machine can hold.
fn out_of_memory() -> EngineError {
    let options = EngineOptions { cache_tokens: Some(u32::MAX as usize), ..EngineOptions::default() };
    match Engine::load(&*latent_backends::cpu(), &open_demo(), &options, &mut |_, _| {}) {
        Err(error @ EngineError::Memory(_)) => error,
        other => panic!("{:?}", other.map(|_| ())),
    }
}

pub fn long(model: &str, tokens: usize) -> Value {
    ask(json!({"model": model, "max_tokens": tokens, "ignore_eos": true, "stream": true}))
}

/// The number of tokens of a stream, which must have ended by its length.
pub fn whole(chunks: &[Value]) -> u64 {
    let last = &chunks[chunks.len() - 1];
    assert_eq!(last["choices"][0]["finish_reason"], "length", "{last}");
    last["timings"]["predicted_n"].as_u64().unwrap()
}

#[test]
fn models_are_loaded_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(config(), both(folder.path()));
    server.get("/health").ok();
    assert_eq!((state(&server, "demo"), state(&server, "tiny")), ("unloaded".into(), "unloaded".into()));
    assert_eq!(server.get("/api/ps").ok()["models"], json!([]));
    assert_eq!(server.get("/props?model=tiny").ok()["is_sleeping"], true);
    let answer = server.post(CHAT, &ask(json!({"model": "tiny"}))).ok();
    assert_eq!(answer["model"], "tiny");
    assert_eq!((state(&server, "demo"), state(&server, "tiny")), ("unloaded".into(), "loaded".into()));
    let shown = server.get("/props?model=tiny").ok();
    assert_eq!((&shown["model_alias"], &shown["is_sleeping"]), (&json!("tiny"), &json!(false)));
    assert_eq!(server.get("/slots?model=tiny").ok()[0]["n_ctx"], 512);
    // Ollama's form of the name. A request without a name means the first model.
    let answer =
        server.post("/api/generate", &json!({"model": "tiny:latest", "prompt": "a", "stream": false}));
    assert_eq!(answer.ok()["done"], true);
    assert_eq!(server.post(CHAT, &ask(json!({}))).ok()["model"], "demo");
    let names = |path: &str, list: &str, key: &str| {
        let value = server.get(path).ok();
        value[list].as_array().unwrap().iter().map(|entry| entry[key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names("/api/tags", "models", "name"), ["demo", "tiny"]);
    assert_eq!(names("/api/ps", "models", "name"), ["demo", "tiny"]);
    assert_eq!(names("/v1/models", "models", "slug"), ["demo", "tiny"]);
    assert_eq!(figure(&server, "latent_model_loads_total", "tiny"), "1");
    assert_ne!(figure(&server, "latent_generated_tokens_total", "tiny"), "0");
    // The two models have different vocabularies.
    let tokens = |model: &str| server.post("/tokenize", &json!({"content": "a fox", "model": model})).ok();
    assert_ne!(tokens("demo"), tokens("tiny"));
}

#[test]
fn two_models_answer_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(config(), both(folder.path()));
    let streams = ["demo", "tiny"].map(|model| server.begin(CHAT, &long(model, 100)));
    for stream in streams {
        assert_eq!(whole(&receive(stream).chunks()), 100);
    }
}

#[test]
fn an_unknown_name_is_an_error_in_each_dialect() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(config(), both(folder.path()));
    let body = ask(json!({"model": "other"}));
    let reply = server.post(CHAT, &body);
    assert_eq!(reply.error(404).0, "unknown model \"other\"; this server has demo, tiny");
    assert_eq!(reply.json()["error"]["code"], "model_not_found");
    let error = server.post("/v1/messages", &body);
    assert_eq!((error.status, &error.json()["error"]["type"]), (404, &json!("not_found_error")));
    let error = server.post("/api/chat", &body);
    assert_eq!((error.status, error.json()["error"].is_string()), (404, true));
    let error = server.post("/completion", &json!({"model": "other", "prompt": "a"}));
    assert_eq!((error.status, &error.json()["error"]["type"]), (404, &json!("not_found_error")));
    assert_eq!(server.get("/v1/models/other").status, 404);
    assert_eq!(server.get("/props?model=other").status, 404);
    assert_eq!(state(&server, "demo"), "unloaded");
}

#[test]
fn an_idle_model_is_unloaded_and_loaded_again() {
    let opened = Arc::new(Mutex::new(Weak::new()));
    let file = Arc::clone(&opened);
    let open = move || {
        let checkpoint = open_demo();
        *file.lock().unwrap() = Arc::downgrade(&checkpoint);
        checkpoint
    };
    let idle = ServerConfig { unload_idle: Some(Duration::from_millis(50)), ..config() };
    let server = serve(idle, vec![source("demo", loader_of("demo", Box::new(open)))]);
    let mut generated = 0;
    for round in 1..=3 {
        let usage = server.post(CHAT, &ask(json!({}))).ok()["usage"].clone();
        generated += usage["completion_tokens"].as_u64().unwrap();
        until("unloaded", || state(&server, "demo") == "unloaded");
        // The mapped file is closed too.
        assert!(opened.lock().unwrap().upgrade().is_none());
        assert_eq!(server.get("/latent/stats").ok()["kv_blocks"]["total"], 0);
        let unloads = format!("latent_model_unloads_total {round}\n");
        until("counted", || server.get("/metrics").text().contains(&unloads));
        // Counters continue after an unload.
        assert_eq!(server.metric("llamacpp:tokens_predicted_total"), generated);
        assert_eq!(server.metric("latent_jobs_total{state=\"finished\"}"), round);
    }
    server.get("/health").ok();
}

#[test]
fn a_model_is_unloaded_for_another_after_its_answers() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(ServerConfig { models_max: 1, ..config() }, both(folder.path()));
    let first = server.begin(CHAT, &long("demo", 300));
    server.until_begun("demo");
    let second = server.begin(CHAT, &long("tiny", 20));
    // A slow client may find the model already unloaded.
    until("making room", || state(&server, "demo") != "loaded");
    // Another request for the first model runs after that for the second.
    let third = server.begin(CHAT, &long("demo", 10));
    assert_eq!(whole(&receive(first).chunks()), 300);
    assert_eq!(whole(&receive(second).chunks()), 20);
    assert_eq!(whole(&receive(third).chunks()), 10);
    assert_eq!((state(&server, "demo"), state(&server, "tiny")), ("loaded".into(), "unloaded".into()));
    assert_eq!(figure(&server, "latent_model_loads_total", "demo"), "2");
}

#[test]
fn a_failed_load_is_reported_to_its_requests() {
    let broken: Loader = Box::new(|_| Err("the file is gone".into()));
    let server = serve(config(), vec![source("broken", broken), source("demo", demo())]);
    let (problem, _) = server.post(CHAT, &ask(json!({"model": "broken"}))).error(500);
    assert_eq!(problem, "the model cannot be loaded: the file is gone");
    server.post(CHAT, &ask(json!({"model": "demo"}))).ok();
    server.get("/health").ok();
    let entry = server.get("/v1/models/broken").ok();
    assert_eq!(
        (&entry["status"]["failed"], &entry["status"]["problem"]),
        (&json!(true), &json!("the file is gone"))
    );
    assert_eq!(figure(&server, "latent_model_load_failures_total", "broken"), "1");
}

#[test]
fn concurrent_requests_share_one_load() {
    let (go, wait) = channel::<()>();
    let loads = Arc::new(AtomicUsize::new(0));
    let (counted, mut load) = (Arc::clone(&loads), demo());
    let slow: Loader = Box::new(move |attempt: &mut LoadAttempt<'_>| {
        counted.fetch_add(1, Ordering::SeqCst);
        wait.recv().unwrap();
        load(attempt)
    });
    let folder = tempfile::tempdir().unwrap();
    let server = serve(config(), vec![source("slow", slow), source("tiny", tiny(folder.path()))]);
    let streams: Vec<_> = (0..4).map(|_| server.begin(CHAT, &long("slow", 5))).collect();
    until("loading", || loads.load(Ordering::SeqCst) == 1);
    // A client that disconnects while it waits does not stop the loading.
    drop(server.begin(CHAT, &long("slow", 5)));
    server.get("/health").ok();
    assert_eq!(state(&server, "slow"), "loading");
    go.send(()).unwrap();
    for stream in streams {
        assert_eq!(whole(&receive(stream).chunks()), 5);
    }
    assert_eq!(loads.load(Ordering::SeqCst), 1);
}

#[test]
fn props_of_several_models_are_those_of_a_router() {
    let both = vec![source("demo", loader()), source("tiny", loader())];
    let server = serve(ServerConfig { models_max: 1, ..config() }, both);
    let props = server.get("/props").ok();
    assert_eq!((&props["role"], &props["max_instances"]), (&json!("router"), &json!(1)));
    assert_eq!(props["models_autoload"], true);
    let one = server.get("/props?model=tiny").ok();
    assert_eq!((&one["model_alias"], &one["is_sleeping"]), (&json!("tiny"), &json!(true)));
    assert!(one.get("role").is_none());
}

#[test]
fn a_load_for_which_memory_is_short_unloads_another_model() {
    let folder = tempfile::tempdir().unwrap();
    let mut load = tiny(folder.path());
    let large: Loader = Box::new(move |attempt: &mut LoadAttempt<'_>| match attempt.alone {
        true => load(attempt),
        false => Err(Box::new(out_of_memory())),
    });
    let server = serve(config(), vec![source("demo", demo()), source("tiny", large)]);
    server.post(CHAT, &ask(json!({"model": "demo"}))).ok();
    server.post(CHAT, &ask(json!({"model": "tiny"}))).ok();
    assert_eq!((state(&server, "demo"), state(&server, "tiny")), ("unloaded".into(), "loaded".into()));
}

#[test]
fn autoload_in_the_query_decides_whether_a_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let ask = |server: &TestServer, query: &str| {
        server.post(&format!("/tokenize?autoload={query}"), &json!({"model": "tiny", "content": "a"}))
    };
    let server = serve(config(), both(folder.path()));
    let refused = ask(&server, "false");
    assert!(refused.error(400).0.contains("POST /models/load"), "{}", refused.text());
    assert_eq!(state(&server, "tiny"), "unloaded");
    ask(&server, "").ok();
    // A loaded model answers without autoload.
    ask(&server, "false").ok();
    let folder = tempfile::tempdir().unwrap();
    let server = serve(ServerConfig { autoload: false, ..config() }, both(folder.path()));
    ask(&server, "").error(400);
    ask(&server, "true").ok();
}

#[test]
fn keep_alive_sets_how_long_a_model_stays_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(config(), both(folder.path()));
    let generate = |keep: Value| {
        let body = json!({"model": "tiny", "prompt": "a", "stream": false, "options": {"num_predict": 2}, "keep_alive": keep});
        server.post("/api/generate", &body)
    };
    generate(json!("10m")).ok();
    let expires = server.get("/api/ps").ok()["models"][0]["expires_at"].as_str().unwrap().to_owned();
    assert!(!expires.starts_with("2318"), "{expires}");
    generate(json!(-1)).ok();
    let expires = server.get("/api/ps").ok()["models"][0]["expires_at"].as_str().unwrap().to_owned();
    assert!(expires.starts_with("2318"), "{expires}");
    generate(json!(0)).ok();
    until("unloaded", || state(&server, "tiny") == "unloaded");
    assert_eq!(generate(json!("soon")).status, 400);
}

#[test]
fn running_answers_of_all_models_finish_before_the_server_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = serve(config(), both(folder.path()));
    let streams = ["demo", "tiny"].map(|model| server.begin(CHAT, &long(model, 200)));
    for model in ["demo", "tiny"] {
        server.until_begun(model);
    }
    server.server().stop();
    for stream in streams {
        assert_eq!(whole(&receive(stream).chunks()), 200);
    }
    server.end();
}
