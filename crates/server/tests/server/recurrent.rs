//! Models with recurrent states: which tokens run again after a slot is restored, and with few
//! states.

use crate::support::{TestServer, about, config, source, wrap};
use latent_engine::cache::StateOptions;
use latent_engine::{Engine, EngineOptions};
use latent_formats::Checkpoint;
use latent_server::{Extras, LoadedModel, Loader, Server, ServerConfig};
use latent_testing::ModelRecipe;
use latent_text::Tokenizer;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Tokens between snapshots.
const EVERY: usize = 64;

/// Loads a model with random weights. Its tokenizer is the demo model's: prompts are lists of
/// tokens.
fn loader(folder: &Path, shape: &str, states: Option<u64>) -> Loader {
    let path = folder.join(format!("{shape}.gguf"));
    if !path.exists() {
        ModelRecipe { layers: Some(4), ..ModelRecipe::new(shape, "F32".parse().unwrap()) }
            .write_gguf(&path)
            .unwrap();
    }
    Box::new(move |attempt| {
        let demo = crate::support::open_demo();
        let about = about("recurrent", &demo);
        let tokenizer = Arc::new(Tokenizer::from_checkpoint(&demo).unwrap());
        let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
        let options = EngineOptions {
            threads: Some(1),
            context: Some(512),
            cache_tokens: Some(4096),
            states: StateOptions { sequences: 2, snapshots: 4, every: EVERY },
            ..EngineOptions::default()
        };
        let mut load = |options: &EngineOptions| {
            Engine::load(&*latent_backends::cpu(), &checkpoint, options, attempt.progress)
        };
        let mut engine = load(&options)?;
        if let Some(states) = states {
            let bytes = engine.summary().state_bytes as u64;
            engine = load(&EngineOptions { state_cache: Some(states * bytes), ..options })?;
        }
        Ok(LoadedModel { engine, tokenizer, about })
    })
}

fn start(folder: &Path, shape: &str, states: Option<u64>) -> TestServer {
    let config = ServerConfig { slot_save_path: Some(folder.into()), ..config() };
    let models = vec![source("recurrent", loader(folder, shape, states))];
    let server = Server::start(config, models, Extras::default()).unwrap();
    server.wait_loaded(Duration::from_secs(60)).expect("it loads in time").unwrap();
    wrap(server)
}

fn text(first: usize) -> Vec<usize> {
    (0..150).map(|i| (first + i * 7) % 400 + 20).collect()
}

/// The number of prompt tokens that ran, and the tokens of the answer.
fn ask(server: &TestServer, prompt: &[usize], slot: i32) -> (usize, Value) {
    let body = json!({
        "prompt": prompt, "n_predict": 6, "ignore_eos": true, "temperature": 0, "id_slot": slot, "return_tokens": true
    });
    let answer = server.post("/completion", &body).ok();
    let count = |key: &str| answer["timings"][key].as_u64().unwrap() as usize;
    assert_eq!(count("cache_n") + count("prompt_n"), prompt.len(), "{answer}");
    (count("prompt_n"), answer["tokens"].clone())
}

#[test]
fn a_restored_slot_continues_from_the_states_in_its_file() {
    for shape in ["small-kimi-linear", "small-ling-3"] {
        let folder = tempfile::tempdir().unwrap();
        let server = start(folder.path(), shape, None);
        let prompt = text(0);
        let (ran, answer) = ask(&server, &prompt, 1);
        assert_eq!(ran, prompt.len(), "{shape}");
        let saved = server.post("/slots/1?action=save", &json!({"filename": "text.bin"})).ok();
        assert_eq!(saved["n_saved"], prompt.len() + 5, "{shape}");
        drop(server);
        let server = start(folder.path(), shape, None);
        let restored = server.post("/slots/0?action=restore", &json!({"filename": "text.bin"})).ok();
        assert_eq!(restored["n_restored"], saved["n_saved"], "{shape}");
        // The next message: no saved token runs again.
        let said: Vec<usize> =
            answer.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as usize).collect();
        let longer = [&prompt[..], &said, &[31, 32, 33]].concat();
        let (ran, _) = ask(&server, &longer, 0);
        assert!(ran <= 4, "{shape}: {ran} tokens for a message of three");
        // Regenerated and edited answers run from the last snapshot before the change.
        let (ran, again) = ask(&server, &prompt, -1);
        assert!(ran <= prompt.len() - 2 * EVERY && again == answer, "{shape}: {ran} tokens, {again}");
        let edited = [&prompt[..140], &[41, 42]].concat();
        assert_eq!(ask(&server, &edited, -1).0, edited.len() - 2 * EVERY, "{shape}");
        server.assert_idle();
    }
}

#[test]
fn with_few_states_answers_are_the_same_and_metrics_count_them() {
    let folder = tempfile::tempdir().unwrap();
    for states in [3, 8] {
        let server = start(folder.path(), "small-ling-3", Some(states));
        assert_eq!(server.metric("latent_states "), states);
        let (_, answer) = ask(&server, &text(0), -1);
        for other in 1..4 {
            ask(&server, &text(other), -1);
        }
        assert!(server.metric("latent_states_used") <= states);
        let (ran, again) = ask(&server, &text(0), -1);
        assert_eq!(again, answer, "{states} states");
        // The prompt runs from its start, a snapshot at a block's end, or its last token.
        let from = 150 - ran;
        assert!([0, EVERY, 2 * EVERY, 149].contains(&from), "{states} states: {ran} tokens ran");
        // The states of the most recent request are kept.
        assert!(ask(&server, &text(0), -1).0 <= 150 - 2 * EVERY, "{states} states");
        server.assert_idle();
    }
}
