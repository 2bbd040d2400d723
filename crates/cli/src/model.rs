//! Opening a model: a file, a folder, a model of the hub, or the built-in demo model.

use crate::args::{EngineArgs, LoraFile, ModelArgs};
use crate::exit::UsageError;
use crate::progress::LateBar;
use crate::{hub, interrupt, output, pack_cache, ranks};
use anyhow::{Context, Result, anyhow};
use latent::{Model, SamplingParams, TextCodec};
use latent_backend::{Backend, BackendError};
use latent_engine::{Engine, EngineOptions, PeakRates, Summary};
use latent_formats::{
    AdapterFile, Checkpoint, CheckpointSource, FormatError, Outline, OutlineData, input_file, limits,
};
use latent_graph::circuit::{DeclaredTensors, TensorIndex};
use latent_graph::{Circuit, ModelConfig, support};
use latent_types::{Tier, format_bytes};
use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Name of the built-in model in messages.
pub(crate) const DEMO_NAME: &str = "(built-in demo model)";

/// Opens the model at `path` (a reference to the hub is resolved), or the built-in one.
pub(crate) fn open(path: Option<&Path>) -> Result<Arc<Checkpoint>> {
    opened(path).map(Arc::new)
}

fn opened(path: Option<&Path>) -> Result<Checkpoint> {
    let checkpoint = match path {
        Some(path) => Checkpoint::open(&hub::resolve(path)?)?,
        None => demo()?,
    };
    warn_if_older(&checkpoint);
    Ok(checkpoint)
}

/// Opens the model of a command that runs in one process, with the metadata overrides of its flags.
pub(crate) fn open_alone(args: &ModelArgs) -> Result<Arc<Checkpoint>> {
    with_metadata(pack_cache::cached(opened(args.model.as_deref())?, &args.engine)?, &args.engine)
}

/// Opens the model of a command that several ranks may run.
pub(crate) fn open_for_rank(path: Option<&Path>, args: &EngineArgs) -> Result<Arc<Checkpoint>> {
    let checkpoint = match path {
        Some(path) if ranks::hosts(args.partition.as_ref())?.is_some() => {
            // Each rank needs only the files with its own tensors, so a host may hold some of the
            // shards.
            let checkpoint = Checkpoint::open_for_rank(&hub::resolve(path)?)?;
            warn_if_older(&checkpoint);
            checkpoint
        }
        _ => pack_cache::cached(opened(path)?, args)?,
    };
    with_metadata(checkpoint, args)
}

/// [`open_for_rank`] of a command's arguments.
pub(crate) fn open_shared(args: &ModelArgs) -> Result<Arc<Checkpoint>> {
    open_for_rank(args.model.as_deref(), &args.engine)
}

/// Applies `--override-kv` and the `--rope-…` flags to the model's metadata.
fn with_metadata(checkpoint: Checkpoint, args: &EngineArgs) -> Result<Arc<Checkpoint>> {
    let architecture = match checkpoint.source() {
        CheckpointSource::Gguf(source) => source.metadata.str("general.architecture")?.unwrap_or_default(),
        // GGUF keys begin with the architecture (`deepseek2.rope.freq_base`). A config.json has no
        // such prefix.
        CheckpointSource::HuggingFace(_) => "",
    };
    let overrides = args.metadata.overrides(architecture);
    let changed = checkpoint.with_metadata(&overrides);
    let changed = changed.map_err(|error| UsageError(format!("--override-kv or --rope-…: {error}")))?;
    Ok(Arc::new(with_adapters(changed, args)?))
}

/// Adds the adapters of `--lora`.
fn with_adapters(checkpoint: Checkpoint, args: &EngineArgs) -> Result<Checkpoint> {
    let open = |lora: &LoraFile| Ok((AdapterFile::open(&lora.path)?, lora.scale));
    let adapters = args.lora.iter().map(open).collect::<Result<Vec<_>, FormatError>>()?;
    Ok(checkpoint.with_adapters(adapters)?)
}

/// The model with the adapters of `--lora`, for commands whose model may lack its data; `None`
/// without adapters.
pub(crate) fn adapted(path: Option<&Path>, args: &EngineArgs) -> Result<Option<Checkpoint>> {
    if args.lora.is_empty() { Ok(None) } else { with_adapters(opened(path)?, args).map(Some) }
}

/// Warns if the source of a packed file is in the same folder and has changed since.
fn warn_if_older(checkpoint: &Checkpoint) {
    let Some(from) = checkpoint.packed_from() else { return };
    // Only the bare name is used: a packed file from elsewhere must not make the program open files
    // outside of its folder.
    let Some(name) = Path::new(&from.name).file_name() else { return };
    let source = checkpoint.path().with_file_name(name);
    // The packed file may have taken the name of its source, or the source was deleted to free the
    // disk.
    if source == checkpoint.path() || !source.exists() {
        return;
    }
    let opened = Checkpoint::open(&source);
    let (file, source) = (checkpoint.display_name(), source.display());
    match opened {
        Ok(there) if there.identity() == from.identity => {}
        Ok(_) => output::note(&format!(
            "warning: {source} in the same folder is not the file that {file} was packed from, or has changed since; \
             `latent pack -m {source} --force` packs it again"
        )),
        Err(error) => output::note(&format!("warning: cannot compare {file} with its source: {error}")),
    }
}

/// The outline of the model at `path`, whose data may be missing, or of the built-in one.
pub(crate) fn outline(path: Option<&Path>) -> Result<Outline> {
    let outline = match path {
        Some(path) => Outline::open(&hub::resolve(path)?)?,
        None => Outline::from(demo()?),
    };
    if let Some(whole) = outline.whole() {
        warn_if_older(whole);
    }
    Ok(outline)
}

/// Describes the model at `path`, or the built-in one, whose data may be missing.
pub(crate) fn describe(path: Option<&Path>, circuit: Option<&Path>) -> Result<ModelInfo> {
    let path = path.map(hub::resolve).transpose()?;
    let path = path.as_deref();
    let outline = outline(path)?;
    if outline.data() == OutlineData::Config && outline.refusal().is_some() {
        return Err(outline.into_refusal().map_or_else(|| anyhow!("it cannot be opened"), Into::into));
    }
    // If a folder without tensors does not suffice, the useful error is why it cannot be opened: an
    // incomplete download, or weights in another format (PyTorch's .bin).
    let folder = path.filter(|path| outline.data() == OutlineData::Config && path.is_dir());
    ModelInfo::new(outline, circuit).map_err(|error| {
        let unsupported = matches!(error.downcast_ref(), Some(latent_graph::ConfigError::Unsupported { .. }));
        match folder.filter(|_| !unsupported).map(Checkpoint::open) {
            Some(Err(cause)) => cause.into(),
            _ => error,
        }
    })
}

/// Config, circuit and tensor names of a model, without its data.
pub(crate) struct ModelInfo {
    pub(crate) outline: Outline,
    pub(crate) config: ModelConfig,
    /// The model's own circuit, or the one of `--circuit`.
    pub(crate) circuit: Cow<'static, Circuit>,
    /// The tensors that a config.json without tensors implies.
    pub(crate) promised: Option<DeclaredTensors>,
}

impl ModelInfo {
    /// Reads the config of a supported model. `circuit` is the file of `--circuit`.
    pub(crate) fn new(outline: Outline, circuit: Option<&Path>) -> Result<ModelInfo> {
        let config = ModelConfig::from_outline(&outline)?;
        let circuit = circuit_for(circuit, &config)?;
        let promised = support::implied_tensors(&outline, &circuit, &config)?;
        Ok(ModelInfo { outline, config, circuit, promised })
    }

    /// The tensors that the model has, or that its config implies.
    pub(crate) fn tensors(&self) -> &dyn TensorIndex {
        match &self.promised {
            Some(promised) => promised,
            None => &self.outline,
        }
    }
}

#[cfg(feature = "demo")]
fn demo() -> Result<Checkpoint> {
    // The only reference, so that the error does not occur.
    Arc::into_inner(latent::open_demo()?).context(DEMO_NAME)
}

#[cfg(not(feature = "demo"))]
fn demo() -> Result<Checkpoint> {
    let problem = "this build has no demo model (it was built without the feature `demo`): use -m MODEL";
    Err(UsageError(problem.into()).into())
}

/// Loads a model with a progress bar on a terminal, and the start-up line on standard error.
pub(crate) fn load(checkpoint: &Arc<Checkpoint>, args: &EngineArgs, quiet: bool) -> Result<Engine> {
    let (backend, options) = prepared(checkpoint, args)?;
    let mut bar = LateBar::bytes(!quiet, "loading");
    let mut progress = |done, total| show_loading(&mut bar, done, total);
    let engine = ranks::load(&*backend, checkpoint, &options, &mut progress);
    bar.finish();
    let engine = engine?;
    describe_plans(args);
    if !quiet {
        describe_load(&engine, checkpoint, args.verbose);
    }
    Ok(engine)
}

/// [`load`] for answers, with a tokenizer, chat template and sampling parameters that were read
/// before. The process must not follow rank 0.
pub(crate) fn load_for_answers(
    checkpoint: &Arc<Checkpoint>,
    text: TextCodec,
    sampling: SamplingParams,
    args: &EngineArgs,
    quiet: bool,
) -> Result<Model> {
    let (backend, engine) = prepared(checkpoint, args)?;
    let bar = Arc::new(Mutex::new(LateBar::bytes(!quiet, "loading")));
    let locked = |bar: &Mutex<LateBar>, change: &dyn Fn(&mut LateBar)| {
        change(&mut bar.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let shown = Arc::clone(&bar);
    let model = Model::opened(Arc::clone(checkpoint))
        .text(text)
        .sampling(sampling)
        .backend(backend.into())
        .engine(move |options| *options = engine)
        // The command ends with an error.
        .reload(false)
        .progress(move |done, total| locked(&shown, &|bar| show_loading(bar, done, total)))
        .load();
    locked(&bar, &LateBar::finish);
    let model = model?;
    describe_plans(args);
    if !quiet {
        let (checkpoint, verbose) = (Arc::clone(checkpoint), args.verbose);
        model.with_engine(0, move |engine| describe_load(engine, &checkpoint, verbose))?;
    }
    Ok(model)
}

/// Shows the progress of loading. A signal ends the program, which has nothing to save.
fn show_loading(bar: &mut LateBar, done: u64, total: u64) {
    bar.set(done, total);
    if interrupt::asked() {
        bar.finish();
        interrupt::end_if_asked();
    }
}

/// Prints which passes of the plans are skipped.
fn describe_plans(args: &EngineArgs) {
    if !args.without.is_empty() {
        output::note(&format!("plans are made without {}", args.without.join(", ")));
    }
}

/// The backend and the options of the flags.
fn prepared(checkpoint: &Checkpoint, args: &EngineArgs) -> Result<(Box<dyn Backend>, EngineOptions)> {
    let circuit = circuit(args.circuit.as_deref())?.map(Arc::new);
    let hosts = ranks::hosts(args.partition.as_ref())?;
    // Without this error, a forgotten mpirun would silently run the whole model on one host.
    if args.hosts_file.is_some() && hosts.is_none() {
        let problem = "--hosts-file needs several ranks, but this process runs the model alone: start ranks \
                       with mpirun (docs/hosts.md), or omit the flag; `latent plan-hosts` predicts without \
                       ranks";
        return Err(UsageError(problem.into()).into());
    }
    let backend = backend(args)?;
    args.check_tuned(&*backend)?;
    // An invalid config is not an error here: the engine reports it while it loads.
    let limit = ModelConfig::before_loading(checkpoint).map(|config| config.context_length);
    let args = &*limit.map_or(Cow::Borrowed(args), |limit| with_context(args, limit));
    let options = EngineOptions { circuit, hosts, offload: args.offload(&*backend), ..args.options() };
    Ok((backend, options))
}

/// The backend of the flags.
pub(crate) fn backend(args: &EngineArgs) -> Result<Box<dyn Backend>, BackendError> {
    let backend = args.backend()?;
    // llama.cpp accepts `-ngl` on a machine without a GPU and runs on the CPU. Command lines are
    // shared between machines, so this is a warning here, too.
    if let Some(layers) = args.n_gpu_layers
        && args.asks_for_layers()
        && latent_backends::NAMES.contains(&backend.name())
    {
        let why = match &args.device {
            Some(device) if device != "auto" => format!("--device is {device}"),
            _ if latent_backends::gpu_devices().is_empty() => "no GPU is available".to_owned(),
            _ => "the only GPU is a software adapter, used only with --device gpu".to_owned(),
        };
        output::note(&format!("warning: --n-gpu-layers {layers} is ignored: {why}"));
    }
    Ok(backend)
}

/// Limits the context to that of the model.
pub(crate) fn with_context(args: &EngineArgs, limit: usize) -> Cow<'_, EngineArgs> {
    match args.ctx_size {
        // As in llama-server: `-c 0` is the model's limit, and a larger value is reduced with a
        // warning.
        Some(tokens) if tokens == 0 || tokens > limit => {
            if tokens > limit {
                output::note(&format!(
                    "warning: --ctx-size {tokens} exceeds the model's limit: using {limit} tokens"
                ));
            }
            Cow::Owned(EngineArgs { ctx_size: Some(limit), ..args.clone() })
        }
        _ => Cow::Borrowed(args),
    }
}

/// Refuses more tokens than the model's context.
pub(crate) fn check_length(tokens: usize, limit: usize) -> Result<()> {
    if tokens > limit {
        let problem = format!("{tokens} tokens exceed the model's context of {limit}: use fewer");
        return Err(UsageError(problem).into());
    }
    Ok(())
}

/// Prints which model was loaded and how it will run.
pub(crate) fn describe_load(engine: &Engine, checkpoint: &Checkpoint, verbose: bool) {
    output::note(&start_up_line(engine, checkpoint.display_name() == DEMO_NAME));
    if verbose {
        output::say(&details(engine));
    }
    warn_of_limits(engine);
    if engine.drafts() && engine.config().mtp_layers > 1 {
        let layers = engine.config().mtp_layers;
        output::note(&format!("only the first of {layers} MTP layers drafts"));
    }
    doubts(engine);
}

/// Measures the peak rates of the device, on the cores that the engine's threads use.
pub(crate) fn limits(engine: &Engine, args: &EngineArgs) -> Result<PeakRates> {
    let summary = engine.summary();
    // `-ngl 0` runs all layers on the CPU although --device names a GPU.
    let cpu = summary.backend == latent_backends::NAMES[0];
    let backend = if cpu { latent_backends::cpu() } else { args.backend()? };
    let measured = latent_backends::limits(&*backend, &summary.placement, summary.tier);
    measured.context("measuring the machine's limits")
}

/// The device or cores whose peak rates are measured.
pub(crate) fn measured(summary: &Summary) -> String {
    if summary.backend == "gpu" { "the GPU".into() } else { summary.placement.to_string() }
}

/// Prints audit findings of the user's circuit.
fn doubts(engine: &Engine) {
    // Warnings, not errors: a faulty circuit must run, so that it can be debugged.
    let doubts = &engine.summary().doubts;
    doubts.iter().take(MAX_SHOWN_DOUBTS).for_each(|doubt| output::note(&format!("warning: {doubt}")));
    if doubts.len() > MAX_SHOWN_DOUBTS {
        output::note(&format!(
            "warning: and {} more of this kind: `latent verify` lists them",
            doubts.len() - MAX_SHOWN_DOUBTS
        ));
    }
}

/// Maximum number of findings shown.
const MAX_SHOWN_DOUBTS: usize = 3;

/// The circuit of `--circuit`, or the model's own.
pub(crate) fn circuit_for(path: Option<&Path>, config: &ModelConfig) -> Result<Cow<'static, Circuit>> {
    Ok(match circuit(path)? {
        Some(circuit) => Cow::Owned(circuit),
        None => Cow::Borrowed(Circuit::named(&config.circuit)?),
    })
}

/// Name of the circuit, or the file of `--circuit`.
pub(crate) fn circuit_name(args: &EngineArgs, config: &ModelConfig) -> String {
    args.circuit.as_ref().map_or_else(|| config.circuit.clone(), |path| path.display().to_string())
}

/// The circuit of `--circuit`, if given.
pub(crate) fn circuit(path: Option<&Path>) -> Result<Option<Circuit>> {
    let Some(path) = path else { return Ok(None) };
    let name = || path.display().to_string();
    let text = input_file::read_text(path, limits::MAX_CIRCUIT_BYTES)?;
    Circuit::parse(&text).with_context(name).map(Some)
}

/// `DeepSeek-V2-Lite: 15.7 B parameters, 10.36 GB; context 32768; 2 threads`.
fn start_up_line(engine: &Engine, demo: bool) -> String {
    let s = engine.summary();
    let name = if demo { "built-in demo model" } else { &s.name };
    let gpu = if s.backend == "gpu" { "; GPU" } else { "" };
    let (size, parameters) = (format_bytes(s.weight_bytes), count(s.parameters));
    format!("{name}: {parameters} parameters, {size}; context {}; {}{gpu}", s.context, s.placement)
}

/// Kernels, cache and load time, for `--verbose`.
fn details(engine: &Engine) -> String {
    let s = engine.summary();
    let state = match s.state_bytes {
        0 => String::new(),
        bytes => format!(" and {} of recurrent state per sequence", format_bytes(bytes as u64)),
    };
    format!(
        "kernels: {}\n{} KV cache, {} per token{state}; at most {} tokens per step; ready in {:.2} s",
        device(s),
        s.cache,
        format_bytes(s.token_bytes as u64),
        engine.max_batch_tokens(),
        s.load_time.as_secs_f64(),
    )
}

/// Prints warnings about memory and slow kernels.
fn warn_of_limits(engine: &Engine) {
    let s = engine.summary();
    s.warnings.iter().for_each(|warning| output::note(&format!("warning: {warning}")));
    if let Some(paged) = &s.paged {
        output::note(&format!("warning: {paged}"));
    }
    if let Some(dense) = &s.dense {
        output::note(&format!("warning: {dense}"));
    }
    match s.timed {
        None => {}
        Some(0) => {
            output::note("warning: --tuned has no effect: the file has no times for this model's kernels")
        }
        Some(count) => output::note(&format!("{count} kernels were chosen by measured times")),
    }
    if !s.portable.is_empty() {
        output::note(&format!("portable code for: {}", s.portable.join(", ")));
    }
}

/// `avx512 with avx512_q4_k_a8_tiles`, or the name of a device without kernels. If two devices
/// share the layers, both are described.
fn device(summary: &Summary) -> String {
    let own = kernels(summary.backend, summary.tier, &summary.kernels);
    let Some(front) = &summary.front else { return own };
    let behind = match front.of - front.layers {
        0 => "the output".to_owned(),
        layers => format!("{layers} of {} layers and the output", front.of),
    };
    let before = kernels(front.backend, front.tier, &front.kernels);
    format!("{own} for {behind}, {before} for the first {}", front.layers)
}

fn kernels(backend: &str, tier: Tier, kernels: &[String]) -> String {
    match kernels {
        [] => backend.to_owned(),
        kernels => format!("{tier} with {}", kernels.join(", ")),
    }
}

/// `15.7 B`, `8.9 M`.
pub(crate) fn count(n: u64) -> String {
    let (value, unit) = match n {
        1_000_000_000.. => (n as f64 / 1e9, "B"),
        1_000_000.. => (n as f64 / 1e6, "M"),
        _ => return n.to_string(),
    };
    format!("{value:.2} {unit}")
}
