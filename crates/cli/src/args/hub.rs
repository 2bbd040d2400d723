//! `latent pull`, `latent ls`, `latent rm`, `latent devices` and `latent self-test`.

use clap::Args;

/// What `latent help pull` says at its end.
pub(crate) const PULL_HELP: &str = "References:
  glm-4.7-flash, youtu-llm:2b  a short name (`latent ls --short-names`); it takes
                              the largest quant that fits into memory, at most
                              the usual one
  hf:OWNER/NAME               the usual quant (Q4_K_M, else Q4_0, …), or the folder of safetensors
  hf:OWNER/NAME:Q8_0          this quant, all of its shards; :safetensors is the folder
  hf:OWNER/NAME/FILE.gguf     this file
  hf:OWNER/NAME@REVISION:…    of this branch, tag or commit

Environment:
  HF_TOKEN         for private and gated models; else the token of `hf auth login`
  HF_ENDPOINT      another hub
  HF_HUB_OFFLINE   1: never use the network
  LATENT_MIN_SPEED bytes per second below which a download is broken off and resumed [default: 1000]
  LATENT_CACHE     where models are kept [default: $XDG_CACHE_HOME/latent or ~/.cache/latent]
  HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE

Examples:
  latent pull hf:bartowski/DeepSeek-Coder-V2-Lite-Instruct-GGUF:Q4_K_M
  latent run glm-4.7-flash \"Hello\"           pulls it first if it is not cached";

#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    /// The model: hf:OWNER/NAME[@REVISION][:QUANT], or a short name such as glm-4.7-flash
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,

    /// Print what was pulled, and where it is, as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors and the path
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// List the short names of models instead
    #[arg(long)]
    pub(crate) short_names: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DevicesArgs {
    /// Print JSON: the GPUs alone
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SelfTestArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RmArgs {
    /// Models as `latent ls` names them; OWNER/NAME or NAME without a quant is all that was pulled of it
    #[arg(value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
}
