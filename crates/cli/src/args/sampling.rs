//! How tokens are chosen, and when to stop.

use clap::Args;

/// How tokens are sampled. A setting comes from its flag, else from the model (generation_config.json, or the keys general.sampling.* of a
/// GGUF file), else from Latent's own defaults.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Stop after this many tokens [default: until the model ends or the context is full]
    #[arg(short = 'n', long, alias = "predict", alias = "max-tokens", value_name = "N")]
    pub(crate) n_predict: Option<usize>,

    /// Temperature; 0 always takes the likeliest token [default: the model's, else 0.8]
    #[arg(long, alias = "temperature", value_name = "T")]
    pub(crate) temp: Option<f32>,

    /// Keep this many of the likeliest tokens (0: all) [default: the model's, else 40]
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,

    /// Keep the likeliest tokens that together reach this probability [default: the model's, else 0.95]
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,

    /// Keep tokens at least this likely, relative to the likeliest [default: the model's, else 0.05]
    #[arg(long, value_name = "P")]
    pub(crate) min_p: Option<f32>,

    /// Keep tokens of typical information that together reach this probability (1: off) [default: the model's, else 1]
    #[arg(long, alias = "typical-p", value_name = "P")]
    pub(crate) typical: Option<f32>,

    /// Divide the logits of recent tokens by this (1: off) [default: the model's, else 1]
    #[arg(long, value_name = "X")]
    pub(crate) repeat_penalty: Option<f32>,

    /// Subtract this from the logits of tokens that occurred (0: off)
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_hyphen_values = true)]
    pub(crate) presence_penalty: f32,

    /// Subtract this for each occurrence of a token (0: off)
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_hyphen_values = true)]
    pub(crate) frequency_penalty: f32,

    /// How many tokens back the penalties look [default: the model's, else 64]
    #[arg(long, alias = "penalty-last", value_name = "N")]
    pub(crate) repeat_last_n: Option<usize>,

    /// Penalize tokens that would repeat a sequence (DRY): the multiplier (0: off)
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    pub(crate) dry_multiplier: f32,

    /// Growth of the DRY penalty with the length of the repetition
    #[arg(long, default_value_t = 1.75, value_name = "X")]
    pub(crate) dry_base: f32,

    /// Longest repetition that DRY leaves alone
    #[arg(long, alias = "dry-allowed", default_value_t = 2, value_name = "N")]
    pub(crate) dry_allowed_length: usize,

    /// Chance of removing the likeliest tokens (XTC; 0: off) [default: the model's, else 0]
    #[arg(long, value_name = "P")]
    pub(crate) xtc_probability: Option<f32>,

    /// Tokens above this probability may be removed by XTC, all but the least likely of them [default: the model's, else 0.1]
    #[arg(long, value_name = "P")]
    pub(crate) xtc_threshold: Option<f32>,

    /// Use no sampling settings from the model, only flags and Latent's own defaults
    #[arg(long)]
    pub(crate) no_model_sampling: bool,

    /// Add to the logit of a token: ID=BIAS, or ID=-inf to ban it; may be given several times
    #[arg(long, value_name = "ID=BIAS")]
    pub(crate) logit_bias: Vec<String>,

    /// Seed of the random choice: the same seed gives the same text
    #[arg(short, long)]
    pub(crate) seed: Option<u64>,

    /// Stop before this text; may be given several times
    #[arg(long, alias = "reverse-prompt", value_name = "TEXT")]
    pub(crate) stop: Vec<String>,

    /// Report the log-probabilities of this many alternatives (with --json)
    #[arg(long, value_name = "N")]
    pub(crate) logprobs: Option<usize>,
}
