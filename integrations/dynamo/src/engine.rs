//! Dynamo's trait over the engine's thread.

use crate::error::{cut_off, failed, shut_down};
use crate::guided::Guide;
use crate::handle::Requests;
use crate::load::Served;
use crate::options::Options;
use crate::request::prepare;
use crate::stream::{Answer, stream};
use crate::worker::{Hook, Ready, Started, Worker};
use async_trait::async_trait;
use dynamo_backend_common::{
    AsyncEngineContext, DynamoError, EngineConfig, GenerateContext, KvEventSource, LLMEngine,
    LLMEngineOutput, LlmRegistration, MetricsBindings, MetricsCtx, PreprocessedRequest,
};
use dynamo_runtime::component::Endpoint;
use dynamo_runtime::traits::DistributedRuntimeProvider;
use futures::stream::BoxStream;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How often it is looked whether all answers have been read.
const LOOK: Duration = Duration::from_millis(10);

/// How long what Dynamo has been given may take to its connections.
const LINGER: Duration = Duration::from_millis(250);

/// Latent's engine as a backend of Dynamo. One engine loads one model, once.
pub struct LatentEngine {
    options: Options,
    patience: Duration,
    before_step: Option<Hook>,
    requests: Requests,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: Option<Arc<Running>>,
    thread: Option<JoinHandle<()>>,
    fault: Option<oneshot::Receiver<String>>,
    /// What was wrong with the engine, once something was.
    broken: Arc<Mutex<Option<String>>>,
}

struct Running {
    served: Served,
    guide: Guide,
    worker: Worker,
}

impl LatentEngine {
    /// An engine that has loaded nothing yet. At the end, requests have `patience` to be answered.
    pub fn new(options: Options, patience: Duration) -> LatentEngine {
        LatentEngine {
            options,
            patience,
            before_step: None,
            requests: Requests::default(),
            state: Mutex::default(),
        }
    }

    /// The same with something that is called before each step of the engine.
    pub fn with_hook(self, before_step: Hook) -> LatentEngine {
        LatentEngine { before_step: Some(before_step), ..self }
    }

    /// Why the engine had to be given up, if it had.
    pub fn fault(&self) -> Option<String> {
        let broken = Arc::clone(&self.state().broken);
        let fault = broken.lock().unwrap_or_else(PoisonError::into_inner);
        fault.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all answers have been read to their ends: Dynamo cuts the connections once this
    /// worker is cleaned up.
    async fn sent(&self, end: Instant) {
        while !self.requests.is_empty() && Instant::now() < end {
            tokio::time::sleep(LOOK).await;
        }
        if Instant::now() < end {
            tokio::time::sleep(LINGER).await;
        }
    }

    fn running(&self) -> Result<Arc<Running>, DynamoError> {
        self.state().running.clone().ok_or_else(|| shut_down("this worker is shutting down"))
    }
}

#[async_trait]
impl LLMEngine for LatentEngine {
    async fn start(&self, worker_id: u64) -> Result<EngineConfig, DynamoError> {
        tracing::info!(worker_id, model = %self.options.model.display(), "loading the model");
        let started = Worker::start(self.options.clone(), self.before_step.clone());
        let Started { worker, ready, fault, thread } =
            started.map_err(|error| failed(format!("no thread for the engine can be started: {error}")))?;
        {
            let mut state = self.state();
            (state.thread, state.fault) = (Some(thread), Some(fault));
        }
        let Ready { served, blocks, block_tokens } = match ready.await {
            Ok(Ok(ready)) => ready,
            Ok(Err(problem)) => return Err(failed(problem)),
            Err(_) => return Err(failed("the thread that loads the model has ended")),
        };
        let (name, context) = (self.options.name(), served.context);
        self.state().running = Some(Arc::new(Running { served, guide: Guide::default(), worker }));
        let number = |count: usize| u32::try_from(count).ok();
        tracing::info!(context, blocks, block_tokens, "the model is loaded");
        Ok(EngineConfig {
            model: name.clone(),
            served_model_name: Some(name),
            llm: Some(LlmRegistration {
                context_length: number(context),
                kv_cache_block_size: number(block_tokens),
                total_kv_blocks: Some(blocks as u64),
                max_num_seqs: Some(self.options.parallel.into()),
                max_num_batched_tokens: Some(latent_engine::DEFAULT_BATCH_TOKENS as u64),
                ..LlmRegistration::default()
            }),
            ..EngineConfig::default()
        })
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        context: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let running = self.running()?;
        let entry = self.requests.enter(context.id());
        let own = Arc::clone(&running);
        // a grammar may take seconds to compile
        let prepared = tokio::task::spawn_blocking(move || prepare(request, &own.served, &own.guide)).await;
        let prepared = prepared.map_err(|error| failed(format!("preparing the request: {error}")))??;
        let (notices, received) = tokio::sync::mpsc::unbounded_channel();
        let answer = Answer {
            notices: received,
            tokenizer: Arc::clone(&running.served.tokenizer),
            stops: prepared.stops.clone(),
            prompt: prepared.job.request.prompt.len(),
            logprobs: prepared.logprobs,
            cached: 0,
            completion: 0,
            entry,
        };
        let handle = answer.entry.handle().clone();
        let sent = running.worker.submit(prepared, handle, notices);
        sent.map_err(|_| shut_down("this worker's engine has ended"))?;
        Ok(stream(answer, context.inner_arc()))
    }

    async fn abort(&self, context: Arc<dyn AsyncEngineContext>) {
        self.requests.cancel(context.id());
    }

    async fn is_quiescent(&self) -> Result<Option<bool>, DynamoError> {
        Ok(Some(self.requests.is_empty()))
    }

    /// Lets requests that run be answered, as far as there is time, and gives the model back.
    async fn cleanup(&self) -> Result<(), DynamoError> {
        let end = Instant::now() + self.patience;
        let (running, thread) = {
            let mut state = self.state();
            (state.running.take(), state.thread.take())
        };
        if let Some(running) = &running {
            running.worker.close();
        }
        let Some(thread) = thread else { return Ok(()) };
        let mut joined = tokio::task::spawn_blocking(move || thread.join());
        let joined = match tokio::time::timeout(self.patience, &mut joined).await {
            Ok(joined) => joined,
            Err(_) => {
                if let Some(running) = &running {
                    running.worker.end(cut_off(self.patience));
                }
                joined.await
            }
        };
        self.sent(end).await;
        match joined {
            Ok(Ok(())) => Ok(()),
            Ok(Err(panic)) => {
                Err(failed(format!("the engine's thread panicked: {}", latent_types::panic_text(&*panic))))
            }
            Err(error) => Err(failed(format!("waiting for the engine's thread: {error}"))),
        }
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        let running = self.running()?;
        let on_ready = Box::new(move |publisher| {
            running.worker.report_blocks(publisher).map_err(|_| shut_down("this worker's engine has ended"))
        });
        Ok(vec![KvEventSource::Push { on_ready, dp_rank: 0 }])
    }

    async fn setup_metrics(&self, _context: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let running = self.running()?;
        let on_publisher_ready = Box::new(move |publisher| {
            running.worker.report_load(publisher).map_err(|_| shut_down("this worker's engine has ended"))
        });
        Ok(MetricsBindings { dp_ranks: vec![0], on_publisher_ready: Some(on_publisher_ready) })
    }

    async fn health_check_payload(&self) -> Result<Option<Value>, DynamoError> {
        let running = self.running()?;
        let token = running.served.tokenizer.bos().unwrap_or_default();
        Ok(Some(json!({
            "token_ids": [token],
            "stop_conditions": {"max_tokens": 1},
            "sampling_options": {"temperature": 0.0},
            "output_options": {},
        })))
    }

    /// A worker whose engine has failed leaves the router's list and exits, so that its supervisor
    /// can restart it.
    async fn on_endpoint_ready(&self, endpoint: Endpoint) -> Result<(), DynamoError> {
        let (fault, broken) = {
            let mut state = self.state();
            (state.fault.take(), Arc::clone(&state.broken))
        };
        let Some(fault) = fault else { return Ok(()) };
        tokio::spawn(async move {
            let Ok(problem) = fault.await else { return };
            *broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
            if let Err(error) = endpoint.unregister_endpoint_instance().await {
                tracing::warn!("the router cannot be told that this worker ends: {error}");
            }
            endpoint.drt().runtime().shutdown();
        });
        Ok(())
    }
}
