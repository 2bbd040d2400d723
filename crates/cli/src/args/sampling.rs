//! How tokens are chosen, and when to stop.

use super::limits::tokens_or_all;
use super::sampling_numbers::SamplingNumbers;
use clap::Args;
use latent_engine::sampling::SamplerKind;
use std::str::FromStr;

/// How tokens are sampled. A setting comes from its flag, else from the model
/// (generation_config.json, or the keys general.sampling.* of a GGUF file), else from Latent's own
/// defaults.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Maximum number of tokens to generate; -1: no limit; -2: until the context is full, also with
    /// --context-shift [default: -1]
    #[arg(
        short = 'n',
        long,
        // llama.cpp's second name, and the spelling until 2026-11.
        alias = "predict",
        alias = "max-tokens",
        value_name = "N",
        allow_negative_numbers = true
    )]
    pub(crate) n_predict: Option<AnswerLimit>,

    #[command(flatten)]
    pub(crate) numbers: SamplingNumbers,

    /// Sequence breaker of DRY, in place of the defaults (\n : " *); repeatable; none: no breakers
    #[arg(long, value_name = "TEXT")]
    pub(crate) dry_sequence_breaker: Vec<String>,

    /// Samplers in the order in which they run: penalties, dry, top_n_sigma, top_k, typ_p, top_p,
    /// min_p, xtc, temperature, adaptive_p, infill
    #[arg(long, value_name = "NAME;NAME", value_parser = sampler_names, conflicts_with = "sampler_seq")]
    pub(crate) samplers: Option<SamplerOrder>,

    /// The same as --samplers by letters, such as edskypmxt
    // llama.cpp has both spellings.
    #[arg(long, alias = "sampling-seq", value_name = "LETTERS", value_parser = sampler_letters)]
    pub(crate) sampler_seq: Option<SamplerOrder>,

    /// Ignore the end of an answer: only --n-predict, --stop or a full context ends it
    #[arg(long)]
    pub(crate) ignore_eos: bool,

    /// Ignore the sampling settings that the model recommends
    #[arg(long)]
    pub(crate) no_model_sampling: bool,

    /// Bias of a token's logit: ID=BIAS, or ID=-inf to ban the token; also ID+BIAS and ID-BIAS;
    /// repeatable
    #[arg(long, value_name = "ID=BIAS")]
    pub(crate) logit_bias: Vec<String>,

    /// Random seed; the same seed gives the same text (-1: random) [default: -1]
    #[arg(short, long, allow_negative_numbers = true)]
    pub(crate) seed: Option<Seed>,

    /// Stop before this text; repeatable
    // llama.cpp's name.
    #[arg(long, alias = "reverse-prompt", value_name = "TEXT")]
    pub(crate) stop: Vec<String>,

    /// Report the log-probabilities of this many alternatives (with --json)
    #[arg(long, value_name = "N")]
    pub(crate) logprobs: Option<usize>,
}

/// An order of samplers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SamplerOrder(pub(crate) Vec<SamplerKind>);

fn sampler_names(words: &str) -> Result<SamplerOrder, String> {
    // llama.cpp separates names by semicolons, which shells need quoted. Commas work without
    // quotes.
    let names = words.split([';', ',']).filter(|name| !name.trim().is_empty());
    SamplerKind::order_of_names(names).map(SamplerOrder).map_err(|error| error.to_string())
}

fn sampler_letters(letters: &str) -> Result<SamplerOrder, String> {
    SamplerKind::order_of_letters(letters).map(SamplerOrder).map_err(|error| error.to_string())
}

/// Maximum length of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerLimit {
    /// A number of tokens.
    Tokens(usize),
    /// Until the model ends.
    None,
    /// Until the model ends or the context is full. The context is not shifted.
    Context,
}

impl FromStr for AnswerLimit {
    type Err = String;

    fn from_str(word: &str) -> Result<AnswerLimit, String> {
        match word {
            // llama.cpp's values.
            "-1" => Ok(AnswerLimit::None),
            "-2" => Ok(AnswerLimit::Context),
            word if word.starts_with('-') => {
                Err("expected a number of tokens, -1 (no limit) or -2 (until the context is full)".into())
            }
            word => tokens_or_all(0)(word).map(AnswerLimit::Tokens),
        }
    }
}

/// A seed; `None`: a random one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(Option<u64>);

impl FromStr for Seed {
    type Err = String;

    fn from_str(word: &str) -> Result<Seed, String> {
        // llama.cpp's value for a random seed.
        if word == "-1" {
            return Ok(Seed(None));
        }
        word.parse().map(|seed| Seed(Some(seed))).map_err(|_| "expected a number of at least 0, or -1".into())
    }
}

impl SamplingArgs {
    /// Maximum tokens of an answer, if given.
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

    /// The order of samplers, if one is given.
    pub(crate) fn order(&self) -> Option<Vec<SamplerKind>> {
        self.samplers.as_ref().or(self.sampler_seq.as_ref()).map(|order| order.0.clone())
    }

    /// The sequence breakers of DRY, if given. `none` means no breaker.
    pub(crate) fn breakers(&self) -> Option<Vec<String>> {
        let texts = &self.dry_sequence_breaker;
        // Shells pass `\n` and `\t` unchanged.
        let text = |text: &String| text.replace("\\n", "\n").replace("\\t", "\t");
        (!texts.is_empty()).then(|| texts.iter().filter(|text| *text != "none").map(text).collect())
    }

    /// The seed, if it is fixed.
    pub(crate) fn fixed_seed(&self) -> Option<u64> {
        self.seed.and_then(|seed| seed.0)
    }
}
