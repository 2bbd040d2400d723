//! `latent pull`, `latent ls`, `latent rm`, `latent devices` and `latent self-test`.

use clap::Args;

/// The end of `latent help pull`.
pub(crate) const PULL_HELP: &str = "References:
  glm-4.7-flash               a short name (`latent ls --short-names`): the
                              usual quant, or the largest that fits in memory
  hf:OWNER/NAME               the usual quant (Q4_K_M, Q4_0, …), or the folder
  hf:OWNER/NAME:Q8_0          this quant; :safetensors for the folder
  hf:OWNER/NAME/FILE.gguf     this file
  hf:OWNER/NAME@REVISION:…    a branch, tag or commit

Environment:
  HF_TOKEN         token for private models [default: that of `hf auth login`]
  HF_ENDPOINT      another hub
  HF_HUB_OFFLINE   1: never use the network
  LATENT_MIN_SPEED bytes/s below which a download restarts [default: 1000]
  LATENT_CACHE     cache folder [default: $XDG_CACHE_HOME/latent]
  HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE

Examples:
  latent pull hf:bartowski/DeepSeek-Coder-V2-Lite-Instruct-GGUF:Q4_K_M
  latent run glm-4.7-flash \"Hello\"           downloads if not cached";

#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    /// The model: hf:OWNER/NAME[@REVISION][:QUANT], or a short name such as glm-4.7-flash
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,

    /// Print the downloaded model and its path as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print only errors and the path
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// List the short names of models
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
    /// Models, named as by `latent ls`; OWNER/NAME or NAME without a quant removes all models of
    /// the repository
    #[arg(value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
}
