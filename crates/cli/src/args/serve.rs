//! `latent serve`.

use super::limits::{bytes, up_to};
use super::model::EngineArgs;
use super::sampling::SamplingArgs;
use clap::Args;
use latent_server::Fallback;
use std::path::PathBuf;
use std::time::Duration;

/// What `latent help serve` says at its end.
pub(crate) const SERVE_HELP: &str = "A setting comes from its flag, else from the environment, else from the file of --config, else from Latent's
own defaults. docs/serving.md lists the settings of the file, limits among them.

Examples:
  latent serve                                     the built-in demo model; then open http://127.0.0.1:8080
  latent serve model.gguf --parallel 16
  latent serve model.gguf --host 0.0.0.0 --api-key-file keys.txt
  latent serve model.gguf --partition pipeline=2 --restart --launch \"mpirun -n 2 --host a,b --bind-to none\"
  latent serve small=small.gguf big=hf:OWNER/NAME:Q4_K_M --models-max 1 --unload-idle 10m

Several models are loaded when requests first name them; one that is alone is loaded at once.

The first Ctrl-C or SIGTERM lets running requests end, the second ends the program.";

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// Models, as with -m
    #[arg(value_name = "[NAME=]MODEL")]
    pub(crate) words: Vec<String>,

    /// A .gguf file (any shard of a set), a folder of .safetensors, a .latent file, or hf:OWNER/NAME[:QUANT] of Hugging
    /// Face's hub; without it, the built-in demo model. Several, each as NAME=MODEL, are loaded when requests name them
    #[arg(short, long = "model", env = "LATENT_MODEL", value_name = "[NAME=]MODEL")]
    pub(crate) models: Vec<String>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Print nothing but warnings and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Where to listen, and to whom.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// Address to listen at [default: 127.0.0.1]
    #[arg(long, env = "LATENT_HOST", value_name = "ADDRESS")]
    pub(crate) host: Option<String>,

    /// Port to listen at (0: any that is free) [default: 8080]
    #[arg(long, env = "LATENT_PORT", value_name = "PORT")]
    pub(crate) port: Option<u16>,

    /// Name of the model for requests [default: from the model or its file]
    #[arg(long, env = "LATENT_ALIAS", value_name = "NAME")]
    pub(crate) alias: Option<String>,

    /// Most models that are loaded at once: the one used least recently makes room (0: as many as fit into memory) [default: 0]
    #[arg(long, env = "LATENT_MODELS_MAX", value_name = "N", value_parser = up_to(1 << 16))]
    pub(crate) models_max: Option<usize>,

    /// Unload a model that nobody has used for so long: 90s, 10m, 2h, or never; it is loaded again when it is asked for [default: never]
    #[arg(long, env = "LATENT_UNLOAD_IDLE", value_name = "TIME", value_parser = idle)]
    pub(crate) unload_idle: Option<Idle>,

    /// Most requests that run at once; others wait [default: 16]
    #[arg(long, alias = "np", alias = "max-batch", value_name = "N", value_parser = up_to(4096))]
    pub(crate) parallel: Option<usize>,

    /// Most requests that wait; others are answered with 429 [default: 512]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 20))]
    pub(crate) max_waiting: Option<usize>,

    /// What takes over a model whose GPU is missing at start, fails while it is loaded, or is lost while it answers: cpu (running requests go on
    /// there), or none (an error; a model whose device was lost is loaded again) [default: none]
    #[arg(long, value_name = "WHAT")]
    pub(crate) gpu_fallback: Option<Fallback>,

    /// Tokens of the KV cache, all requests together [default: four contexts, of short ones as many as --parallel up to 32768 tokens, where they fit]
    #[arg(long, value_name = "TOKENS", value_parser = up_to(super::limits::MAX_TOKENS))]
    pub(crate) cache_tokens: Option<usize>,

    /// File with the keys that may ask, one per line; keys can also be in the environment variable LATENT_API_KEY
    #[arg(long, env = "LATENT_API_KEY_FILE", value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// Listen at other addresses than loopback although there are no keys
    #[arg(long)]
    pub(crate) allow_unauthenticated: bool,

    /// Let web pages of this origin ask: https://chat.example.org, localhost for every port of this machine, or * for all; may be given several times
    #[arg(long, alias = "cors-origins", value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) cors: Vec<String>,

    /// With --cors '*', let every page send the browser's credentials. Pages of origins that --cors names can always send them
    #[arg(long)]
    pub(crate) cors_credentials: bool,

    /// PEM file with a certificate chain, for HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// PEM file with the certificate's key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Let requests with different keys share cached prompts: faster, but a key's owner can then find out from the time which prompts others have sent
    #[arg(long)]
    pub(crate) share_prefixes: bool,

    /// Keep cached prompts in this folder, across restarts
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache_disk: Option<PathBuf>,

    /// Bytes that this folder may take: 500M, 20G [default: 16G]
    #[arg(long, value_name = "BYTES", requires = "cache_disk", value_parser = bytes)]
    pub(crate) cache_disk_size: Option<u64>,

    /// Send a span per request to the OpenTelemetry collector at this URL (http://127.0.0.1:4318); also OTEL_EXPORTER_OTLP_ENDPOINT
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,

    /// Start the ranks of a model on several hosts with mpirun, and start them again when one dies
    #[arg(long)]
    pub(crate) restart: bool,

    /// What --restart starts them with; words are separated by blanks [default: mpirun -n RANKS --bind-to none, with as many ranks as --partition is for]
    #[arg(long, value_name = "COMMAND", requires = "restart")]
    pub(crate) launch: Option<String>,

    /// End as after Ctrl-C when standard input ends: for programs that start a server, and may die
    #[arg(long, conflicts_with = "restart")]
    pub(crate) stop_at_eof: bool,

    /// Settings in TOML
    #[arg(long, env = "LATENT_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// What is logged on standard error: off, error, warn, info (a line per request), debug or trace [default: warn]
    #[arg(long, env = "LATENT_LOG", value_name = "LEVEL")]
    pub(crate) log: Option<String>,
}

/// How long a model stays loaded that nobody uses; none: for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle(pub(crate) Option<Duration>);

fn idle(word: &str) -> Result<Idle, String> {
    if word == "never" {
        return Ok(Idle(None));
    }
    let time = latent_server::parse_duration(word);
    time.map(|time| Idle(Some(time))).ok_or_else(|| "expected a time such as 90s, 10m or 2h, or never".into())
}
