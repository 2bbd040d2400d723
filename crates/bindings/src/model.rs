//! An opened model and the thread that runs it.

use crate::description::Description;
use crate::error::{Error, ErrorKind};
use crate::listening::{self, EventReceiver};
use crate::open;
use crate::options::LoadOptions;
use crate::process::Process;
use crate::waiting::{self, WaitCheck};
use crate::worker::{Command, Loan, ModelWorker};
use latent_backend::Backend;
use latent_engine::Engine;
use latent_engine::sampling::{RecommendedParams, SamplingParams};
use latent_engine::scheduler::{Job, Scheduler, SchedulerOptions};
use latent_formats::Checkpoint;
use latent_graph::ModelConfig;
use latent_graph::passes::BindOptions;
use latent_text::{ChatTemplate, EncodeOptions, ModelHints, ResponseFormat, Tokenizer};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

/// A loaded model. Clones are handles to the same one; the last that is dropped gives its memory back.
///
/// ```
/// fn shared<T: Send + Sync + Clone + 'static>() {}
/// shared::<latent_bindings::ModelHandle>();
/// ```
#[derive(Clone)]
pub struct ModelHandle {
    pub(crate) inner: Arc<ModelContents>,
}

pub(crate) struct ModelContents {
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) config: ModelConfig,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) template_source: Option<String>,
    pub(crate) format: ResponseFormat,
    pub(crate) sampling: SamplingParams,
    pub(crate) options: LoadOptions,
    pub(crate) bind: BindOptions,
    pub(crate) max_batch_tokens: usize,
    pub(crate) description: Description,
    process: Process,
    worker: ModelWorker,
}

impl Drop for ModelContents {
    fn drop(&mut self) {
        if !self.process.is_this() {
            self.worker.forget();
        }
    }
}

/// What is known of an engine when it is loaded.
struct EngineDescription {
    description: Description,
    bind: BindOptions,
    max_batch_tokens: usize,
}

impl ModelHandle {
    /// Loads the model at `path` (a GGUF file, any of its shards, a folder of safetensors, a packed file), or the built-in demo model. `go_on` is
    /// asked meanwhile; where it answers false, loading ends in the background and nothing stays.
    ///
    /// # Errors
    /// What is wrong with the file or the options; too little memory, with what is needed.
    pub fn load(
        path: Option<&Path>,
        options: LoadOptions,
        go_on: WaitCheck<'_>,
    ) -> Result<ModelHandle, Error> {
        let checkpoint = open::open(path)?;
        // what is not supported is said before what is missing, and both before the weights are read
        let config = ModelConfig::from_checkpoint(&checkpoint)?;
        let tokenizer =
            Arc::new(Tokenizer::from_checkpoint(&checkpoint).map_err(|error| named(&checkpoint, error))?);
        let template_source = latent_text::chat_template(&checkpoint)?.map(str::to_owned);
        let template = template_source.as_deref().map(ChatTemplate::new).transpose()?;
        let sampling = RecommendedParams::of(&checkpoint)?.params();
        let (format, warning) = response_format(&checkpoint, &config, template_source.as_deref())?;
        let starting = {
            let (checkpoint, tokenizer, options) =
                (Arc::clone(&checkpoint), Arc::clone(&tokenizer), options.clone());
            ModelWorker::start(move || {
                let backend = latent_backends::by_name(&options.device)?;
                let engine = Engine::load(&*backend, &checkpoint, &options.engine, &mut |_, _| {})?;
                let loaded = EngineDescription {
                    description: Description::new(&checkpoint, &engine),
                    bind: engine.bind(),
                    max_batch_tokens: engine.max_batch_tokens(),
                };
                // callers block until their job runs, so the queue accepts any number of them
                let (max_waiting, max_waiting_tokens) = (usize::MAX, usize::MAX);
                let options =
                    SchedulerOptions { max_waiting, max_waiting_tokens, ..SchedulerOptions::default() };
                Ok((Scheduler::new(engine, tokenizer, options), loaded))
            })?
        };
        let loaded = waiting::receive(&starting.loaded, go_on)?;
        let (cancel, loaded) = loaded.unwrap_or_else(|| Err(Error::gone()))?;
        let EngineDescription { mut description, bind, max_batch_tokens } = loaded;
        description.warnings.extend(warning);
        let inner = ModelContents {
            checkpoint,
            config,
            tokenizer,
            template,
            template_source,
            format,
            sampling,
            options,
            bind,
            max_batch_tokens,
            description,
            process: Process::this(),
            worker: starting.ready(cancel),
        };
        Ok(ModelHandle { inner: Arc::new(inner) })
    }

    /// What was loaded, and how it runs.
    pub fn description(&self) -> &Description {
        &self.inner.description
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    /// The source of the model's chat template, if it has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.inner.template_source.as_deref()
    }

    /// The tokens of a text. `add_special` adds the tokens that begin (and end) a prompt.
    /// `parse_special` recognizes names of control tokens; do not set it for untrusted text.
    ///
    /// # Errors
    /// A text that cannot be encoded.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, Error> {
        Ok(self.inner.tokenizer.encode(text, EncodeOptions { add_special, parse_special })?)
    }

    /// The text of tokens, with the names of control tokens if `special`. Invalid UTF-8 becomes
    /// U+FFFD.
    ///
    /// # Errors
    /// A token that the vocabulary does not have.
    pub fn decode(&self, tokens: &[u32], special: bool) -> Result<String, Error> {
        let known = self.inner.tokenizer.vocab_size();
        match tokens.iter().position(|token| *token as usize >= known) {
            None => Ok(self.inner.tokenizer.decode(tokens, special)),
            Some(at) => Err(Error::argument(format!(
                "token id {} at {at} is out of range: the tokenizer has {known} tokens",
                tokens[at]
            ))),
        }
    }

    /// The backend that runs it, for what is only planned or measured.
    pub(crate) fn backend(&self) -> Result<Box<dyn Backend>, Error> {
        Ok(latent_backends::by_name(&self.inner.options.device)?)
    }

    /// Asks the model's thread for an answer.
    pub(crate) fn submit(&self, job: Job) -> Result<EventReceiver, Error> {
        self.inner.process.check()?;
        let (telling, listening) = listening::pair();
        self.inner.worker.send(Command::Submit(Box::new(job), telling))?;
        Ok(listening)
    }

    /// Runs `work` on the model's thread when the jobs before have ended, with room for `tokens` tokens in the KV cache. Where `go_on` answers
    /// false, it ends: `work` finds out by the function that it is given.
    pub(crate) fn with_engine<T: Send + 'static>(
        &self,
        tokens: usize,
        go_on: WaitCheck<'_>,
        work: impl FnOnce(&mut Engine, &dyn Fn() -> bool) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.inner.process.check()?;
        let wanted = Arc::new(AtomicBool::new(true));
        let (sender, receiver) = channel();
        let asked = Arc::clone(&wanted);
        let work = move |engine: &mut Engine| {
            let go_on = || asked.load(Ordering::SeqCst);
            let done = if go_on() {
                // what is half done is a sequence of its own, which is dropped
                let ran = catch_unwind(AssertUnwindSafe(|| work(engine, &go_on)));
                ran.unwrap_or_else(|panic| Err(Error::panicked(&*panic)))
            } else {
                Err(Error::stopped())
            };
            // the caller may have stopped waiting
            let _ = sender.send(done);
        };
        self.inner.worker.send(Command::Lend(Loan { tokens, work: Box::new(work) }))?;
        let received = waiting::receive(&receiver, go_on);
        if received.is_err() {
            wanted.store(false, Ordering::SeqCst);
            self.inner.worker.cancel_token().cancel();
        }
        received?.unwrap_or_else(|| Err(Error::gone()))
    }
}

/// An error of the tokenizer with the file that it is in.
fn named(checkpoint: &Checkpoint, error: latent_text::TextError) -> Error {
    let Error { kind, message } = error.into();
    let message = match kind {
        ErrorKind::NotFound => message,
        _ => format!("{}: {message}", checkpoint.display_name()),
    };
    Error { kind, message }
}

/// How the model writes reasoning and calls: its own template, or one of ours where that cannot be used, and a warning that says why.
fn response_format(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    chat_template: Option<&str>,
) -> Result<(ResponseFormat, Option<String>), Error> {
    let hints = ModelHints {
        response_template: latent_text::response_template(checkpoint),
        chat_template,
        architecture: Some(config.architecture.as_str()),
    };
    let failed = match ResponseFormat::for_model(&hints) {
        Ok(format) => return Ok((format, None)),
        Err(error) => error,
    };
    let without = ModelHints { response_template: None, ..hints };
    let format = ResponseFormat::for_model(&without)
        .map_err(|error| Error::new(ErrorKind::Engine, error.to_string()))?;
    Ok((format, Some(format!("the model's response_template is left out: {failed}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_work_with_the_engine_is_an_error_and_the_model_goes_on() {
        let mut options = LoadOptions::default();
        (options.engine.context, options.engine.threads) = (Some(64), Some(1));
        let model = ModelHandle::load(None, options, &mut || true).unwrap();
        let lent = model.with_engine::<()>(1, &mut || true, |_, _| panic!("nothing is there"));
        let error = lent.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Engine);
        assert!(error.message.contains("nothing is there"), "{error}");
        assert!(model.logits(vec![1, 2], false, &mut || true).is_ok());
    }
}
