//! `latent pull`, `latent ls` and `latent rm`.

use clap::Args;

/// What `latent help pull` says at its end.
pub(crate) const PULL_HELP: &str = "References:
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
  latent pull hf:bartowski/DeepSeek-V2-Lite-Chat-GGUF:Q4_K_M
  latent run -m hf:bartowski/DeepSeek-V2-Lite-Chat-GGUF:Q4_K_M \"Hello\"
                                              pulls it first, where it is not there";

#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    /// The model: hf:OWNER/NAME[@REVISION][:QUANT]
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
pub(crate) struct RmArgs {
    /// Models as `latent ls` names them; OWNER/NAME or NAME without a quant is all that was pulled of it
    #[arg(value_name = "MODEL", required = true)]
    pub(crate) models: Vec<String>,
}
