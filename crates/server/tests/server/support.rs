//! A server with the demo model.

use crate::client::{Reply, receive, send};
use latent_engine::sampling::SamplingParams;
use latent_engine::{Engine, EngineOptions};
use latent_formats::{Checkpoint, CheckpointSource};
use latent_server::{
    Extras, Limits, LoadedModel, Loader, ModelFacts, ModelFigures, ModelSettings, ModelSource, RequestCheck,
    Server, ServerConfig,
};
use latent_text::Tokenizer;
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens of context of one request.
pub const CONTEXT: usize = 512;

pub struct TestServer {
    server: Option<Server>,
    pub address: SocketAddr,
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Opens the checkpoint for a load. It may return the same one each time, or open the file again.
type CheckpointOpener = Box<dyn FnMut() -> Arc<Checkpoint> + Send>;

/// Loads the demo model.
pub fn loader() -> Loader {
    let checkpoint = open_demo();
    loader_of("demo", Box::new(move || Arc::clone(&checkpoint)))
}

pub fn open_demo() -> Arc<Checkpoint> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    Arc::new(Checkpoint::open(&models.join("mla-demo-Q4_K_M.gguf")).unwrap())
}

/// Facts of a model for the server.
pub fn about(name: &str, checkpoint: &Checkpoint) -> ModelFacts {
    let CheckpointSource::Gguf(source) = checkpoint.source() else { panic!("a GGUF file is expected") };
    let template = source.metadata.str("tokenizer.chat_template").unwrap().unwrap_or(PLAIN).to_owned();
    ModelFacts {
        id: name.to_owned(),
        path: "models/demo.gguf".into(),
        chat_template: Some(template),
        sampling: SamplingParams::greedy(),
        ..ModelFacts::default()
    }
}

/// A check of requests with the demo model, without an engine.
pub fn without_engine() -> RequestCheck {
    let checkpoint = open_demo();
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint).unwrap());
    let figures = ModelFigures {
        context: CONTEXT,
        vocab: tokenizer.vocab_size(),
        hidden: 8,
        ..ModelFigures::default()
    };
    RequestCheck::new(&tokenizer, &about("demo", &checkpoint), figures, Limits::default()).unwrap()
}

/// A loader that opens a checkpoint by `open`.
pub fn loader_of(name: &str, mut open: CheckpointOpener) -> Loader {
    let id = name.to_owned();
    Box::new(move |attempt| {
        let checkpoint = open();
        let about = about(&id, &checkpoint);
        let options = EngineOptions {
            threads: Some(1),
            context: Some(CONTEXT),
            cache_tokens: Some(8 * CONTEXT),
            ..EngineOptions::default()
        };
        let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint).unwrap());
        let engine = Engine::load(&*latent_backends::cpu(), &checkpoint, &options, attempt.progress)?;
        Ok(LoadedModel { engine, tokenizer, about })
    })
}

/// The chat template for models without one.
const PLAIN: &str = "{% for message in messages %}{{ message.content }}{% endfor %}";

/// A model source with default options.
pub fn source(name: &str, loader: Loader) -> ModelSource {
    ModelSource {
        name: name.into(),
        aliases: Vec::new(),
        tags: Vec::new(),
        path: "models/demo.gguf".into(),
        bytes: 0,
        loader,
        drawing: None,
        definition: String::new(),
        settings: ModelSettings::default(),
    }
}

/// The default configuration with any free port.
pub fn config() -> ServerConfig {
    ServerConfig { port: 0, ..ServerConfig::default() }
}

/// Starts a server and waits until it has loaded its model.
pub fn start(config: ServerConfig) -> TestServer {
    start_with(config, Extras::default())
}

pub fn start_with(config: ServerConfig, extras: Extras) -> TestServer {
    let server = Server::start(config, vec![source("demo", loader())], extras).unwrap();
    server.wait_loaded(Duration::from_secs(60)).expect("it loads in time").unwrap();
    TestServer { address: server.address(), server: Some(server) }
}

/// Starts a server with the default configuration.
pub fn demo() -> TestServer {
    start(config())
}

/// Wraps a server that may still be loading.
pub fn wrap(server: Server) -> TestServer {
    TestServer { address: server.address(), server: Some(server) }
}

impl TestServer {
    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// Stops the server and waits for its end.
    pub fn end(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
            server.join();
        }
    }

    /// Sends a request with headers and waits for its response.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        receive(send(self.address, method, path, headers, body.as_bytes()))
    }

    /// Sends a request whose response is read later.
    pub fn begin(&self, path: &str, body: &Value) -> TcpStream {
        send(self.address, "POST", path, &[], body.to_string().as_bytes())
    }

    pub fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, &body.to_string())
    }

    pub fn post_text(&self, path: &str, body: &str) -> Reply {
        self.ask("POST", path, &[("Content-Type", "application/json")], body)
    }

    /// The value of a metric of `/metrics`.
    pub fn metric(&self, name: &str) -> u64 {
        let metrics = self.get("/metrics").text();
        let line = metrics.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name}: {metrics}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until the engine has taken a job. The job may have ended by then.
    pub fn until_taken(&self) {
        until("taken", || self.metric("latent_jobs_total{state=\"submitted\"}") != 0);
    }

    /// Asserts that other clients are served.
    pub fn assert_serves(&self) {
        self.post(CHAT, &ask(json!({"max_tokens": 2}))).ok();
    }

    /// Statistics of the scheduler.
    pub fn stats(&self) -> Value {
        self.get("/latent/stats").ok()
    }

    /// Waits until a model has run a step. Its answer may have ended by then.
    pub fn until_begun(&self, model: &str) {
        let path = format!("/latent/stats?model={model}");
        until("begun", || self.get(&path).ok()["steps"] != 0);
    }

    /// Waits until no job runs or waits, and all blocks are free or cached.
    pub fn assert_idle(&self) {
        until("idle", || {
            let stats = self.stats();
            stats["running"] == 0 && stats["waiting"] == 0 && stats["kv_blocks"]["used"] == 0
        });
    }
}

/// Waits until a condition holds. `what` names it in the panic message.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub const CHAT: &str = "/v1/chat/completions";

/// A question that the model answers with several words.
pub fn question() -> Value {
    json!([{"role": "user", "content": "Tell me a story about a fox and a lantern."}])
}

/// A chat request with this question and more fields.
pub fn ask(more: Value) -> Value {
    let mut body = json!({"messages": question(), "max_tokens": 12, "temperature": 0});
    merge(&mut body, more);
    body
}

pub fn merge(body: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("{more}") };
    body.as_object_mut().unwrap().extend(more);
}

/// A grammar that allows only this text.
pub fn only(text: &str) -> Value {
    let quoted = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    json!(format!("root ::= \"{quoted}\""))
}
