//! Commands that describe a model without running it.

use super::model::ModelArgs;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) path: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// The former name of `latent check`
    // `latent check` was `latent inspect --contract` until 2026-11.
    #[arg(long, hide = true, conflicts_with_all = ["tensors", "metadata"])]
    pub(crate) contract: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// List every tensor
    #[arg(long)]
    pub(crate) tensors: bool,

    /// List every metadata key
    #[arg(long)]
    pub(crate) metadata: bool,
}

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The model, as with -m; a config.json or a header without weights is enough
    #[arg(value_name = "MODEL")]
    pub(crate) path: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// For an unknown architecture: write the closest circuit to this file, with notes on what is
    /// certain and what is open
    #[arg(long, value_name = "FILE")]
    pub(crate) draft_circuit: Option<PathBuf>,
}

impl From<InspectArgs> for CheckArgs {
    fn from(args: InspectArgs) -> CheckArgs {
        CheckArgs { path: args.path, model: args.model, json: args.json, draft_circuit: None }
    }
}

/// Forms of the output of `latent graph`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    Text,
    Json,
    /// Graphviz
    Dot,
    /// A block diagram of one stage, layers folded
    Svg,
    /// The data of --html: every stage, formulation and batch bucket (docs/graph.schema.json)
    #[value(name = "drawing-json")]
    Data,
}

#[derive(Args, Debug)]
pub(crate) struct GraphArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// What to print: circuit, ir or plan [default: plan]; any other word is the model, as with -m.
    /// A config.json or a GGUF header without weights is enough
    #[arg(value_name = "STAGE|MODEL", num_args = 0..=2)]
    pub(crate) words: Vec<String>,

    /// Print the IR after this pass, such as fuse_projections, instead of before all passes (an
    /// unknown name lists them)
    #[arg(long, value_name = "PASS", conflicts_with = "html")]
    pub(crate) after: Option<String>,

    /// Tokens per step, which select the plan: 1 (decode), 2 to 16 (small batch), or up to 8192
    /// (prefill) [default: 1; with --emit-c: 16]
    #[arg(long, value_name = "N")]
    pub(crate) rows: Option<usize>,

    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: GraphFormat,

    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,

    /// Only these layers, such as 0..2
    #[arg(long, value_name = "A..B")]
    pub(crate) layers: Option<String>,

    /// With --partition: the rank whose part is printed
    #[arg(long, default_value_t = 0, value_name = "N", requires = "partition")]
    pub(crate) rank: usize,

    /// Write a self-contained page with all drawings: circuit, IR and plans, memory, weights,
    /// tokenizer, profile, parity, diff
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "json"])]
    pub(crate) html: Option<PathBuf>,

    /// Add a profile to the page: the output of `latent profile --json`
    #[arg(long, value_name = "FILE", requires = "html")]
    pub(crate) profile: Option<PathBuf>,

    /// Add statistics of the weights to the page: the output of `latent verify --weights --json`
    #[arg(long, value_name = "FILE", requires = "html")]
    pub(crate) weights: Option<PathBuf>,

    /// Add a comparison of two runs to the page: the output of `latent diff --json`
    #[arg(long, value_name = "FILE", requires = "html")]
    pub(crate) parity: Option<PathBuf>,

    /// Add another model to the page for comparison; --circuit does not apply to it
    #[arg(long, value_name = "MODEL", requires = "html")]
    pub(crate) against: Option<PathBuf>,

    /// Write the plan as a C11 library to this folder: one function per phase; it reads the weights
    /// from the model's GGUF file (docs/emitted-c.md)
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["format", "json", "html", "after", "layers", "partition"])]
    pub(crate) emit_c: Option<PathBuf>,
}

impl GraphArgs {
    /// Tokens of the step.
    pub(crate) fn rows(&self) -> usize {
        self.rows.unwrap_or(1)
    }
}

#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) path: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Also read every weight: find NaN, infinity, rows of zeros and wild scales, and print
    /// statistics of each tensor
    // `deep`: the spelling until 2026-11.
    #[arg(long, alias = "deep")]
    pub(crate) weights: bool,

    /// List every edge of the decode plan: producer, consumer, slot
    #[arg(long, conflicts_with = "weights")]
    pub(crate) edges: bool,

    /// Print the rules
    #[arg(long, conflicts_with_all = ["weights", "edges"])]
    pub(crate) rules: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TokenizeArgs {
    /// The model, as with -m, and the text; without a text, standard input is read
    #[arg(value_names = ["MODEL", "TEXT"])]
    pub(crate) words: Vec<OsString>,

    /// A .gguf file (a vocabulary alone is enough), a model folder, or hf:OWNER/NAME[:QUANT];
    /// default: the built-in demo model
    #[arg(short, long, env = "LATENT_MODEL")]
    pub(crate) model: Option<PathBuf>,

    /// The text
    #[arg(short, long = "prompt", value_name = "TEXT", conflicts_with = "file")]
    pub(crate) prompt: Option<String>,

    /// A file with the text
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Do not add the tokens that begin or end a prompt
    #[arg(long)]
    pub(crate) no_special: bool,

    /// Treat the names of special tokens in the text as text
    #[arg(long)]
    pub(crate) plain: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
