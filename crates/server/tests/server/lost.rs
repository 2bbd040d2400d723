//! A device that is lost while requests run. They continue on the CPU if the loader falls back, and
//! otherwise end with an error.

use crate::support::{CHAT, CONTEXT, about, ask, config, open_demo, source, until, wrap};
use latent_backend::{
    ActivationTrace, Backend, BackendError, BackendModel, KvStore, LayerState, LoadRequest, MemoryEstimate,
    ModelOptions, ModelStep, PeakRates, PlanTimes, WeightBytes, WeightSource,
};
use latent_engine::{Engine, EngineOptions};
use latent_graph::activations::Activations;
use latent_graph::passes::Precision;
use latent_graph::{BackendTarget, ModelConfig, Stage};
use latent_server::{Extras, LoadAttempt, LoadError, LoadedModel, Server};
use latent_text::Tokenizer;
use latent_threads::Placement;
use latent_types::Tier;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The CPU backend, which fails as lost after a number of steps. The counter has the remaining
/// ones.
struct BreakingBackend(Box<dyn Backend>, Arc<AtomicUsize>);

struct BreakingModel(Box<dyn BackendModel>, Arc<AtomicUsize>);

impl Backend for BreakingBackend {
    fn name(&self) -> &'static str {
        "breaking"
    }
    fn target(&self) -> &BackendTarget {
        self.0.target()
    }
    fn isa(&self, limit: Option<Tier>) -> Result<Tier, BackendError> {
        self.0.isa(limit)
    }
    fn layer_states(&self, stages: &[Stage]) -> Vec<LayerState> {
        self.0.layer_states(stages)
    }
    fn weight_bytes(&self, stages: &[Stage], source: WeightSource<'_>) -> WeightBytes {
        self.0.weight_bytes(stages, source)
    }
    fn scratch_bytes(
        &self,
        config: &ModelConfig,
        stages: &[Stage],
        options: &ModelOptions,
        context: usize,
    ) -> MemoryEstimate {
        self.0.scratch_bytes(config, stages, options, context)
    }
    fn load(&self, request: LoadRequest<'_>) -> Result<Box<dyn BackendModel>, BackendError> {
        Ok(Box::new(BreakingModel(self.0.load(request)?, Arc::clone(&self.1))))
    }
    fn limits(&self, placement: &Placement, tier: Tier) -> Result<PeakRates, BackendError> {
        self.0.limits(placement, tier)
    }
}

impl BackendModel for BreakingModel {
    fn config(&self) -> &ModelConfig {
        self.0.config()
    }
    fn stages(&self) -> &[Stage] {
        self.0.stages()
    }
    fn new_kv_store(&self, blocks: u32, state_slots: u32) -> Result<Box<dyn KvStore>, BackendError> {
        self.0.new_kv_store(blocks, state_slots)
    }
    fn step(&mut self, step: ModelStep<'_>) -> Result<(), BackendError> {
        let left = self.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_err() {
            return Err(BackendError::Lost("the test's device was lost".into()));
        }
        self.0.step(step)
    }
    fn start_profile(&mut self) {
        self.0.start_profile();
    }
    fn stop_profile(&mut self) -> Vec<PlanTimes> {
        self.0.stop_profile()
    }
    fn start_trace(&mut self, activations: &Activations, trace: ActivationTrace) -> Result<(), BackendError> {
        self.0.start_trace(activations, trace)
    }
    fn stop_trace(&mut self) -> Option<ActivationTrace> {
        self.0.stop_trace()
    }
}

/// The lost devices that loaders were told, one entry per load.
#[derive(Clone, Default)]
struct LoaderLog(Arc<Mutex<Vec<Option<String>>>>);

impl LoaderLog {
    fn all(&self) -> Vec<Option<String>> {
        self.0.lock().unwrap().clone()
    }
}

/// A server of the demo model on a device that is lost after `steps` steps. With `falls_back`,
/// requests continue on the CPU.
fn on_breaking(steps: usize, falls_back: bool, told: &LoaderLog) -> crate::support::TestServer {
    let (checkpoint, told) = (open_demo(), told.clone());
    let load = move |attempt: &mut LoadAttempt<'_>| -> Result<LoadedModel, LoadError> {
        told.0.lock().unwrap().push(attempt.lost.map(str::to_owned));
        let backend: Box<dyn Backend> = match attempt.lost {
            None => Box::new(BreakingBackend(latent_backends::cpu(), Arc::new(AtomicUsize::new(steps)))),
            Some(_) => latent_backends::cpu(),
        };
        let mut about = about("demo", &checkpoint);
        about.falls_back = falls_back && attempt.lost.is_none();
        // Exact precision: the numbers do not depend on how a prompt is divided into steps.
        let options = EngineOptions {
            threads: Some(1),
            context: Some(CONTEXT),
            cache_tokens: Some(8 * CONTEXT),
            precision: Precision::Exact,
            mla: latent_graph::passes::MlaChoice::Absorbed,
            ..EngineOptions::default()
        };
        let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint).unwrap());
        let engine = Engine::load(&*backend, &checkpoint, &options, attempt.progress)?;
        Ok(LoadedModel { engine, tokenizer, about })
    };
    let server = Server::start(config(), vec![source("demo", Box::new(load))], Extras::default()).unwrap();
    let server = wrap(server);
    server.server().wait_loaded(std::time::Duration::from_secs(60)).unwrap().unwrap();
    server
}

#[test]
fn requests_continue_on_the_cpu_when_a_device_is_lost() {
    let body = ask(json!({"max_tokens": 40, "ignore_eos": true, "seed": 1}));
    let whole = on_breaking(usize::MAX, true, &LoaderLog::default());
    let expected = whole.post(CHAT, &body).json();
    let told = LoaderLog::default();
    // The device is lost within the prompt, and within the answer.
    for steps in [0, 10] {
        told.0.lock().unwrap().clear();
        let server = on_breaking(steps, true, &told);
        let answer = server.post(CHAT, &body).json();
        assert_eq!(
            answer["choices"][0]["message"]["content"], expected["choices"][0]["message"]["content"],
            "{steps}"
        );
        assert_eq!(answer["usage"]["completion_tokens"], 40);
        let lost = Some("the test's device was lost".to_owned());
        assert_eq!(told.all(), [None, lost], "{steps}");
        // Later requests run on the CPU, and no second reload follows.
        server.post(CHAT, &body).ok();
        assert!(server.get("/metrics").text().contains("latent_reloads_total 1"));
        server.assert_idle();
    }
}

#[test]
fn without_a_fallback_they_end_with_an_error_and_the_model_is_loaded_again() {
    let told = LoaderLog::default();
    let server = on_breaking(5, false, &told);
    let reply = server.post(CHAT, &ask(json!({"max_tokens": 40, "ignore_eos": true})));
    assert_eq!(reply.error(500).0, "the engine failed: the test's device was lost");
    // The server is still healthy before it has noticed the loss, so wait for the second load
    // first.
    until("loaded again", || told.all().len() == 2);
    until("healthy", || server.get("/health").status == 200);
    server.post(CHAT, &ask(json!({"max_tokens": 4}))).ok();
    server.assert_idle();
}

#[test]
fn a_stopping_server_ends_after_a_device_is_lost() {
    let mut server = on_breaking(10, true, &LoaderLog::default());
    let stream = server.begin(CHAT, &ask(json!({"max_tokens": 60, "ignore_eos": true, "stream": true})));
    server.until_taken();
    server.server().stop();
    let chunks = crate::client::receive(stream).chunks();
    assert_eq!(chunks[chunks.len() - 1]["choices"][0]["finish_reason"], "length");
    server.end();
}
