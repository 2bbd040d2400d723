//! `latent serve`.

use super::answer::ConstraintArgs;
use super::config_file::ConfigFile;
use super::limits::{bytes, count_to, tokens_or_all, up_to};
use super::model::{EngineArgs, cache_type};
use super::sampling::SamplingArgs;
use super::words::hub_model;
use clap::Args;
use latent_engine::Pooling;
use latent_server::Fallback;
use latent_types::CacheType;
use std::ffi::OsString;
use std::fmt;
use std::mem::take;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The end of `latent help serve`.
pub(crate) const SERVE_HELP: &str =
    "Flags have priority over environment variables, and these over the file of
--config, which sets flags by name, such as ctx_size = 4096 (docs/serving.md).
Flags and variables of llama-server and flags of vLLM work too
(docs/switching.md).

Examples:
  latent serve            the built-in demo model, at http://127.0.0.1:8080
  latent serve model.gguf --parallel 16
  latent serve model.gguf --host 0.0.0.0 --api-key-file keys.txt
  latent serve small=small.gguf big=hf:OWNER/NAME:Q4_K_M --unload-idle 10m
  latent serve model.gguf --partition pipeline=2 --restart \\
      --launch \"mpirun -n 2 --host a,b --bind-to none\"

A single model is loaded at the start; several are loaded when a request first
names them.

The first Ctrl-C or SIGTERM lets running requests finish; the second ends the
program.";

#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Models, as with -m
    #[arg(value_name = "[NAME=]MODEL")]
    pub(crate) words: Vec<String>,

    /// A .gguf file (any shard of a set), a folder of .safetensors, a .latent file, or
    /// hf:OWNER/NAME[:QUANT] on the Hugging Face Hub; default: the built-in demo model. Several
    /// models, each as NAME=MODEL, are loaded when requests name them
    #[arg(short, long = "model", env = "LATENT_MODEL", value_name = "[NAME=]MODEL")]
    pub(crate) models: Vec<String>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) answers: AnswerArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,

    /// Print only warnings and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Lines about flags and variables of other servers that have no effect.
    #[arg(skip)]
    pub(crate) without_effect: Vec<String>,

    /// The command line and the environment, in Latent's own flags.
    #[arg(skip)]
    pub(crate) line: CommandLine,

    /// The file of --config.
    #[arg(skip)]
    pub(crate) file: Arc<ConfigFile>,
}

/// The words of the command line. Models with a preset parse them again.
#[derive(Clone, Default)]
pub(crate) struct CommandLine(pub(crate) Vec<OsString>);

impl fmt::Debug for CommandLine {
    /// Prints no words: they repeat the other fields and may contain API keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommandLine")
    }
}

/// Flags of llama-server that Latent's own flags say otherwise.
#[derive(Args, Clone, Debug)]
// Hidden, so that help shows one way for each setting. Scripts for llama-server use these flags.
pub(crate) struct PlacementArgs {
    /// Model on the Hugging Face Hub
    #[arg(long, value_name = "OWNER/NAME[:QUANT]", hide = true, conflicts_with_all = ["models", "words"])]
    pub(crate) hf_repo: Option<String>,

    /// File of --hf-repo
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) hf_file: Option<String>,

    /// Type of the cached values: that of --cache-type
    #[arg(long, value_name = "TYPE", hide = true, value_parser = cache_type)]
    pub(crate) cache_type_v: Option<CacheType>,

    /// Run the first N layers on the CPU
    #[arg(long, value_name = "N", hide = true)]
    pub(crate) n_cpu_moe: Option<usize>,

    /// Run all layers on the CPU
    #[arg(long, hide = true, conflicts_with = "n_cpu_moe")]
    pub(crate) cpu_moe: bool,

    /// API keys, separated by commas
    #[arg(long, value_name = "KEY", hide = true, value_delimiter = ',')]
    pub(crate) api_key: Vec<String>,
}

/// Settings of answers whose requests do not set them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Defaults of requests")]
pub(crate) struct AnswerArgs {
    #[command(flatten)]
    pub(crate) constraint: ConstraintArgs,

    /// Chat template that replaces the model's: a file, the template itself, which contains {, or
    /// chatml
    #[arg(long, value_name = "FILE|TEXT")]
    pub(crate) chat_template: Option<String>,

    /// Variables of the chat template: a JSON object such as {"enable_thinking": false}
    #[arg(long, value_name = "JSON")]
    pub(crate) chat_template_kwargs: Option<String>,

    /// Whether the model thinks before it answers, if its chat template has such a switch: on, off
    /// or auto (the template's default)
    #[arg(long, value_name = "WHEN")]
    pub(crate) reasoning: Option<ReasoningSwitch>,

    /// How much the model thinks, if its chat template supports it: low, medium, high, …, or
    /// default
    #[arg(long, value_name = "LEVEL")]
    pub(crate) reasoning_effort: Option<String>,

    /// Maximum number of reasoning tokens; 0: none, -1: no limit [default: -1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..))]
    pub(crate) reasoning_budget: Option<i32>,

    /// Text that ends the reasoning when --reasoning-budget is used up
    #[arg(long, value_name = "TEXT", requires = "reasoning_budget")]
    pub(crate) reasoning_budget_message: Option<String>,

    /// Where reasoning is returned: in its own field (deepseek or auto), or in the content (none)
    /// [default: auto]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) reasoning_format: Option<ReasoningPlace>,

    /// When the context of an answer is full, discard its older half and continue; otherwise the
    /// answer ends
    #[arg(long)]
    pub(crate) context_shift: bool,

    /// Number of tokens at the beginning that --context-shift keeps (-1: the whole prompt)
    /// [default: 0]
    #[arg(long, value_name = "N", value_parser = tokens_or_all(usize::MAX), allow_negative_numbers = true)]
    pub(crate) keep: Option<usize>,

    /// Show control tokens in answers to plain prompts
    #[arg(long)]
    pub(crate) special: bool,

    /// Answer a final assistant message instead of continuing it
    #[arg(long)]
    pub(crate) no_prefill_assistant: bool,

    /// Do not use cached prompts, unless a request sets cache_prompt
    #[arg(long)]
    pub(crate) no_cache_prompt: bool,

    /// Pooling of embeddings: mean, last (the last token), cls (the first token), or none (one per
    /// token) [default: mean]
    #[arg(long, value_name = "HOW", value_parser = pooling)]
    pub(crate) pooling: Option<Pooling>,
}

fn pooling(word: &str) -> Result<Pooling, String> {
    match word {
        "mean" => Ok(Pooling::Mean),
        "last" => Ok(Pooling::Last),
        "cls" => Ok(Pooling::First),
        "none" => Ok(Pooling::None),
        // llama.cpp's pooling of rerankers.
        "rank" => Err("reranking is not supported: expected mean, last, cls or none".into()),
        _ => Err("expected mean, last, cls or none".into()),
    }
}

/// Where reasoning is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReasoningPlace {
    /// In a field of its own.
    Auto,
    /// In a field of its own.
    Deepseek,
    /// In the content, with its markers.
    None,
}

/// Whether a model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReasoningSwitch {
    On,
    Off,
    /// As its template has it.
    Auto,
}

impl FromStr for ReasoningSwitch {
    type Err = String;

    fn from_str(word: &str) -> Result<ReasoningSwitch, String> {
        match word {
            // llama-server's words for on and off.
            "on" | "true" | "enabled" | "1" => Ok(ReasoningSwitch::On),
            "off" | "false" | "disabled" | "0" => Ok(ReasoningSwitch::Off),
            "auto" | "-1" => Ok(ReasoningSwitch::Auto),
            _ => Err("expected on, off or auto".into()),
        }
    }
}

impl ServeArgs {
    /// Moves positional arguments and flags of other servers into Latent's own fields. `given`:
    /// whether `-m` is on the command line.
    pub(super) fn settle(&mut self, given: bool) -> Result<(), String> {
        let placement = &mut self.placement;
        if placement.hf_repo.is_none() && placement.hf_file.is_some() {
            return Err("--hf-file needs --hf-repo".into());
        }
        // A model on the command line replaces LATENT_MODEL, which clap has put into `models`. With
        // -m, words are further models.
        self.models = match (take(&mut self.words), placement.hf_repo.take()) {
            (_, Some(repo)) => vec![hub_model(&repo, placement.hf_file.take().as_deref())],
            (words, None) if given => self.models.iter().cloned().chain(words).collect(),
            (words, None) if words.is_empty() => take(&mut self.models),
            (words, None) => words,
        };
        // MLA caches one latent per token, not keys and values.
        match (self.engine.cache_type, placement.cache_type_v.take()) {
            (Some(keys), Some(values)) if keys != values => Err(format!(
                "--cache-type-k {keys} and --cache-type-v {values} differ: keys and values must have the \
                 same type"
            )),
            (keys, values) => {
                self.engine.cache_type = keys.or(values);
                Ok(())
            }
        }
    }
}

/// Where to listen, and to whom.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// Address to listen on, or several separated by commas [default: 127.0.0.1]
    #[arg(long, env = "LATENT_HOST", value_name = "ADDRESS")]
    pub(crate) host: Option<String>,

    /// Port to listen on (0: any free port) [default: 8080]
    #[arg(long, env = "LATENT_PORT", value_name = "PORT")]
    pub(crate) port: Option<u16>,

    /// Load the adapters of --lora with scale 0; POST /lora-adapters or requests set the scales
    #[arg(long, requires = "lora")]
    pub(crate) lora_init_without_apply: bool,

    /// Name of the model in requests, or several separated by commas (the first one is shown)
    /// [default: from the model or its file]
    #[arg(short, long, env = "LATENT_ALIAS", value_name = "NAME")]
    pub(crate) alias: Option<String>,

    /// Tags of the model in `/v1/models`, separated by commas
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    pub(crate) tags: Vec<String>,

    /// Serve the models in this folder (files, and folders with shards or safetensors) under their
    /// names
    #[arg(long, value_name = "FOLDER")]
    pub(crate) models_dir: Option<PathBuf>,

    /// Serve the models of this INI file, in llama-server's format, and the downloaded models
    #[arg(long, value_name = "FILE")]
    pub(crate) models_preset: Option<PathBuf>,

    /// Serve the downloaded models as OWNER/NAME:QUANT, and let clients download and delete models
    /// (POST and DELETE /models)
    #[arg(long)]
    pub(crate) models_cache: bool,

    /// Load models only on POST /models/load; requests for other models are refused
    #[arg(long)]
    pub(crate) no_models_autoload: bool,

    /// Never use the network: only downloaded models are available
    #[arg(long)]
    pub(crate) offline: bool,

    /// Maximum number of loaded models; the least recently used one is unloaded first (0: as many
    /// as fit into memory) [default: 0]
    #[arg(long, env = "LATENT_MODELS_MAX", value_name = "N", value_parser = count_to(1 << 16))]
    pub(crate) models_max: Option<usize>,

    /// Unload an idle model after this time: 90s, 10m, 2h, or never; the next request loads it
    /// again [default: never]
    #[arg(long, env = "LATENT_UNLOAD_IDLE", value_name = "TIME", value_parser = idle)]
    pub(crate) unload_idle: Option<IdleTimeout>,

    /// Maximum number of concurrent requests; others wait [default: 16]
    // `np` is llama.cpp's.
    #[arg(long, alias = "np", alias = "max-batch", value_name = "N", value_parser = up_to(4096))]
    pub(crate) parallel: Option<usize>,

    /// Maximum number of waiting requests; others get status 429 [default: 512]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 20))]
    pub(crate) max_waiting: Option<usize>,

    /// What to do if the GPU is missing, fails while loading, or is lost: cpu (continue on the CPU,
    /// with the running requests), or none (report an error, and load the model on the GPU again)
    /// [default: none]
    #[arg(long, value_name = "WHAT")]
    pub(crate) gpu_fallback: Option<Fallback>,

    /// Size of the KV cache for all requests, in tokens [default: four contexts; for short contexts
    /// one per --parallel request, up to 32768 tokens; less if memory is short]
    #[arg(long, value_name = "TOKENS", value_parser = up_to(super::limits::MAX_TOKENS))]
    pub(crate) cache_tokens: Option<usize>,

    /// File with API keys, one per line; the variable LATENT_API_KEY can hold keys too
    #[arg(long, env = "LATENT_API_KEY_FILE", value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// Allow addresses other than loopback without API keys
    #[arg(long)]
    pub(crate) allow_unauthenticated: bool,

    /// Allow requests from web pages of this origin: https://chat.example.org, localhost (any port
    /// of this machine), or * (all origins); repeatable
    // `cors-origins`: llama.cpp's name.
    #[arg(long, alias = "cors-origins", value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) cors: Vec<String>,

    /// With --cors '*', allow credentials from all origins. Pages of origins named by --cors can
    /// always send them
    #[arg(long)]
    pub(crate) cors_credentials: bool,

    /// Disable /slots, which shows token counts and sampling settings of running requests
    #[arg(long)]
    pub(crate) no_slots: bool,

    /// Folder for saved slots (POST /slots/N?action=save and restore)
    #[arg(long, value_name = "FOLDER")]
    pub(crate) slot_save_path: Option<PathBuf>,

    /// Certificate chain in PEM format, for HTTPS
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key of the certificate in PEM format
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Prefix of all paths, such as /llm
    #[arg(long, value_name = "PATH")]
    pub(crate) api_prefix: Option<String>,

    /// Do not serve the chat page
    // llama.cpp's older name.
    #[arg(long, alias = "no-webui")]
    pub(crate) no_ui: bool,

    /// Close connections without progress after this time [default: 20 for receiving, 60 for
    /// sending]
    #[arg(long, value_name = "SECONDS", value_parser = up_to(1 << 20))]
    pub(crate) timeout: Option<usize>,

    /// Share cached prompts between API keys: faster, but response times can reveal the prompts of
    /// other keys
    #[arg(long)]
    pub(crate) share_prefixes: bool,

    /// Keep cached prompts in this folder across restarts
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache_disk: Option<PathBuf>,

    /// Maximum size of the folder of --cache-disk: 500M, 20G [default: 16G]
    #[arg(long, value_name = "BYTES", requires = "cache_disk", value_parser = bytes)]
    pub(crate) cache_disk_size: Option<u64>,

    /// Send traces to the OpenTelemetry collector at this URL, such as http://127.0.0.1:4318; also
    /// OTEL_EXPORTER_OTLP_ENDPOINT
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,

    /// Start the ranks of a model with mpirun, and start them again if one fails
    #[arg(long)]
    pub(crate) restart: bool,

    /// Command with which --restart starts the ranks; words are separated by spaces [default:
    /// mpirun -n RANKS --bind-to none, with the ranks of --partition]
    #[arg(long, value_name = "COMMAND", requires = "restart")]
    pub(crate) launch: Option<String>,

    /// Stop, as after Ctrl-C, when standard input ends: for programs that start a server
    // --restart itself adds this flag for the ranks.
    #[arg(long, conflicts_with = "restart")]
    pub(crate) stop_at_eof: bool,

    /// Settings file in TOML format
    #[arg(long, env = "LATENT_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Log level on standard error: off, error, warn, info (a line per request), debug or trace
    /// [default: warn]
    #[arg(long, env = "LATENT_LOG", value_name = "LEVEL")]
    pub(crate) log: Option<String>,
}

/// Idle time after which a model is unloaded; `None`: never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleTimeout(pub(crate) Option<Duration>);

fn idle(word: &str) -> Result<IdleTimeout, String> {
    if word == "never" {
        // A type of its own, because clap takes a plain `Option` for a flag that may be absent.
        return Ok(IdleTimeout(None));
    }
    let time = latent_server::parse_duration(word);
    time.map(|time| IdleTimeout(Some(time)))
        .ok_or_else(|| "expected a time such as 90s, 10m or 2h, or never".into())
}
