//! Commands that print or compare computed values: `latent logits`, `latent diff` and `latent
//! dump`.

use super::limits::tokens;
use super::model::ModelArgs;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct LogitsArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) words: Vec<OsString>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Token ids: 1,2,3
    #[arg(long, value_delimiter = ',', value_name = "IDS", required = true)]
    pub(crate) tokens: Vec<u32>,

    /// Which rows: all, last, or a list such as 0,5
    #[arg(long, default_value = "last")]
    pub(crate) rows: String,

    /// Print a JSON object {"vocab_size", "rows", "not_finite", "logits"}; with NaN or infinite
    /// logits, which are null, the exit code is 1
    #[arg(long)]
    pub(crate) json: bool,

    /// Write a base file for llama.cpp's perplexity tool (--kl-divergence-base), in chunks of
    /// --kl-chunk tokens
    // `kl-base`: the spelling until 2026-11.
    #[arg(long, alias = "kl-base", value_name = "FILE", conflicts_with = "rows")]
    pub(crate) kl_divergence_base: Option<PathBuf>,

    /// Tokens per chunk of the base file
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = tokens(4), requires = "kl_divergence_base")]
    pub(crate) kl_chunk: usize,
}

pub(super) const DIFF_HELP: &str = "Settings of a side, separated by commas: mla, precision, isa, cache-type,
threads, batch-size, ctx-size, circuit (as the flags of the same names), and
expanded-cache. The flags themselves apply to both sides.

Examples:
  latent diff -m model.gguf                   the default run against exact
  latent diff -m model.gguf --a isa=portable --b isa=avx512
  latent diff -m model.gguf --precision exact --a mla=naive --b mla=absorbed
  latent diff -m folder --model-b model.gguf --precision exact
  latent diff -m folder --precision exact --dump theirs.safetensors

Exit codes: 0 the sides agree within the tolerance, 1 they differ, values are
not finite, or an error.";

#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) words: Vec<OsString>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Token ids: 1,2,3 [default: those of --dump, or 24 arbitrary ones]
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    pub(crate) tokens: Vec<u32>,

    /// Settings of side A [default: precision=exact,device=cpu]
    #[arg(long, value_delimiter = ',', value_name = "SETTINGS", conflicts_with = "dump")]
    pub(crate) a: Vec<String>,

    /// Settings of side B [default: those of a normal run]
    #[arg(long, value_delimiter = ',', value_name = "SETTINGS")]
    pub(crate) b: Vec<String>,

    /// The model of side B, if it is another file
    #[arg(long, value_name = "FILE")]
    pub(crate) model_b: Option<PathBuf>,

    /// A dump of activations (from `latent dump` or tools/dump-activations.py) as side A
    #[arg(long, value_name = "FILE")]
    pub(crate) dump: Option<PathBuf>,

    /// Show the values of these layers only, such as 0..2; for the others, the residual stream and
    /// routing
    #[arg(long, value_name = "A..B")]
    pub(crate) layers: Option<String>,

    /// Error of a row, |b − a| ÷ |a|, that counts as equal [default: from the precision of both
    /// sides]
    #[arg(long, value_name = "X")]
    pub(crate) tolerance: Option<f64>,

    /// Maximum error of an operation relative to the error of its inputs [default: 16]
    #[arg(long, value_name = "X")]
    pub(crate) growth: Option<f64>,

    /// List every value, also in layers without errors
    #[arg(long)]
    pub(crate) all: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DumpArgs {
    /// The model, as with -m, and the safetensors file to write
    #[arg(value_names = ["MODEL", "OUT"], required = true)]
    pub(crate) words: Vec<OsString>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Token ids: 1,2,3
    #[arg(long, value_delimiter = ',', value_name = "IDS", required = true)]
    pub(crate) tokens: Vec<u32>,

    /// Show the values of these layers only, such as 0..2; for the others, the residual stream and
    /// routing
    #[arg(long, value_name = "A..B")]
    pub(crate) layers: Option<String>,

    /// The file to write.
    #[arg(skip)]
    pub(crate) out: PathBuf,
}
