//! Loading models for the server: at the start, on request, and after a device was lost.

use super::answers::AnswerDefaults;
use crate::args::{EngineArgs, ModelArgs, SamplingArgs, ServeArgs};
use crate::commands::draw;
use crate::commands::sampling::Sampling;
use crate::exit::usage_of;
use crate::{model, output, ranks};
use anyhow::{Context, Result};
use latent_backend::BackendError;
use latent_convert::quantize::Mix;
use latent_engine::{DeviceLayers, Engine, EngineError, EngineOptions};
use latent_formats::{Checkpoint, CheckpointSource};
use latent_server::{
    DrawingSource, Fallback, LoadAttempt, LoadError, LoadedModel, Loader, ModelFacts, ModelSettings,
    ModelSource, RequestDefaults, ServerConfig,
};
use latent_text::Tokenizer;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Default number of contexts in the KV cache, if memory allows.
const DEFAULT_CONTEXTS: usize = 4;

/// If contexts are short, the cache holds one per concurrent request, up to this number of tokens.
const MAX_SHORT_CACHE_TOKENS: usize = 32_768;

/// Maximum default context.
// A cache with several contexts of a model's own limit (often 128k and more) would seldom fit.
const MAX_DEFAULT_CONTEXT: usize = 32_768;

/// How models are loaded.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) engine: EngineArgs,
    pub(super) sampling: SamplingArgs,
    pub(super) answers: AnswerDefaults,
    /// Minimum number of first layers that run on the CPU (`--n-cpu-moe`).
    pub(super) cpu_layers: usize,
    pub(super) cache_tokens: Option<usize>,
    /// Maximum number of concurrent requests.
    pub(super) parallel: usize,
    /// What takes over if a GPU fails.
    pub(super) fallback: Fallback,
    pub(super) quiet: bool,
}

impl Setup {
    /// The setup of the models of these arguments.
    pub(super) fn new(args: &ServeArgs) -> Result<Setup> {
        Ok(Setup {
            engine: args.engine.clone(),
            sampling: args.sampling.clone(),
            answers: AnswerDefaults::new(&args.answers, args.engine.verbose)?,
            // llama-server's `--cpu-moe` keeps the experts of all layers on the CPU. Latent places
            // whole layers, so all of them stay there.
            cpu_layers: if args.placement.cpu_moe {
                usize::MAX
            } else {
                args.placement.n_cpu_moe.unwrap_or(0)
            },
            cache_tokens: args.server.cache_tokens,
            parallel: args.server.parallel.unwrap_or(ServerConfig::default().scheduler.max_running).max(1),
            fallback: args.server.gpu_fallback.unwrap_or_default(),
            quiet: args.quiet,
        })
    }

    fn falls_back(&self) -> bool {
        self.fallback == Fallback::Cpu && self.engine.wants_gpu()
    }
}

/// A model's names and its description in lists.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelNaming {
    pub(super) name: String,
    /// Further names.
    pub(super) aliases: Vec<String>,
    pub(super) tags: Vec<String>,
    /// A fingerprint of its files and settings, to detect changes.
    pub(super) definition: String,
    pub(super) settings: ModelSettings,
}

/// A model whose files are open already. Its first load reuses them.
pub(super) fn opened(
    setup: &Arc<Setup>,
    naming: ModelNaming,
    path: Option<PathBuf>,
    checkpoint: Arc<Checkpoint>,
) -> Result<ModelSource> {
    // Errors in its metadata, sampling recommendations or template are reported at the start, too.
    let ModelNaming { name, aliases, tags, definition, settings } = naming;
    let about = about(setup, &checkpoint, &name)?;
    let (shown, bytes) = (about.path, about.bytes);
    Ok(ModelSource {
        aliases,
        tags,
        loader: loader(Arc::clone(setup), name.clone(), path.clone(), Some(checkpoint)),
        drawing: Some(drawing(setup, path)),
        name,
        path: shown,
        bytes,
        definition,
        settings,
    })
}

/// A model that is opened when it is first requested.
pub(super) fn unopened(setup: &Arc<Setup>, naming: ModelNaming, path: PathBuf) -> ModelSource {
    let ModelNaming { name, aliases, tags, definition, settings } = naming;
    let (shown, path) = (path.display().to_string(), Some(path));
    ModelSource {
        aliases,
        tags,
        // A reference to the hub is not a path: its size counts as 0 until it is loaded.
        bytes: std::fs::metadata(&shown).map_or(0, |file| file.len()),
        loader: loader(Arc::clone(setup), name.clone(), path.clone(), None),
        drawing: Some(drawing(setup, path)),
        name,
        path: shown,
        definition,
        settings,
    }
}

/// The default name of a model.
pub(super) fn name(path: Option<&Path>, checkpoint: &Checkpoint) -> String {
    let stem = checkpoint.path().file_stem().map(|stem| stem.to_string_lossy().into_owned());
    match path {
        None if stem.is_none() || checkpoint.display_name() == model::DEMO_NAME => "latent-demo".to_owned(),
        _ => stem.unwrap_or_else(|| "model".into()),
    }
}

/// The facts about a model that requests and responses use.
fn about(setup: &Setup, checkpoint: &Checkpoint, name: &str) -> Result<ModelFacts> {
    let sampling = Sampling::new(&setup.sampling, checkpoint)?.params;
    let vocab = latent_graph::ModelConfig::before_loading(checkpoint)?.vocab_size;
    sampling.validate(vocab).map_err(usage_of)?;
    Ok(ModelFacts {
        id: name.to_owned(),
        path: checkpoint.display_name(),
        chat_template: match &setup.answers.template {
            Some(own) => Some(own.clone()),
            None => latent_text::chat_template(checkpoint)?.map(str::to_owned),
        },
        response_template: latent_text::response_template(checkpoint).cloned(),
        sampling,
        defaults: RequestDefaults {
            seed: setup.sampling.fixed_seed(),
            max_tokens: setup.sampling.max_tokens(),
            stop: setup.sampling.stop.clone(),
            logprobs: setup.sampling.logprobs,
            ignore_eos: setup.sampling.ignore_eos,
            context_shift: setup.answers.defaults.context_shift && !setup.sampling.ends_with_context(),
            ..setup.answers.defaults.clone()
        },
        bytes: std::fs::metadata(checkpoint.path()).map_or(0, |file| file.len()),
        quantization: Some(quantization(checkpoint)),
        falls_back: false,
    })
}

/// The file type stated in a GGUF file, or the type of most weights by bytes.
fn quantization(checkpoint: &Checkpoint) -> String {
    let stated = match checkpoint.source() {
        CheckpointSource::Gguf(source) => source.metadata.u64("general.file_type").ok().flatten(),
        _ => None,
    };
    if let Some(mix) = stated.and_then(|id| Mix::from_id(u32::try_from(id).ok()?)) {
        return mix.name().to_owned();
    }
    // Ordered, so that of two types with equal bytes always the same one is named.
    let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        *bytes.entry(tensor.ty.to_string()).or_default() += tensor.bytes as u64;
    }
    bytes.into_iter().max_by_key(|(_, count)| *count).map_or_else(|| "unknown".to_owned(), |(name, _)| name)
}

/// The function that loads the model. It keeps nothing of the model between calls, so an unloaded
/// model occupies no memory.
fn loader(
    setup: Arc<Setup>,
    name: String,
    path: Option<PathBuf>,
    mut opened: Option<Arc<Checkpoint>>,
) -> Loader {
    let (mut described, mut on_cpu) = (setup.quiet, false);
    Box::new(move |attempt| {
        // Only the first load uses the files opened at the start. Later loads open them again,
        // because they may have been replaced.
        let checkpoint = match opened.take() {
            Some(checkpoint) => checkpoint,
            None => model::open_for_rank(path.as_deref(), &setup.engine)?,
        };
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).context(checkpoint.display_name())?;
        let tokenizer = Arc::new(tokenizer);
        setup.answers.check(&tokenizer)?;
        let engine = load_or_fall_back(&checkpoint, &setup, attempt, &mut on_cpu)?;
        // Only the first load prints the start-up line: a model may be unloaded and loaded many
        // times.
        if !std::mem::replace(&mut described, true) {
            model::describe_load(&engine, &checkpoint, setup.engine.verbose);
        }
        let mut about = about(&setup, &checkpoint, &name)?;
        // A recurrent state cannot forget its oldest tokens, so the flag cannot be honored.
        if about.defaults.context_shift && engine.kv_cache().layout().is_recurrent() {
            return Err(EngineError::NoContextShift.into());
        }
        about.falls_back = setup.falls_back() && !on_cpu;
        Ok(LoadedModel { engine, tokenizer, about })
    })
}

/// Loads the model on the CPU if its GPU was lost before or fails now and `--gpu-fallback` is
/// given. Later loads stay on the CPU.
fn load_or_fall_back(
    checkpoint: &Arc<Checkpoint>,
    setup: &Setup,
    attempt: &mut LoadAttempt<'_>,
    on_cpu: &mut bool,
) -> Result<Engine, LoadError> {
    *on_cpu |= setup.falls_back() && attempt.lost.is_some();
    if !*on_cpu {
        match load(checkpoint, setup, attempt) {
            Err(error) if setup.falls_back() && is_of_device(&*error, attempt.alone) => {
                output::note(&format!("warning: {error}; continuing on the CPU (--gpu-fallback)"));
                *on_cpu = true;
            }
            loaded => return loaded,
        }
    }
    load(checkpoint, &Setup { engine: setup.engine.on_cpu(), ..setup.clone() }, attempt)
}

/// Whether the CPU may load the model despite this error.
fn is_of_device(error: &(dyn std::error::Error + Send + Sync + 'static), alone: bool) -> bool {
    let device = |error: &BackendError| matches!(error, BackendError::Device(_) | BackendError::Lost(_));
    match error.downcast_ref::<EngineError>() {
        Some(EngineError::Backend(error)) => device(error),
        // Too little device memory counts only if no other model is loaded. Otherwise unloading
        // that model may help.
        Some(EngineError::Memory(problem)) => alone && problem.layers.is_some(),
        Some(EngineError::Piece(_)) => true,
        Some(_) => false,
        // The device or its backend does not exist.
        None => error.downcast_ref::<BackendError>().is_some(),
    }
}

/// Loads the model with room for several contexts if memory allows, else for one. A smaller context
/// is used only if no other model can be unloaded to make room.
fn load(
    checkpoint: &Arc<Checkpoint>,
    setup: &Setup,
    attempt: &mut LoadAttempt<'_>,
) -> Result<Engine, LoadError> {
    let config = latent_graph::ModelConfig::before_loading(checkpoint)?;
    let limit = config.context_length;
    let args = with_cpu_layers(&setup.engine, setup.cpu_layers, config.layers);
    let args = &*model::with_context(&args, limit);
    let circuit = model::circuit(args.circuit.as_deref())?.map(Arc::new);
    let backend = model::backend(args)?;
    args.check_tuned(&*backend)?;
    let hosts = ranks::hosts(args.partition.as_ref())?;
    if hosts.is_some() {
        // A failed load ends all ranks, so there is only one try and no smaller cache.
        let options = shared_options(setup, checkpoint)?;
        return Ok(Engine::load(&*backend, checkpoint, &options, attempt.progress)?);
    }
    let offload = args.offload(&*backend);
    let options = EngineOptions { circuit, offload, cache_tokens: setup.cache_tokens, ..args.options() };
    let mut load = |options: &EngineOptions| Engine::load(&*backend, checkpoint, options, attempt.progress);
    let context = args.ctx_size.unwrap_or(limit.min(MAX_DEFAULT_CONTEXT));
    if setup.cache_tokens.is_none() {
        let cache_tokens = several_contexts(setup, context);
        let several =
            EngineOptions { context: Some(context), cache_tokens: Some(cache_tokens), ..options.clone() };
        match load(&several) {
            // Several contexts do not fit: the next try has room for one.
            Err(EngineError::Memory(_) | EngineError::Piece(_)) => {}
            loaded => return Ok(loaded?),
        }
    }
    // Without a size, the engine reduces the context to what fits. With other models in memory an
    // error is better: the server then unloads one of them and tries again.
    let context = if attempt.alone { args.ctx_size } else { Some(context) };
    match load(&EngineOptions { context, ..options.clone() }) {
        // The context is a default, and unloading another model cannot help: a single buffer
        // exceeds the device's limit.
        Err(EngineError::Piece(_)) if args.ctx_size.is_none() && context.is_some() => {
            Ok(load(&EngineOptions { context: None, ..options })?)
        }
        loaded => Ok(loaded?),
    }
}

/// The arguments with at least `on_cpu` of `layers` layers on the CPU. The output (lm_head) counts
/// as one layer more, as for `-ngl`.
fn with_cpu_layers(args: &EngineArgs, on_cpu: usize, layers: usize) -> EngineArgs {
    let mut args = args.clone();
    // Without a GPU all layers run on the CPU anyway.
    if on_cpu > 0 && args.wants_gpu() {
        let most = if on_cpu < layers { layers + 1 - on_cpu } else { 0 };
        args.n_gpu_layers = match args.n_gpu_layers {
            Some(DeviceLayers::Count(count)) => Some(DeviceLayers::Count(count.min(most))),
            _ => Some(DeviceLayers::Count(most)),
        };
    }
    args
}

/// Size in tokens of a cache with room for several contexts.
fn several_contexts(setup: &Setup, context: usize) -> usize {
    (DEFAULT_CONTEXTS * context).max(MAX_SHORT_CACHE_TOKENS.min(setup.parallel.saturating_mul(context)))
}

/// The options of a model that several ranks share.
fn shared_options(setup: &Setup, checkpoint: &Checkpoint) -> Result<EngineOptions> {
    let limit = latent_graph::ModelConfig::before_loading(checkpoint)?.context_length;
    let args = &*model::with_context(&setup.engine, limit);
    // All ranks must get the same numbers, so none may look at its own free memory.
    let context = args.ctx_size.unwrap_or(limit.min(MAX_DEFAULT_CONTEXT));
    Ok(EngineOptions {
        circuit: model::circuit(args.circuit.as_deref())?.map(Arc::new),
        hosts: ranks::hosts(args.partition.as_ref())?,
        context: Some(context),
        cache_tokens: Some(setup.cache_tokens.unwrap_or_else(|| several_contexts(setup, context))),
        ..args.options()
    })
}

/// Follows rank 0, which serves the model, until it ends.
pub(super) fn follow(setup: &Setup, checkpoint: &Arc<Checkpoint>) -> Result<()> {
    let options = shared_options(setup, checkpoint)?;
    Ok(ranks::follow_all(&*setup.engine.backend()?, checkpoint, &options)?)
}

/// The page of `latent graph --html`.
fn drawing(setup: &Setup, model: Option<PathBuf>) -> DrawingSource {
    let args = ModelArgs { model, engine: setup.engine.clone() };
    Arc::new(move || draw::page_of(&args).map_err(|error| format!("{error:#}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct EngineFlags {
        #[command(flatten)]
        engine: EngineArgs,
    }

    #[test]
    fn first_layers_stay_on_the_cpu() {
        let count = |words: &str, on_cpu: usize| {
            let line = EngineFlags::parse_from(["latent"].into_iter().chain(words.split_whitespace()));
            with_cpu_layers(&line.engine, on_cpu, 27).n_gpu_layers
        };
        // 27 layers and the output.
        assert_eq!(count("--n-gpu-layers 99", 20), Some(DeviceLayers::Count(8)));
        assert_eq!(count("--n-gpu-layers 5", 20), Some(DeviceLayers::Count(5)));
        assert_eq!(count("--device gpu", 26), Some(DeviceLayers::Count(2)));
        assert_eq!(count("--device gpu", 27), Some(DeviceLayers::Count(0)));
        assert_eq!(count("--device gpu", usize::MAX), Some(DeviceLayers::Count(0)));
        assert_eq!(count("--device gpu", 0), None);
        // All layers are on the CPU anyway.
        assert_eq!(count("", 20), None);
    }
}
