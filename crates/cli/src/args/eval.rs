//! `latent eval`.

use super::answer::TemplateArgs;
use super::limits::{tokens, up_to};
use super::model::ModelArgs;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  latent eval perplexity -m model.gguf wiki.test.raw
  latent eval kl -m model-Q4_K_M.gguf --base-model model-BF16.gguf wiki.test.raw
  latent eval retrieval -m model.gguf --lengths 4096,16384 --html retrieval.html

docs/evaluating.md has formulas and units.")]
pub(crate) struct EvalArgs {
    #[command(subcommand)]
    pub(crate) command: EvalCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// How well a model predicts a text, as llama-perplexity measures it
    Perplexity(PerplexityArgs),
    /// How much its next-token probabilities differ from those of another file, another precision,
    /// or llama.cpp
    Kl(KlArgs),
    /// Multiple choice: how often the right ending of a text is the likeliest
    Choice(ChoiceArgs),
    /// How many questions are answered exactly as expected
    Questions(QuestionsArgs),
    /// Whether a fact at a given depth of a long prompt is found
    Retrieval(RetrievalArgs),
    /// How often each expert is used, and how many a step reads
    Routing(RoutingArgs),
    /// How much the weights differ from those of another file, by type; the model does not run
    Weights(WeightsArgs),
    /// Charts of results of --json in one HTML file
    Report(ReportArgs),
}

/// What every evaluation prints and writes.
#[derive(Args, Debug)]
pub(crate) struct ResultArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Write charts of the result to an HTML file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct PerplexityArgs {
    /// The model, as with -m, and the text: a plain file in UTF-8
    #[arg(value_names = ["MODEL", "TEXT"], required = true)]
    pub(crate) words: Vec<OsString>,

    /// The text.
    #[arg(skip)]
    pub(crate) text: PathBuf,

    /// Maximum number of chunks; a chunk has --ctx-size tokens [default: 512]
    #[arg(long, value_name = "N", value_parser = tokens(1))]
    pub(crate) chunks: Option<usize>,

    /// Write the log-probabilities of all tokens, for `latent eval kl` and llama-perplexity
    /// --kl-divergence
    #[arg(long, value_name = "FILE")]
    pub(crate) kl_divergence_base: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) result: ResultArgs,
}

#[derive(Args, Debug)]
pub(crate) struct KlArgs {
    /// The model, as with -m, and the text if the base is a model: a plain file in UTF-8
    #[arg(value_names = ["MODEL", "TEXT"])]
    pub(crate) words: Vec<OsString>,

    /// The text.
    #[arg(skip)]
    pub(crate) text: Option<PathBuf>,

    /// The base: a file of log-probabilities that `latent eval perplexity` or llama-perplexity
    /// wrote with this flag
    // The file fixes base, chunks and context.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["base_model", "base", "chunks", "ctx_size"])]
    pub(crate) kl_divergence_base: Option<PathBuf>,

    /// The base: another model [default: the same]
    #[arg(long, value_name = "FILE")]
    pub(crate) base_model: Option<PathBuf>,

    /// Settings of the base, as for `latent diff --a` [default: precision=exact]
    #[arg(long, value_delimiter = ',', value_name = "SETTINGS")]
    pub(crate) base: Vec<String>,

    /// Maximum number of chunks; a chunk has --ctx-size tokens [default: 512]
    #[arg(long, value_name = "N", value_parser = tokens(1))]
    pub(crate) chunks: Option<usize>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) result: ResultArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ChoiceArgs {
    /// The model, as with -m, and a file with one JSON object per line: ctx, endings (a list) and
    /// label (which is right, from 0), as HellaSwag has them
    #[arg(value_names = ["MODEL", "FILE"], required = true)]
    pub(crate) words: Vec<OsString>,

    /// The file.
    #[arg(skip)]
    pub(crate) file: PathBuf,

    /// Maximum number of lines
    #[arg(long, value_name = "N", value_parser = tokens(1))]
    pub(crate) limit: Option<usize>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) result: ResultArgs,
}

#[derive(Args, Debug)]
pub(crate) struct QuestionsArgs {
    /// The model, as with -m, and a file with one JSON object per line: prompt (or question),
    /// expected (or answer), and optionally kind
    #[arg(value_names = ["MODEL", "FILE"], required = true)]
    pub(crate) words: Vec<OsString>,

    /// The file.
    #[arg(skip)]
    pub(crate) file: PathBuf,

    /// Maximum number of lines
    #[arg(long, value_name = "N", value_parser = tokens(1))]
    pub(crate) limit: Option<usize>,

    /// Maximum tokens per answer
    #[arg(short = 'n', long, default_value_t = 512, value_name = "N", value_parser = tokens(1))]
    pub(crate) n_predict: usize,

    #[command(flatten)]
    pub(crate) template: TemplateArgs,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) result: ResultArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RetrievalArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) words: Vec<OsString>,

    /// Prompt lengths in tokens, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "256,512,1024", value_name = "N", value_parser = tokens(1))]
    pub(crate) lengths: Vec<usize>,

    /// Positions of the fact in percent of the prompt (0: the beginning), separated by commas
    #[arg(long, value_delimiter = ',', default_value = "0,25,50,75,100", value_name = "N", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) depths: Vec<u8>,

    /// Prompts per length and depth
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = up_to(1000))]
    pub(crate) trials: usize,

    /// Hide the fact among the sentences of this text [default: among facts of the same form, which
    /// is harder]
    #[arg(long, value_name = "FILE")]
    pub(crate) haystack: Option<PathBuf>,

    /// Maximum tokens per answer
    #[arg(short = 'n', long, default_value_t = 64, value_name = "N", value_parser = tokens(1))]
    pub(crate) n_predict: usize,

    #[command(flatten)]
    pub(crate) template: TemplateArgs,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) result: ResultArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RoutingArgs {
    /// The model, as with -m, and the text: a plain file in UTF-8
    #[arg(value_names = ["MODEL", "TEXT"], required = true)]
    pub(crate) words: Vec<OsString>,

    /// The text.
    #[arg(skip)]
    pub(crate) text: PathBuf,

    /// Maximum number of chunks; a chunk has --ctx-size tokens [default: 512]
    #[arg(long, value_name = "N", value_parser = tokens(1))]
    pub(crate) chunks: Option<usize>,

    /// Rows per step for which experts are counted, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,6,8,16,32", value_name = "N", value_parser = up_to(4096))]
    pub(crate) rows: Vec<usize>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) result: ResultArgs,
}

#[derive(Args, Debug)]
// Not `ModelArgs`: nothing runs, so flags of the engine would have no effect.
pub(crate) struct WeightsArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) words: Vec<OsString>,

    /// A model file or folder, or hf:OWNER/NAME[:QUANT]; default: the built-in demo model
    #[arg(short, long, env = "LATENT_MODEL")]
    pub(crate) model: Option<PathBuf>,

    /// The model to compare with: the one that it was quantized from
    #[arg(long, value_name = "FILE")]
    pub(crate) base_model: PathBuf,

    /// Number of threads [default: one per available core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    #[command(flatten)]
    pub(crate) result: ResultArgs,

    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// The HTML file to write
    pub(crate) out: PathBuf,

    /// Files with the output of `latent eval … --json`
    #[arg(required = true, value_name = "RESULT")]
    pub(crate) results: Vec<PathBuf>,

    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
}
