//! How tokens are chosen, and when to stop.

use super::limits::{MAX_TOKENS, tokens_or_all};
use clap::Args;
use std::str::FromStr;

/// How tokens are sampled. A setting comes from its flag, else from the model (generation_config.json, or the keys general.sampling.* of a
/// GGUF file), else from Latent's own defaults.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Stop after this many tokens. -1: no limit; -2: until the context is full, also with --context-shift [default: -1]
    #[arg(
        short = 'n',
        long,
        alias = "predict",
        alias = "max-tokens",
        value_name = "N",
        allow_negative_numbers = true
    )]
    pub(crate) n_predict: Option<AnswerLimit>,

    /// Temperature; 0 always takes the likeliest token [default: the model's, else 0.8]
    #[arg(long, alias = "temperature", value_name = "T")]
    pub(crate) temp: Option<f32>,

    /// Keep this many of the likeliest tokens (0 or -1: all) [default: the model's, else 40]
    #[arg(long, value_name = "K", value_parser = tokens_or_all(0), allow_negative_numbers = true)]
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

    /// How many tokens back the penalties look (-1: the whole context; 0: off) [default: the model's, else 64]
    #[arg(long, alias = "penalty-last", value_name = "N", value_parser = tokens_or_all(MAX_TOKENS as usize), allow_negative_numbers = true)]
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

    /// Seed of the random choice: the same seed gives the same text (-1: a new one each time) [default: -1]
    #[arg(short, long, allow_negative_numbers = true)]
    pub(crate) seed: Option<Seed>,

    /// Stop before this text; may be given several times
    #[arg(long, alias = "reverse-prompt", value_name = "TEXT")]
    pub(crate) stop: Vec<String>,

    /// Report the log-probabilities of this many alternatives (with --json)
    #[arg(long, value_name = "N")]
    pub(crate) logprobs: Option<usize>,
}

/// How long an answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerLimit {
    /// A number of tokens.
    Tokens(usize),
    /// Until the model ends.
    None,
    /// Until the model ends or the context is full, which is not shifted.
    Context,
}

impl FromStr for AnswerLimit {
    type Err = String;

    fn from_str(word: &str) -> Result<AnswerLimit, String> {
        match word {
            "-1" => Ok(AnswerLimit::None),
            "-2" => Ok(AnswerLimit::Context),
            word if word.starts_with('-') => {
                Err("expected a number of tokens, -1 (no limit) or -2 (until the context is full)".into())
            }
            word => tokens_or_all(0)(word).map(AnswerLimit::Tokens),
        }
    }
}

/// A seed; none: a new one each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(Option<u64>);

impl FromStr for Seed {
    type Err = String;

    fn from_str(word: &str) -> Result<Seed, String> {
        if word == "-1" {
            return Ok(Seed(None));
        }
        word.parse().map(|seed| Seed(Some(seed))).map_err(|_| "expected a number from 0 on, or -1".into())
    }
}

impl SamplingArgs {
    /// The maximum number of tokens of an answer, if there is one.
    pub(crate) fn max_tokens(&self) -> Option<usize> {
        match self.n_predict {
            Some(AnswerLimit::Tokens(tokens)) => Some(tokens),
            _ => None,
        }
    }

    /// Whether an answer ends when the context is full.
    pub(crate) fn ends_with_context(&self) -> bool {
        self.n_predict == Some(AnswerLimit::Context)
    }

    /// The seed, if it is fixed.
    pub(crate) fn fixed_seed(&self) -> Option<u64> {
        self.seed.and_then(|seed| seed.0)
    }
}
