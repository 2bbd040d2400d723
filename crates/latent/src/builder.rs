//! Loading a model.

use crate::codec::TextCodec;
#[cfg(feature = "hub")]
use crate::download::HubDownload;
use crate::error::Error;
use crate::model::{Model, ModelSetup};
use crate::open;
use crate::options::LoadOptions;
use crate::waiting::WaitCheck;
use latent_backend::Backend;
use latent_engine::sampling::SamplingParams;
use latent_engine::{Draft, EngineOptions, Hosts};
use latent_formats::Checkpoint;
use latent_graph::passes::Precision;
#[cfg(feature = "hub")]
use latent_hub::HubSettings;
use latent_types::{CacheType, Tier};
use std::path::{Path, PathBuf};
use std::sync::Arc;

enum ModelSource {
    Path(PathBuf),
    Bytes(String, Vec<u8>),
    Checkpoint(Arc<Checkpoint>),
    #[cfg(feature = "demo")]
    Demo,
}

/// Loads a model. Latent chooses every option that is not set.
///
/// ```no_run
/// use latent::{CacheType, Model};
/// let model = Model::builder("model.gguf").context(4096).cache_type(CacheType::F16).device("auto").load()?;
/// println!("{}", model.description().name);
/// # Ok::<(), latent::Error>(())
/// ```
#[must_use = "a builder loads nothing before `load`"]
pub struct ModelBuilder {
    source: ModelSource,
    setup: ModelSetup,
    adapters: Vec<(PathBuf, f32)>,
    #[cfg(feature = "hub")]
    download: HubDownload,
}

impl Model {
    /// The model at `path`: a GGUF file, any of its shards, a folder of safetensors, or a packed
    /// file. With the feature `hub` also a model of the Hugging Face Hub (`hf.co/OWNER/NAME:QUANT`,
    /// or a short name), which is downloaded if it is not cached.
    pub fn builder(path: impl AsRef<Path>) -> ModelBuilder {
        ModelBuilder::new(ModelSource::Path(path.as_ref().to_owned()))
    }

    /// The model in the bytes of a GGUF file, for example one that is built into the program.
    /// Messages use `name` for it.
    pub fn bytes(name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> ModelBuilder {
        ModelBuilder::new(ModelSource::Bytes(name.into(), bytes.into()))
    }

    /// The model of an open checkpoint.
    pub fn opened(checkpoint: Arc<Checkpoint>) -> ModelBuilder {
        ModelBuilder::new(ModelSource::Checkpoint(checkpoint))
    }

    /// The demo model, which is built in with the feature `demo`. It tells short stories.
    #[cfg(feature = "demo")]
    pub fn demo() -> ModelBuilder {
        ModelBuilder::new(ModelSource::Demo)
    }
}

impl ModelBuilder {
    fn new(source: ModelSource) -> ModelBuilder {
        ModelBuilder {
            source,
            setup: ModelSetup {
                options: LoadOptions::default(),
                backend: None,
                text: None,
                sampling: None,
                reload: true,
                progress: Box::new(|_, _| {}),
            },
            adapters: Vec::new(),
            #[cfg(feature = "hub")]
            download: HubDownload { settings: None, progress: Box::new(|_, _| {}) },
        }
    }

    /// Sets the context size in tokens. Default: the model's limit, or what fits into memory.
    pub fn context(self, tokens: usize) -> ModelBuilder {
        self.engine(|engine| engine.context = Some(tokens))
    }

    /// Sets the element type of the KV cache. Default: f16, or f32 with exact precision.
    pub fn cache_type(self, cache: CacheType) -> ModelBuilder {
        self.engine(|engine| engine.cache = Some(cache))
    }

    /// Sets the capacity of the KV cache for all answers, in tokens. Default: one context.
    pub fn cache_tokens(self, tokens: usize) -> ModelBuilder {
        self.engine(|engine| engine.cache_tokens = Some(tokens))
    }

    /// Sets the number of threads. Default: one for each core that affinity and cgroup quotas leave
    /// to this process.
    pub fn threads(self, threads: usize) -> ModelBuilder {
        self.engine(|engine| engine.threads = Some(threads))
    }

    /// Sets the device: `cpu`, `gpu`, `gpu:N`, `auto` (a hardware GPU if this build and machine
    /// have one, otherwise the CPU) or `reference`. Default: `cpu`.
    pub fn device(mut self, device: impl Into<String>) -> ModelBuilder {
        self.setup.options.device = device.into();
        self
    }

    /// Sets a backend that the caller has opened, in place of [`device`](Self::device).
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> ModelBuilder {
        self.setup.backend = Some(backend);
        self
    }

    /// Sets the tokenizer and the chat template. Default: those of the model, which are read again.
    pub fn text(mut self, text: TextCodec) -> ModelBuilder {
        self.setup.text = Some(text);
        self
    }

    /// Sets the maximum batch size in tokens. Default: chosen from the available memory.
    pub fn max_batch_tokens(self, tokens: usize) -> ModelBuilder {
        self.engine(|engine| engine.max_batch_tokens = Some(tokens))
    }

    /// Sets the precision. With exact precision, answers have the same bits in any batch.
    pub fn precision(self, precision: Precision) -> ModelBuilder {
        self.engine(|engine| engine.precision = precision)
    }

    /// Sets the method of drafting. Default: [`Draft::Ngram`].
    pub fn draft(self, draft: Draft) -> ModelBuilder {
        self.engine(|engine| engine.draft = draft)
    }

    /// Sets the highest instruction-set tier to use. Default: the highest of this machine.
    pub fn isa(self, tier: Tier) -> ModelBuilder {
        self.engine(|engine| engine.tier = Some(tier))
    }

    /// Adds a LoRA adapter, a GGUF file or a PEFT folder, with a scale (1: as trained). It is not
    /// merged into the weights:
    /// [`AnswerRequest::adapter_scales`](crate::AnswerRequest::adapter_scales) sets other scales
    /// per answer.
    pub fn adapter(mut self, path: impl AsRef<Path>, scale: f32) -> ModelBuilder {
        self.adapters.push((path.as_ref().to_owned(), scale));
        self
    }

    /// Sets whether to load the model even if memory seems too small.
    pub fn force(self, force: bool) -> ModelBuilder {
        self.engine(|engine| engine.force = force)
    }

    /// Shares the model with other ranks. This process must be rank 0; the others call
    /// [`Engine::load_rank`](crate::engine::Engine::load_rank) with the same options.
    pub fn ranks(self, hosts: Hosts) -> ModelBuilder {
        self.engine(|engine| engine.hosts = Some(hosts))
    }

    /// Sets the sampling parameters of requests that set none. Default: those that the model
    /// recommends, or Latent's.
    pub fn sampling(mut self, sampling: SamplingParams) -> ModelBuilder {
        self.setup.sampling = Some(sampling);
        self
    }

    /// Sets the maximum number of answers that run at once. Default: 64.
    pub fn max_running(mut self, answers: usize) -> ModelBuilder {
        self.setup.options.scheduler.max_running = answers;
        self
    }

    /// Sets the maximum number of waiting answers. Further answers fail with
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) instead of their first piece. Default: no limit.
    pub fn max_waiting(mut self, answers: usize) -> ModelBuilder {
        self.setup.options.scheduler.max_waiting = answers;
        self
    }

    /// Sets whether the model is loaded again if the engine fails (a lost GPU, a panic). Otherwise
    /// all later calls fail. Default: true.
    pub fn reload(mut self, reload: bool) -> ModelBuilder {
        self.setup.reload = reload;
        self
    }

    /// Changes any option of the engine.
    pub fn engine(mut self, change: impl FnOnce(&mut EngineOptions)) -> ModelBuilder {
        change(&mut self.setup.options.engine);
        self
    }

    /// Sets all options.
    pub fn options(mut self, options: LoadOptions) -> ModelBuilder {
        self.setup.options = options;
        self
    }

    /// Sets a callback for the processed and the total bytes of the weights. It is called on the
    /// model's thread.
    pub fn progress(mut self, progress: impl FnMut(u64, u64) + Send + 'static) -> ModelBuilder {
        self.setup.progress = Box::new(progress);
        self
    }

    /// Sets the hub's address, the token and the cache folder. Default: those of the environment
    /// (`HF_TOKEN`, `LATENT_CACHE` and others).
    #[cfg(feature = "hub")]
    pub fn hub(mut self, settings: HubSettings) -> ModelBuilder {
        self.download.settings = Some(settings);
        self
    }

    /// Sets a callback for the received and the total bytes of a download. It is called on the
    /// thread that calls [`load`](Self::load).
    #[cfg(feature = "hub")]
    pub fn download_progress(mut self, progress: impl FnMut(u64, u64) + Send + 'static) -> ModelBuilder {
        self.download.progress = Box::new(progress);
        self
    }

    /// Loads the model, and waits until it is ready.
    ///
    /// # Errors
    /// If the file or an option is invalid, or the model does not fit into memory.
    pub fn load(self) -> Result<Model, Error> {
        self.load_with(None)
    }

    /// Like [`load`](Self::load), while `go_on` returns true. Otherwise loading ends in the
    /// background, and all memory is released.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn load_while(self, go_on: WaitCheck<'_>) -> Result<Model, Error> {
        self.load_with(Some(go_on))
    }

    #[cfg_attr(not(feature = "hub"), allow(unused_mut, reason = "asked during a download"))]
    fn load_with(self, mut go_on: Option<WaitCheck<'_>>) -> Result<Model, Error> {
        let checkpoint = match self.source {
            #[cfg(feature = "hub")]
            ModelSource::Path(path) => {
                // A download may take hours, so it can be stopped too.
                let mut go_on = || go_on.as_mut().is_none_or(|go_on| go_on());
                open::open(self.download.locate(&path, &mut go_on)?)?
            }
            #[cfg(not(feature = "hub"))]
            ModelSource::Path(path) => open::open(path)?,
            ModelSource::Bytes(name, bytes) => Arc::new(Checkpoint::from_bytes(&name, bytes)?),
            ModelSource::Checkpoint(checkpoint) => checkpoint,
            #[cfg(feature = "demo")]
            ModelSource::Demo => open::open_demo()?,
        };
        // Before `Model::load`, which clones the `Arc`: adapters need the only reference.
        let checkpoint = open::with_adapters(checkpoint, &self.adapters)?;
        Model::load(checkpoint, self.setup, go_on)
    }
}
