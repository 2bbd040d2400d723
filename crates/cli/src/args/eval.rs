//! `latent eval`.

use super::limits::tokens;
use super::model::ModelArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  latent eval perplexity -m model.gguf wiki.test.raw
  latent eval kl -m model-Q4_K_M.gguf --base-model model-BF16.gguf wiki.test.raw
  latent eval kl -m model.gguf --kl-divergence-base base.kld

docs/evaluating.md has formulas and units.")]
pub(crate) struct EvalArgs {
    #[command(subcommand)]
    pub(crate) command: EvalCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// How surprised a model is by a text: the numbers of llama-perplexity
    Perplexity(PerplexityArgs),
    /// How far its next-token probabilities are from those of another file, another precision, or llama.cpp
    Kl(KlArgs),
}

/// What every evaluation prints and writes.
#[derive(Args, Debug)]
pub(crate) struct ResultArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PerplexityArgs {
    /// The text: a plain file in UTF-8
    pub(crate) text: PathBuf,

    /// Tokens per chunk are those of --ctx-size [default: 512]; take this many chunks at most
    #[arg(long, value_name = "N", value_parser = tokens(1))]
    pub(crate) chunks: Option<usize>,

    /// Write the log-probabilities of all tokens, for `latent eval kl` and llama-perplexity --kl-divergence
    #[arg(long, value_name = "FILE")]
    pub(crate) kl_divergence_base: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) result: ResultArgs,
}

#[derive(Args, Debug)]
pub(crate) struct KlArgs {
    /// The text, where the base is a model that is to run: a plain file in UTF-8
    #[arg(required_unless_present = "kl_divergence_base")]
    pub(crate) text: Option<PathBuf>,

    /// The base: a file of log-probabilities, as `latent eval perplexity` or llama-perplexity writes it with this flag
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "base_model", "base", "chunks"])]
    pub(crate) kl_divergence_base: Option<PathBuf>,

    /// The base: another model [default: the same]
    #[arg(long, value_name = "FILE")]
    pub(crate) base_model: Option<PathBuf>,

    /// Settings of the base, as of the sides of `latent diff` [default: precision=exact]
    #[arg(long, value_delimiter = ',', value_name = "SETTINGS")]
    pub(crate) base: Vec<String>,

    /// Tokens per chunk are those of --ctx-size [default: 512]; take this many chunks at most
    #[arg(long, value_name = "N", value_parser = tokens(1))]
    pub(crate) chunks: Option<usize>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) result: ResultArgs,
}
