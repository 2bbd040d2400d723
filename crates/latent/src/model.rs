//! A loaded model and the thread that runs it.

use crate::codec::TextCodec;
use crate::description::Description;
use crate::error::{Error, ErrorKind};
use crate::listening::{self, EventReceiver};
use crate::options::LoadOptions;
use crate::process::Process;
use crate::waiting::{self, WaitCheck};
use crate::worker::ModelWorker;
use latent_backend::{Backend, CancelToken};
use latent_engine::sampling::{RecommendedParams, SamplingParams};
use latent_engine::scheduler::{Job, Refusal, Scheduler};
use latent_engine::worker::{EngineLoan, JobSubmission, WorkerCommand, WorkerModel};
use latent_engine::{ContextLimits, Engine};
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;
use latent_graph::passes::BindOptions;
use latent_text::Tokenizer;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;

/// A loaded model. Clones are handles to the same model. Dropping the last one releases its memory.
///
/// The model runs on a thread of its own. Requests of all threads are batched, and no caller's
/// thread computes.
///
/// ```
/// fn shared<T: Send + Sync + Clone + 'static>() {}
/// shared::<latent::Model>();
/// ```
#[derive(Clone)]
pub struct Model {
    pub(crate) inner: Arc<ModelContents>,
}

pub(crate) struct ModelContents {
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) config: ModelConfig,
    pub(crate) text: TextCodec,
    pub(crate) sampling: SamplingParams,
    pub(crate) options: LoadOptions,
    backend: Option<Arc<dyn Backend>>,
    pub(crate) bind: BindOptions,
    pub(crate) max_batch_tokens: usize,
    pub(crate) description: Description,
    #[cfg(feature = "grammar")]
    pub(crate) grammars: crate::constraint::LazyGrammars,
    process: Process,
    worker: ModelWorker,
}

impl Drop for ModelContents {
    fn drop(&mut self) {
        // A forked child does not have the thread, so joining it would never return.
        if !self.process.is_this() {
            self.worker.forget();
        }
    }
}

/// Properties of a loaded engine, which the model's thread sends to the caller.
struct EngineDescription {
    description: Description,
    bind: BindOptions,
    max_batch_tokens: usize,
}

/// How a model is loaded.
pub(crate) struct ModelSetup {
    pub(crate) options: LoadOptions,
    /// The caller's own backend, in place of `options.device`.
    pub(crate) backend: Option<Arc<dyn Backend>>,
    /// The caller's own text side, in place of the model's.
    pub(crate) text: Option<TextCodec>,
    /// The caller's sampling parameters, in place of the recommended ones.
    pub(crate) sampling: Option<SamplingParams>,
    /// Whether the model is loaded again after a fault of the engine.
    pub(crate) reload: bool,
    /// Called with the processed and the total bytes of the weights.
    pub(crate) progress: Box<dyn FnMut(u64, u64) + Send>,
}

/// The caller's own backend, or that of the device.
fn open_backend(
    backend: Option<&Arc<dyn Backend>>,
    options: &LoadOptions,
) -> Result<Arc<dyn Backend>, Error> {
    match backend {
        Some(backend) => Ok(Arc::clone(backend)),
        None => Ok(latent_backends::by_name(&options.device)?.into()),
    }
}

impl Model {
    /// Loads a model. If `go_on` returns false, loading ends in the background.
    pub(crate) fn load(
        checkpoint: Arc<Checkpoint>,
        setup: ModelSetup,
        go_on: Option<WaitCheck<'_>>,
    ) -> Result<Model, Error> {
        // Parsed on this thread before the weights are read, so that an unsupported model fails at
        // once.
        let config = ModelConfig::before_loading(&checkpoint)?;
        let ModelSetup { options, backend, text, sampling, reload, mut progress } = setup;
        let text = text.map_or_else(|| TextCodec::of(&checkpoint, &config), Ok)?;
        let sampling = match sampling {
            Some(sampling) => sampling,
            None => RecommendedParams::of(&checkpoint)?.params(),
        };
        let (worker, loaded) = {
            let (checkpoint, tokenizer, options) =
                (Arc::clone(&checkpoint), Arc::clone(text.tokenizer()), options.clone());
            let backend = backend.clone();
            ModelWorker::start(reload, move || {
                // Opened in this closure, so that a reload after a fault opens the device again.
                let backend = open_backend(backend.as_ref(), &options)?;
                let engine = Engine::load(&*backend, &checkpoint, &options.engine, &mut progress)?;
                let about = EngineDescription {
                    description: Description::new(&checkpoint, &engine),
                    bind: engine.bind(),
                    max_batch_tokens: engine.max_batch_tokens(),
                };
                // Cloned, since this function runs again after a fault of the engine.
                let (tokenizer, options) = (Arc::clone(&tokenizer), options.scheduler.clone());
                Ok((WorkerModel { engine, tokenizer, options }, about))
            })?
        };
        let loaded = match waiting::receive(&loaded, go_on) {
            Ok(loaded) => loaded.unwrap_or_else(|| Err(Error::gone()))?,
            Err(stopped) => {
                // The thread ends after loading and drops the model. The caller does not wait for
                // that.
                worker.detach();
                return Err(stopped);
            }
        };
        let EngineDescription { mut description, bind, max_batch_tokens } = loaded;
        // The engine does not know the warnings of the text side.
        description.warnings.extend(text.warning().map(str::to_owned));
        let inner = ModelContents {
            checkpoint,
            config,
            text,
            sampling,
            options,
            backend,
            bind,
            max_batch_tokens,
            description,
            #[cfg(feature = "grammar")]
            grammars: Default::default(),
            process: Process::this(),
            worker,
        };
        Ok(Model { inner: Arc::new(inner) })
    }

    /// The loaded model, and how it runs.
    pub fn description(&self) -> &Description {
        &self.inner.description
    }

    /// The model's hyper-parameters.
    pub fn config(&self) -> &ModelConfig {
        &self.inner.config
    }

    /// The model's file.
    pub fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.inner.checkpoint
    }

    /// Tokenizer, chat template and response format.
    pub fn text(&self) -> &TextCodec {
        &self.inner.text
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.inner.text.tokenizer()
    }

    /// The sampling parameters of [`ModelBuilder::sampling`](crate::ModelBuilder::sampling), or
    /// those that the model recommends, with Latent's defaults for the others and a seed of 0.
    pub fn recommended_sampling(&self) -> &SamplingParams {
        &self.inner.sampling
    }

    /// The backend of the model, for planning and measuring.
    pub(crate) fn backend(&self) -> Result<Arc<dyn Backend>, Error> {
        open_backend(self.inner.backend.as_ref(), &self.inner.options)
    }

    /// Calls a function with the engine itself, on the model's thread, when all earlier answers
    /// have ended. Later answers wait for it. Cached prefixes are evicted until `tokens` tokens fit
    /// into the KV cache, for sequences of the function.
    ///
    /// ```
    /// # let model = latent::Model::demo().context(64).load()?;
    /// let needed = model.with_engine(0, |engine| engine.needed())?;
    /// println!("{} bytes of memory", needed.total());
    /// # Ok::<(), latent::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the function panics, the engine has failed, or this is a forked child.
    pub fn with_engine<T: Send + 'static>(
        &self,
        tokens: usize,
        work: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.lend_engine(tokens, None, move |engine, _| Ok(work(engine)))
    }

    /// Submits a job to the model's thread.
    pub(crate) fn submit(&self, job: Job) -> Result<EventReceiver, Error> {
        self.inner.process.check()?;
        let (sender, receiver) = listening::pair();
        let submission = JobSubmission { job, choices: Vec::new(), receiver: Box::new(sender) };
        self.inner.worker.commands()?.submit(submission).map_err(|_| Error::gone())?;
        Ok(receiver)
    }

    /// Runs `work` on the model's thread between two steps.
    pub(crate) fn with_scheduler<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Scheduler) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.inner.process.check()?;
        let (sender, receiver) = channel();
        let work = move |scheduler: &mut Scheduler| {
            // Caught here, so that the caller gets the message of the panic instead of a closed
            // channel.
            let ran = catch_unwind(AssertUnwindSafe(|| work(scheduler)));
            // The receiver may have been dropped.
            let _ = sender.send(ran.unwrap_or_else(|panic| Err(Error::panicked(&*panic))));
        };
        self.inner.worker.send(WorkerCommand::Between(Box::new(work)))?;
        waiting::receive(&receiver, None)?.unwrap_or_else(|| Err(Error::gone()))
    }

    /// Runs `work` on the model's thread when all earlier jobs have ended, with room for `tokens`
    /// tokens in the KV cache. If `go_on` returns false, the step of `work` is cancelled, and the
    /// function that it was given returns false.
    pub(crate) fn lend_engine<T: Send + 'static>(
        &self,
        tokens: usize,
        go_on: Option<WaitCheck<'_>>,
        work: impl FnOnce(&mut Engine, &dyn Fn() -> bool) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.inner.process.check()?;
        let cancel = CancelToken::new();
        let (sender, receiver) = channel();
        let asked = cancel.clone();
        let work = move |engine: &mut Engine| {
            let go_on = || !asked.is_cancelled();
            // The caller may have stopped waiting while earlier jobs ran.
            let done = if go_on() {
                // Unwind-safe: an unfinished sequence belongs to `work` and is dropped.
                let ran = catch_unwind(AssertUnwindSafe(|| work(engine, &go_on)));
                ran.unwrap_or_else(|panic| Err(Error::panicked(&*panic)))
            } else {
                Err(Error::cancelled())
            };
            // The caller may have stopped waiting.
            let _ = sender.send(done);
        };
        let loan = EngineLoan { tokens, cancel: cancel.clone(), work: Box::new(work) };
        self.inner.worker.send(WorkerCommand::Lend(loan))?;
        let received = waiting::receive(&receiver, go_on);
        if received.is_err() {
            // This token cancels the steps of `work` only.
            cancel.cancel();
        }
        received?.unwrap_or_else(|| Err(Error::gone()))
    }

    /// Checks a job before it is submitted, as the scheduler does.
    pub(crate) fn check(&self, job: &Job) -> Result<(), Error> {
        let description = &self.inner.description;
        job.check(description.context, description.vocab_size).map_err(|refusal| match refusal {
            Refusal::TooLong { tokens, context } => {
                let (largest, trained) = (description.largest_context, description.trained_context);
                let message = ContextLimits { context, largest, trained }.too_long(tokens);
                Error::new(ErrorKind::TooLong { tokens, context }, message)
            }
            other => other.into(),
        })
    }
}
