//! A loaded model and the thread that runs it.

use crate::codec::TextCodec;
use crate::description::Description;
use crate::error::Error;
use crate::listening::{self, EventReceiver};
use crate::options::LoadOptions;
use crate::process::Process;
use crate::waiting::{self, WaitCheck};
use crate::worker::ModelWorker;
use latent_backend::{Backend, CancelToken};
use latent_engine::Engine;
use latent_engine::sampling::{RecommendedParams, SamplingParams};
use latent_engine::scheduler::{Job, Scheduler};
use latent_engine::worker::{EngineLoan, JobSubmission, WorkerCommand, WorkerModel};
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

/// Called with the processed and the total bytes of the weights while a model is loaded.
pub(crate) type LoadProgress = Box<dyn FnMut(u64, u64) + Send>;

impl Model {
    /// Loads a model. If `go_on` returns false, loading ends in the background.
    pub(crate) fn load(
        checkpoint: Arc<Checkpoint>,
        options: LoadOptions,
        mut progress: LoadProgress,
        go_on: Option<WaitCheck<'_>>,
    ) -> Result<Model, Error> {
        // Parsed on this thread before the weights are read, so that an unsupported model fails at
        // once.
        let config = ModelConfig::from_checkpoint(&checkpoint)?;
        let text = TextCodec::of(&checkpoint, &config)?;
        let sampling = RecommendedParams::of(&checkpoint)?.params();
        let (worker, loaded) = {
            let (checkpoint, tokenizer, options) =
                (Arc::clone(&checkpoint), Arc::clone(text.tokenizer()), options.clone());
            ModelWorker::start(move || {
                // Opened in this closure, so that a reload after a fault opens the device again.
                let backend = latent_backends::by_name(&options.device)?;
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
        description.warnings.extend(text.warning().cloned());
        let inner = ModelContents {
            checkpoint,
            config,
            text,
            sampling,
            options,
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

    /// The sampling parameters that the model recommends, with Latent's defaults for the others.
    /// The seed is 0.
    pub fn recommended_sampling(&self) -> &SamplingParams {
        &self.inner.sampling
    }

    /// The backend of the model, for planning and measuring.
    pub(crate) fn backend(&self) -> Result<Box<dyn Backend>, Error> {
        Ok(latent_backends::by_name(&self.inner.options.device)?)
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
    pub(crate) fn with_engine<T: Send + 'static>(
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
        Ok(job.check(self.inner.description.context, self.inner.config.vocab_size)?)
    }
}
