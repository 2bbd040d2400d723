//! Arguments that select a model and how it runs.

use super::limits::{DEVELOPER, HOSTS, PERFORMANCE, step_tokens, threads, tokens};
use super::metadata::MetadataArgs;
use crate::cpu_info::cpu_generation;
use crate::exit::UsageError;
use clap::Args;
use latent_backend::{Backend, BackendError, HUNG_AFTER};
use latent_engine::{DeviceLayers, Draft, Offload, SparseAttention};
use latent_graph::config::WireType;
use latent_graph::passes::{CacheForm, MlaChoice, Precision};
use latent_graph::{KernelTimings, Partition};
use latent_threads::PinPolicy;
use latent_types::{CacheType, Tier};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Which model, and how it is run.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArgs {
    /// A .gguf file (any shard of a set), a folder of .safetensors, a .latent file,
    /// hf:OWNER/NAME[:QUANT] on the Hugging Face Hub, or a short name such as glm-4.7-flash
    /// (downloaded if not cached; see `latent help pull`); default: the built-in demo model
    #[arg(short, long, env = "LATENT_MODEL")]
    pub(crate) model: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// How a model is run.
#[derive(Args, Clone, Debug)]
pub(crate) struct EngineArgs {
    /// Context size in tokens, such as 4096 or 4k (0: the model's limit) [default: the model's
    /// limit, or less if memory is short]
    // `ctx`: the spelling until 2026-11.
    #[arg(short, long, alias = "ctx", value_name = "TOKENS", value_parser = tokens(0))]
    pub(crate) ctx_size: Option<usize>,

    /// Number of threads [default: one per core, as affinity and cgroup quotas allow]
    #[arg(short, long, value_name = "N", value_parser = threads, allow_negative_numbers = true)]
    pub(crate) threads: Option<u16>,

    /// Maximum tokens per step; longer prompts run in batches of this size [default: 512 to 4096,
    /// by prompt and memory]
    // `chunk`: the spelling until 2026-11. `ubatch-size`: llama.cpp.
    #[arg(short, long, alias = "chunk", alias = "ubatch-size", value_name = "N", value_parser = step_tokens, help_heading = PERFORMANCE)]
    // A list, because -b and -ub of llama.cpp may both be given: the smaller one counts.
    pub(crate) batch_size: Vec<u16>,

    /// Type of the KV cache: f32, f16, bf16, or quantized latents: int8, q8_0, fp8, q4_0 [default:
    /// f16; with --precision exact: f32]
    // llama.cpp has one flag each for keys and values. MLA caches one latent for both.
    #[arg(long, alias = "cache-type-k", value_name = "TYPE", value_parser = cache_type, help_heading = PERFORMANCE)]
    pub(crate) cache_type: Option<CacheType>,

    /// Memory for recurrent states and their snapshots (Kimi-Linear, Ling-3.0), such as 500M or 2G;
    /// the oldest snapshots are dropped first [default: 24 states]
    #[arg(long, value_name = "BYTES", value_parser = super::limits::bytes, help_heading = PERFORMANCE)]
    pub(crate) state_cache: Option<u64>,

    /// Load a packed copy of the model from FOLDER; the first start writes it [default: the folder
    /// `packed` in LATENT_CACHE]
    #[arg(
        long,
        value_name = "FOLDER",
        // Without `require_equals`, `--pack-cache model.gguf` would take the model as the folder.
        num_args = 0..=1,
        require_equals = true,
        conflicts_with = "lora",
        help_heading = PERFORMANCE
    )]
    pub(crate) pack_cache: Option<Option<PathBuf>>,

    /// exact: f32 arithmetic, the reference; default: 8-bit activations for quantized weights
    #[arg(long, default_value = "default", help_heading = PERFORMANCE)]
    pub(crate) precision: Precision,

    /// Attention of models with an indexer (DeepSeek-V3.2, GLM-5): on (attend to the tokens that
    /// the indexer selects) or off (attend to all tokens, for comparison)
    #[arg(long, default_value = "on", value_name = "HOW", help_heading = PERFORMANCE)]
    pub(crate) sparse_attention: SparseAttention,

    /// A LoRA adapter: a GGUF file or a PEFT folder, with a scale [default: 1]; repeatable, or a
    /// list with commas
    #[arg(long, alias = "lora-scaled", value_name = "FILE[:SCALE]", value_delimiter = ',', value_parser = lora)]
    pub(crate) lora: Vec<LoraFile>,

    /// Device: cpu; gpu or gpu:N (see `latent devices`); auto (the first hardware GPU, otherwise
    /// the CPU); or reference (plain f32, one operation at a time: slow, for comparison) [default:
    /// cpu]
    #[arg(long, value_name = "NAME", value_parser = device)]
    pub(crate) device: Option<String>,

    /// Number of layers on the GPU, counted from the last one; the CPU runs the others. N (the
    /// output counts as one layer), all, or auto (as many as fit into GPU memory) [default: all];
    /// short: -ngl. Implies --device auto
    #[arg(
        long,
        // Both long names are llama.cpp's. -ngl is rewritten by `ONE_DASH`; `ngl` serves config
        // files and presets.
        visible_alias = "gpu-layers",
        alias = "ngl",
        value_name = "N",
        allow_negative_numbers = true
    )]
    pub(crate) n_gpu_layers: Option<DeviceLayers>,

    /// Source of draft tokens, which the model verifies: ngram (repeated text, if that is faster),
    /// mtp (the model's multi-token prediction layer), all (both), or none; the text stays the same
    #[arg(long, default_value = "ngram", value_name = "HOW", help_heading = PERFORMANCE)]
    pub(crate) draft: Draft,

    /// How the processes started by mpirun share the model: a list of pipeline=N or layers=A:B:…,
    /// tensor=N (heads and columns), experts=N [default: a pipeline of all processes; needs a build
    /// with the feature mpi, see docs/hosts.md]
    #[arg(long, value_name = "HOW", help_heading = HOSTS)]
    pub(crate) partition: Option<Partition>,

    /// Measurements of the hosts (see `latent help plan-hosts`); run and bench print the predicted
    /// speed next to the measured one
    #[arg(long, value_name = "FILE", help_heading = HOSTS)]
    pub(crate) hosts_file: Option<PathBuf>,

    /// Type of elements sent between ranks: f32, or bf16 for half the traffic (accuracy:
    /// docs/hosts.md)
    #[arg(long, default_value = "f32", value_name = "TYPE", help_heading = HOSTS)]
    pub(crate) wire: WireType,

    /// Seconds without progress in a step after which a rank counts as hung and all ranks end (0:
    /// never)
    #[arg(long, default_value_t = HUNG_AFTER.as_secs(), value_name = "SECONDS", help_heading = HOSTS)]
    pub(crate) hung_after: u64,

    /// Load even if memory seems insufficient; replace existing output files
    #[arg(long, help_heading = PERFORMANCE)]
    pub(crate) force: bool,

    /// Print kernels and details of the model when it is loaded
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Formulation of attention: absorbed (in latent space), naive (expanded keys and values),
    /// separate (content and rope scores computed separately), or auto
    #[arg(long, default_value = "auto", value_name = "FORM", help_heading = DEVELOPER)]
    pub(crate) mla: MlaChoice,

    /// Cache expanded keys and values instead of latents (with --mla naive, for comparison)
    #[arg(long, help_heading = DEVELOPER)]
    pub(crate) expanded_cache: bool,

    /// Highest instruction set to use: auto, portable, avx2, avx512 or amx
    #[arg(long, env = "LATENT_ISA", hide_env = true, default_value = "auto", value_name = "TIER", value_parser = isa, help_heading = DEVELOPER)]
    pub(crate) isa: IsaLimit,

    /// Bind threads to CPUs: cores (each to its own core), nodes (each to its NUMA node), off, or
    /// auto (nodes if the machine has several)
    #[arg(long, default_value = "auto", value_name = "HOW", help_heading = DEVELOPER)]
    pub(crate) pin: PinPolicy,

    /// Skip an optional pass of the plan, for comparison (`latent graph plan` shows the result);
    /// repeatable
    #[arg(long, value_name = "PASS", value_parser = latent_graph::passes::optional, help_heading = DEVELOPER)]
    pub(crate) without: Vec<&'static str>,

    /// Choose between instruction sets by the times that `latent kernels perf` has measured on this
    /// machine and saved in this file, instead of using the highest one; results stay the same.
    /// Products without times, and attention, use the highest one
    #[arg(long, value_name = "FILE", value_parser = tuned, value_hint = clap::ValueHint::FilePath, help_heading = PERFORMANCE)]
    pub(crate) tuned: Option<TunedFile>,

    /// Circuit file that replaces the model's own (`latent graph circuit` prints one)
    #[arg(long, value_name = "FILE", help_heading = DEVELOPER)]
    pub(crate) circuit: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) metadata: MetadataArgs,
}

/// An adapter and its scale.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoraFile {
    pub(crate) path: PathBuf,
    pub(crate) scale: f32,
}

/// Parses `FILE` or `FILE:SCALE`.
pub(super) fn lora(word: &str) -> Result<LoraFile, String> {
    // The text after the last colon is a scale only if it is a number: `C:\a.gguf` has a colon,
    // too.
    let scaled = word.rsplit_once(':').and_then(|(file, scale)| Some((file, scale.parse::<f32>().ok()?)));
    let (file, scale) = scaled.unwrap_or((word, 1.0));
    if file.is_empty() || !scale.is_finite() {
        return Err("expected a file and, after a colon, a finite number".into());
    }
    Ok(LoraFile { path: file.into(), scale })
}

/// A limit on instruction sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IsaLimit(pub(crate) Option<Tier>);

pub(crate) fn isa(word: &str) -> Result<IsaLimit, String> {
    if word == "auto" {
        return Ok(IsaLimit(None));
    }
    word.parse()
        .map(|tier| IsaLimit(Some(tier)))
        .map_err(|_| "expected auto, portable, avx2, avx512 or amx".into())
}

/// Kernel times measured on this machine, or the error of the file. It is reported only if the
/// command has the flag, which `Cli::settle` decides.
#[derive(Clone, Debug)]
pub(crate) struct TunedFile(pub(crate) Result<Arc<KernelTimings>, String>);

#[expect(clippy::unnecessary_wraps, reason = "clap expects a result")]
fn tuned(file: &str) -> Result<TunedFile, String> {
    let read = || {
        let tier = latent_backends::cpu().isa(None).map_err(|error| error.to_string())?;
        let timings = KernelTimings::read(Path::new(file), &cpu_generation(), tier);
        timings.map(Arc::new).map_err(|error| error.to_string())
    };
    Ok(TunedFile(read()))
}

/// Parses a type of the KV cache, including llama.cpp's names.
pub(crate) fn cache_type(word: &str) -> Result<CacheType, String> {
    match word.to_ascii_lowercase().as_str() {
        "q4_1" | "iq4_nl" | "q5_0" | "q5_1" => {
            Err("unsupported type: expected f32, f16, bf16, q8_0, q4_0, int8 or fp8".into())
        }
        // vLLM's name.
        "fp8_e4m3" => Ok(CacheType::Fp8),
        _ => word.parse(),
    }
}

/// Checks the name of a device. It is opened later.
pub(crate) fn device(word: &str) -> Result<String, String> {
    latent_backends::check_name(word).map(|()| word.to_owned()).map_err(|error| error.to_string())
}

impl EngineArgs {
    /// The name of the backend.
    pub(crate) fn device_name(&self) -> &str {
        // In llama.cpp `-ngl N` alone uses a GPU.
        self.device.as_deref().unwrap_or(if self.asks_for_layers() { "auto" } else { "cpu" })
    }

    /// Whether the flags put layers on a GPU.
    pub(crate) fn asks_for_layers(&self) -> bool {
        self.n_gpu_layers.is_some_and(|layers| layers != DeviceLayers::Count(0))
    }

    /// Whether a GPU may run the model.
    pub(crate) fn wants_gpu(&self) -> bool {
        !latent_backends::NAMES.contains(&self.device_name())
    }

    /// The same arguments on the CPU.
    pub(crate) fn on_cpu(&self) -> EngineArgs {
        // Both are removed, because --n-gpu-layers alone selects a GPU.
        EngineArgs { device: None, n_gpu_layers: None, ..self.clone() }
    }

    /// The backend.
    pub(crate) fn backend(&self) -> Result<Box<dyn Backend>, BackendError> {
        latent_backends::by_name(self.device_name())
    }

    /// The backend without a device: it makes plans and kernels, but opens no driver and runs
    /// nothing.
    pub(crate) fn hollow_backend(&self) -> Result<Box<dyn Backend>, BackendError> {
        latent_backends::hollow(self.device_name())
    }

    /// Refuses `--tuned` if the CPU runs no kernels.
    pub(crate) fn check_tuned(&self, backend: &dyn Backend) -> Result<(), UsageError> {
        if self.tuned.is_none() || backend.name() == "cpu" || self.offload(backend).is_some() {
            return Ok(());
        }
        let problem = "--tuned is for CPU kernels: omit it, or use --device cpu";
        Err(UsageError(format!("--device {}: {problem}", self.device_name())))
    }

    /// The layers that the CPU runs in addition to this backend; `None` for other devices.
    pub(crate) fn offload(&self, backend: &dyn Backend) -> Option<Offload> {
        let layers = self.n_gpu_layers.filter(|_| !latent_backends::NAMES.contains(&backend.name()))?;
        Some(Offload { front: latent_backends::cpu().into(), layers })
    }

    /// Maximum tokens of a step in plans that are only printed.
    pub(crate) fn max_batch_tokens(&self) -> usize {
        self.batch_tokens().unwrap_or(latent_engine::DEFAULT_BATCH_TOKENS)
    }

    /// Maximum tokens of a step.
    pub(crate) fn batch_tokens(&self) -> Option<usize> {
        // llama.cpp has a logical (-b) and a physical batch (-ub), which cannot be larger.
        self.batch_size.iter().min().copied().map(usize::from)
    }

    pub(crate) fn form(&self) -> CacheForm {
        if self.expanded_cache { CacheForm::Expanded } else { CacheForm::Latent }
    }

    /// The engine's options, except the circuit, which [`model::load`](crate::model::load) reads,
    /// and those that depend on the backend.
    pub(crate) fn options(&self) -> latent_engine::EngineOptions {
        latent_engine::EngineOptions {
            mla: self.mla,
            sparse: self.sparse_attention,
            precision: self.precision,
            form: self.form(),
            cache: self.cache_type,
            states: latent_engine::cache::StateOptions::default(),
            state_cache: self.state_cache,
            context: self.ctx_size,
            cache_tokens: None,
            // 0 stands for llama.cpp's -1 (see `limits::threads`): the engine chooses.
            threads: self.threads.filter(|threads| *threads > 0).map(usize::from),
            pin: self.pin,
            placement: None,
            tier: self.isa.0,
            max_batch_tokens: self.batch_tokens(),
            draft: self.draft,
            draft_cost: None,
            force: self.force,
            circuit: None,
            hosts: None,
            offload: None,
            first_layers: None,
            wire: self.wire,
            without: self.without.clone(),
            tuned: self.tuned.as_ref().and_then(|file| file.0.clone().ok()),
            hung_after: Some(Duration::from_secs(self.hung_after)),
        }
    }
}
