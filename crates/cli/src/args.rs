//! The command line.

use clap::builder::RangedU64ValueParser;
use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand, ValueEnum};
use latent_engine::thread_pool::Pin;
use latent_graph::passes::{CacheForm, MlaChoice, Precision};
use latent_types::{CacheType, Tier};
use std::path::PathBuf;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Most tokens of a context, prompt or answer that a flag may ask for: more than any model takes, and few enough that no sum or product of such
/// numbers with counts of sequences and bytes of a token leaves 64 bits.
pub(crate) const MOST_TOKENS: u64 = 1 << 30;

/// Most rows of a step.
pub(crate) const LARGEST_STEP_ROWS: u64 = 8192;

/// A number of tokens, at least `least`.
fn tokens(least: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=MOST_TOKENS)
}

/// A number from 1 to `most`.
fn up_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// Run language models with Multi-head Latent Attention and Mixture of Experts from GGUF and safetensors files.
#[derive(Parser)]
#[command(name = "latent", version, styles = STYLES, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Examples:
  latent run \"Tell me a story about a fox and a lantern.\"     the built-in demo model
  latent run -m model.gguf \"Why is the sky blue?\"             a model file
  latent inspect -m model.gguf                                what a file holds, and what it needs
  latent graph -m model.gguf plan --rows 1                    what a step computes
  latent bench -m model.gguf -p 512 -n 128                    how fast it runs

Exit codes: 0 done, 1 error, 2 model not supported, 64 wrong usage; stopped by a signal: 128 and its number
(130 Ctrl-C, 143 SIGTERM, 129 SIGHUP).")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

pub(crate) const CHAT_HELP: &str = "In the conversation:
  /help             list the commands: /save, /restore, /undo, /regen, /clear, …
  //text            a message that begins with a slash (or a blank before it)
  Alt-Enter         a new line in the message; also Ctrl-J, or \\ and Enter
  Tab               complete a command
  Ctrl-C            stop an answer, clear the line, or (twice) leave
  Ctrl-D            leave

What was typed is kept in $XDG_STATE_HOME/latent/history (by default
~/.local/state/latent/history), for the arrow keys and Ctrl-R.

Where standard input is no terminal, each line is one message or command (a line
that ends with \\ goes on in the next), and the exit code is 1 if one failed.

Examples:
  latent chat -m model.gguf --context-shift
  latent chat -m model.gguf --restore yesterday.kv
  printf '%s\\n' 'Name a colour.' 'Another one.' | latent chat -q -m model.gguf";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt
    Run(RunArgs),
    /// Talk with a model in the terminal
    #[command(after_help = CHAT_HELP)]
    Chat(ChatArgs),
    /// Print the logits of given tokens
    Logits(LogitsArgs),
    /// Show what a model file holds and what it needs
    Inspect(InspectArgs),
    /// Print or draw the circuit, the IR or the plan of a model
    #[command(
        after_help = "Examples:\n  latent graph -m model.gguf plan --rows 1\n  latent graph model.gguf --html plan.html\n  latent graph config.json --html plan.html --against model.gguf"
    )]
    Graph(GraphArgs),
    /// Check a model's circuit, plans and tensors against the rules that they must keep
    #[command(
        after_help = "Examples:\n  latent audit -m model.gguf\n  latent audit -m model.gguf --deep --json\n  latent audit --rules\n\nExit codes: 0 nothing found, 1 findings or an error, 2 model not supported. docs/audit.md lists the rules."
    )]
    Audit(AuditArgs),
    /// Show the tokens of a text
    Tokenize(TokenizeArgs),
    /// Write a random model of a known shape, for tests and measurements
    MakeModel(MakeModelArgs),
    /// Write a model as a packed file, which is ready to run in less than a second
    #[command(
        after_help = "Examples:\n  latent pack -m model.gguf                 writes model.latent\n  latent run -m model.latent \"Hello\"       needs model.gguf no more"
    )]
    Pack(PackArgs),
    /// Measure speed
    Bench(BenchArgs),
    /// Show where the time goes: each phase beside the limit that binds it
    #[command(
        after_help = "Examples:\n  latent profile -m model.gguf\n  latent profile -m model.gguf -p 0 -n 32 -d 4096"
    )]
    Profile(ProfileArgs),
    /// Test and measure kernels one by one, without a model
    Ops(OpsArgs),
    /// Run a model twice and show where the runs part: two settings, two files, or a dump of another program
    #[command(after_help = DIFF_HELP)]
    Diff(DiffArgs),
    /// Write the values that a run passes through into a safetensors file
    #[command(
        after_help = "Example:\n  latent dump -m model.gguf --precision exact --tokens 1,2,3 ours.safetensors"
    )]
    Dump(DumpArgs),
    /// Print the licences of the program and of the packages that it is made from
    Licenses,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages into a folder
    Man {
        /// The folder
        folder: PathBuf,
    },
}

/// Which model, and how it is run.
#[derive(Args, Clone)]
pub(crate) struct ModelArgs {
    /// A .gguf file (any shard of a set), a folder of .safetensors, or a .latent file; without it, the built-in demo model
    #[arg(short, long, env = "LATENT_MODEL")]
    pub(crate) model: Option<PathBuf>,

    /// Formulation of attention: absorbed (in latent space), naive (keys and values expanded), split (scores apart), or auto
    #[arg(long, default_value = "auto", value_name = "FORM")]
    pub(crate) mla: MlaChoice,

    /// exact: all arithmetic in f32, the reference; default: 8-bit activations where weights are quantised
    #[arg(long, default_value = "default")]
    pub(crate) precision: Precision,

    /// Type of the cache: f32, f16, bf16, or int8 (latents as 8-bit codes) [default: f16; with --precision exact f32]
    #[arg(long, value_name = "TYPE")]
    pub(crate) cache_type: Option<CacheType>,

    /// Store expanded keys and values instead of latents (with --mla naive, for comparison)
    #[arg(long)]
    pub(crate) expanded_cache: bool,

    /// Tokens of context [default: the smaller of the model's limit and what fits into memory]
    #[arg(long, value_name = "TOKENS", value_parser = tokens(1))]
    pub(crate) ctx: Option<usize>,

    /// Threads [default: one for each core that affinity and cgroup quotas leave to this process]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Bind threads to CPUs: cores (each to one of its own), nodes (each to those of its memory node), off, or auto (nodes
    /// where there are several)
    #[arg(long, default_value = "auto", value_name = "HOW")]
    pub(crate) pin: Pin,

    /// Highest instruction set to use: auto, portable, avx2, avx512 or amx
    #[arg(long, default_value = "auto", value_name = "TIER", value_parser = isa)]
    pub(crate) isa: Isa,

    /// Most rows of one step: longer prompts are read in chunks of as many [default: 512 to 4096, by prompt and memory]
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u16).range(1..=LARGEST_STEP_ROWS as i64))]
    pub(crate) chunk: Option<u16>,

    /// Load even when memory seems too small
    #[arg(long)]
    pub(crate) force: bool,

    /// For developers: a circuit file (as `latent graph circuit` prints one) instead of the model's own
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) circuit: Option<PathBuf>,
}

/// A limit on instruction sets.
#[derive(Clone, Copy)]
pub(crate) struct Isa(pub(crate) Option<Tier>);

pub(crate) fn isa(word: &str) -> Result<Isa, String> {
    if word == "auto" {
        return Ok(Isa(None));
    }
    word.parse()
        .map(|tier| Isa(Some(tier)))
        .map_err(|_| "expected auto, portable, avx2, avx512 or amx".into())
}

impl ModelArgs {
    /// Rows of the steps that plans are made for, where nothing is run.
    pub(crate) fn max_batch_tokens(&self) -> usize {
        self.chunk.map_or(latent_engine::DEFAULT_BATCH_TOKENS, usize::from)
    }

    pub(crate) fn form(&self) -> CacheForm {
        if self.expanded_cache { CacheForm::Expanded } else { CacheForm::Latent }
    }

    /// How the engine is to run it, but for a circuit of the user's own: [`model::load`](crate::model::load) reads that.
    pub(crate) fn options(&self) -> latent_engine::EngineOptions {
        latent_engine::EngineOptions {
            mla: self.mla,
            precision: self.precision,
            form: self.form(),
            cache: self.cache_type,
            context: self.ctx,
            threads: self.threads.map(usize::from),
            pin: self.pin,
            placement: None,
            tier: self.isa.0,
            max_batch_tokens: self.chunk.map(usize::from),
            force: self.force,
            circuit: None,
        }
    }
}

/// How tokens are chosen. What no flag says, the model says (generation_config.json, or the keys general.sampling.* of a GGUF file), and what
/// neither says has Latent's own default.
#[derive(Args, Clone)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Stop after this many tokens [default: until the model ends or the context is full]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,

    /// 0 always takes the likeliest token [default: the model's, else 0.8]
    #[arg(long, value_name = "T")]
    pub(crate) temperature: Option<f32>,

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
    #[arg(long, value_name = "P")]
    pub(crate) typical: Option<f32>,

    /// Divide the logits of recent tokens by this (1: off) [default: the model's, else 1]
    #[arg(long, value_name = "X")]
    pub(crate) repeat_penalty: Option<f32>,

    /// Subtract this from the logits of tokens that occurred (0: off)
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_hyphen_values = true)]
    pub(crate) presence_penalty: f32,

    /// Subtract this for each time that a token occurred (0: off)
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_hyphen_values = true)]
    pub(crate) frequency_penalty: f32,

    /// How many tokens back the penalties look [default: the model's, else 64]
    #[arg(long, value_name = "N")]
    pub(crate) penalty_last: Option<usize>,

    /// Penalise tokens that would repeat a sequence (DRY): the multiplier (0: off)
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    pub(crate) dry_multiplier: f32,

    /// Growth of the DRY penalty with the length of the repetition
    #[arg(long, default_value_t = 1.75, value_name = "X")]
    pub(crate) dry_base: f32,

    /// Longest repetition that DRY leaves alone
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub(crate) dry_allowed: usize,

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
    #[arg(long)]
    pub(crate) seed: Option<u64>,

    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,

    /// Report the log-probabilities of this many alternatives (with --json)
    #[arg(long, value_name = "N")]
    pub(crate) logprobs: Option<usize>,
}

/// What the chat template is given beside the messages.
#[derive(Args, Clone)]
#[command(next_help_heading = "Prompt, context and output")]
pub(crate) struct TemplateArgs {
    /// System message for the chat template
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// Tools that the model may call: a JSON file with a list in OpenAI's form, [{"type": "function", "function": {"name": …}}]
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,

    /// Ask the model to think before it answers, where its chat template has such a switch
    #[arg(long, conflicts_with = "no_think")]
    pub(crate) think: bool,

    /// Ask the model to answer without thinking, where its chat template has such a switch
    #[arg(long)]
    pub(crate) no_think: bool,

    /// Read names of control tokens in prompts and messages (<|im_end|>, <think>) as those tokens. Without it only the chat
    /// template makes control tokens, so that no text can end a turn or begin another
    #[arg(long)]
    pub(crate) allow_special: bool,
}

/// What happens when the context is full.
#[derive(Args, Clone)]
#[command(next_help_heading = "Prompt, context and output")]
pub(crate) struct ShiftArgs {
    /// When the context is full, discard the older half of it and go on
    #[arg(long)]
    pub(crate) context_shift: bool,

    /// Tokens at the beginning that --context-shift never discards [default: those before the first message of the user]
    #[arg(long, value_name = "N", requires = "context_shift")]
    pub(crate) keep: Option<usize>,
}

#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) shift: ShiftArgs,

    /// The prompt; without it, standard input
    pub(crate) prompt: Option<String>,

    /// Token ids instead of a prompt: 1,2,3
    #[arg(long, value_delimiter = ',', value_name = "IDS", conflicts_with_all = ["prompt", "system", "tools", "think", "no_think"])]
    pub(crate) tokens: Vec<u32>,

    #[command(flatten)]
    pub(crate) template: TemplateArgs,

    /// Feed the prompt as it is, without the chat template
    #[arg(long, conflicts_with_all = ["system", "tools", "think", "no_think"])]
    pub(crate) raw: bool,

    /// Print one JSON object with tokens, text and timings instead of streaming text
    #[arg(long)]
    pub(crate) json: bool,

    /// Save the cache and the conversation to a file at the end; `latent chat` can go on from it
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,

    /// Restore a saved cache; what the prompt shares with it is not computed again
    #[arg(long, value_name = "FILE")]
    pub(crate) restore: Option<PathBuf>,

    /// Print nothing but the text
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) shift: ShiftArgs,
    #[command(flatten)]
    pub(crate) template: TemplateArgs,

    /// Go on with a conversation that /save, or `latent run --save`, wrote
    #[arg(long, value_name = "FILE")]
    pub(crate) restore: Option<PathBuf>,

    /// Neither read nor write the history of what was typed
    #[arg(long)]
    pub(crate) no_history: bool,

    /// Print nothing but answers and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Args)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Token ids: 1,2,3
    #[arg(long, value_delimiter = ',', value_name = "IDS", required = true)]
    pub(crate) tokens: Vec<u32>,

    /// Which rows: all, last, or a list such as 0,5
    #[arg(long, default_value = "last")]
    pub(crate) rows: String,

    /// Print a JSON object {"vocab_size", "rows", "not_finite", "logits"}; with NaN or infinite logits, which are null, the exit code is 1
    #[arg(long)]
    pub(crate) json: bool,

    /// Write the base file of llama.cpp's perplexity tool (--kl-divergence-base), the tokens cut into chunks of --kl-chunk
    #[arg(long, value_name = "FILE")]
    pub(crate) kl_base: Option<PathBuf>,

    /// Tokens of a chunk in the base file
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = tokens(4))]
    pub(crate) kl_chunk: usize,
}

#[derive(Args)]
pub(crate) struct InspectArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) path: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Say whether the model is supported, which kernels run it, and everything that is missing; a config.json or a header alone will do
    #[arg(long, conflicts_with_all = ["tensors", "metadata"])]
    pub(crate) config: bool,

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

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Drawing {
    Text,
    Json,
    /// Graphviz
    Dot,
    /// A block diagram of one stage, layers folded
    Svg,
    /// The data of --html: every stage, formulation and class of rows (docs/graph.schema.json)
    #[value(name = "drawing-json")]
    Data,
}

#[derive(Args)]
pub(crate) struct GraphArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// What to print: circuit, ir or plan [default: plan]; any other word is the model, as with -m. It may be a config.json or a GGUF header
    /// without weights
    #[arg(value_name = "STAGE|MODEL", num_args = 0..=2)]
    pub(crate) words: Vec<String>,

    /// Rows of the step, which choose the plan: 1 (decode), 2 to 16 (small batch), or up to 8192 (prefill)
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) rows: usize,

    /// Form of the output
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: Drawing,

    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,

    /// Only these layers, such as 0..2
    #[arg(long, value_name = "A..B")]
    pub(crate) layers: Option<String>,

    /// Write a page with all drawings that needs no network: circuit, IR and plans, memory, weights, tokenizer,
    /// profile, parity, diff
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "json"])]
    pub(crate) html: Option<PathBuf>,

    /// Put a profile into the page: the output of `latent profile --json`
    #[arg(long, value_name = "FILE", requires = "html")]
    pub(crate) profile: Option<PathBuf>,

    /// Put statistics of the weights into the page: the output of `latent audit --deep --json`
    #[arg(long, value_name = "FILE", requires = "html")]
    pub(crate) weights: Option<PathBuf>,

    /// Put a comparison of two runs into the page: the output of `latent diff --json`
    #[arg(long, value_name = "FILE", requires = "html")]
    pub(crate) parity: Option<PathBuf>,

    /// Put another model into the page, to compare with; it is drawn by its own circuit, also where --circuit gives another
    #[arg(long, value_name = "MODEL", requires = "html")]
    pub(crate) against: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct AuditArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) path: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Read every weight too: NaN, infinity, rows of zeros, wild scales, and statistics of each tensor
    #[arg(long)]
    pub(crate) deep: bool,

    /// List every edge of the plan for one row: producer, consumer, slot
    #[arg(long, conflicts_with = "deep")]
    pub(crate) edges: bool,

    /// Print the rules
    #[arg(long, conflicts_with_all = ["deep", "edges"])]
    pub(crate) rules: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct TokenizeArgs {
    /// A .gguf file (a vocabulary alone will do) or a model folder; without it, the built-in demo model
    #[arg(short, long, env = "LATENT_MODEL")]
    pub(crate) model: Option<PathBuf>,

    /// The text; without it, standard input
    pub(crate) text: Option<String>,

    /// Do not add the tokens that begin or end a prompt
    #[arg(long)]
    pub(crate) no_special: bool,

    /// Read the names of special tokens in the text as text
    #[arg(long)]
    pub(crate) plain: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct MakeModelArgs {
    /// A shape; --list prints them
    #[arg(required_unless_present = "list")]
    pub(crate) shape: Option<String>,

    /// Type of the weights (F32, BF16, Q8_0, Q4_K, …) or a mix (Q4_K_M, Q4_0_M)
    #[arg(required_unless_present = "list", value_name = "TYPE")]
    pub(crate) kind: Option<String>,

    /// The .gguf file to write, or a folder for safetensors
    #[arg(required_unless_present = "list")]
    pub(crate) out: Option<PathBuf>,

    /// Print the known shapes
    #[arg(long)]
    pub(crate) list: bool,

    /// Fewer layers than the shape has
    #[arg(long, value_name = "N", value_parser = up_to(512))]
    pub(crate) layers: Option<usize>,

    /// One attn_kv_b tensor and no *_mla keys, as old files have
    #[arg(long)]
    pub(crate) legacy: bool,

    /// Type of attn_k_b and attn_v_b, where it should differ
    #[arg(long, value_name = "TYPE")]
    pub(crate) kvb: Option<String>,

    /// Seed of the random weights
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,

    /// Cut the file into this many shards
    #[arg(long, value_name = "N", value_parser = up_to(latent_formats::limits::MAX_SHARDS as u64))]
    pub(crate) shards: Option<usize>,

    /// Only what comes before the weights: a GGUF header or config.json, for inspect --contract and audit
    #[arg(long)]
    pub(crate) header_only: bool,
}

#[derive(Args)]
pub(crate) struct PackArgs {
    /// A .gguf file (any shard of a set) or a folder of .safetensors
    #[arg(short, long, env = "LATENT_MODEL")]
    pub(crate) model: PathBuf,

    /// The file to write [default: beside the model, with the ending .latent]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Threads [default: one for each core that this process may use]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Replace a file that is there
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub(crate) enum Table {
    Md,
    Csv,
    Json,
}

#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Tokens of the prompt (0: no such test); several with commas
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512", value_name = "N", value_parser = tokens(0))]
    pub(crate) prompt: Vec<usize>,

    /// Tokens to generate (0: no such test); several with commas
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "128", value_name = "N", value_parser = tokens(0))]
    pub(crate) generate: Vec<usize>,

    /// Tokens in the cache beforehand; several with commas
    #[arg(short = 'd', long, value_delimiter = ',', default_value = "0", value_name = "N", value_parser = tokens(0))]
    pub(crate) depth: Vec<usize>,

    /// Sequences that decode together in the tests that generate; several with commas
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) sequences: Vec<u16>,

    /// Repetitions of each test
    #[arg(short = 'r', long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) repetitions: u16,

    /// Form of the output
    #[arg(short, long, value_enum, default_value = "md")]
    pub(crate) output: Table,

    /// The same as --output json
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Tokens of the prompt, in steps of at most --chunk rows (0: no prompt)
    #[arg(short = 'p', long, default_value_t = 512, value_name = "N", value_parser = tokens(0))]
    pub(crate) prompt: usize,

    /// Tokens to generate (0: none)
    #[arg(short = 'n', long, default_value_t = 16, value_name = "N", value_parser = tokens(0))]
    pub(crate) generate: usize,

    /// Tokens in the cache beforehand
    #[arg(short = 'd', long, default_value_t = 0, value_name = "N", value_parser = tokens(0))]
    pub(crate) depth: usize,

    /// Sequences that generate together
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) sequences: u16,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  latent ops test\n  latent ops test q4_k avx2\n  latent ops perf linear tiles m=1\n  latent ops support"
)]
pub(crate) struct OpsArgs {
    #[command(subcommand)]
    pub(crate) command: OpsCommand,
}

#[derive(Subcommand)]
pub(crate) enum OpsCommand {
    /// Hold every kernel against sums in f64, and instruction sets against each other
    Test(OpsTestArgs),
    /// Measure kernels at the sizes of real models, beside the machine's limits
    Perf(OpsPerfArgs),
    /// Show which kernels there are and which run on this machine
    Support(OpsSupportArgs),
}

#[derive(Args)]
pub(crate) struct OpsTestArgs {
    /// Words that must all occur in the name of a kernel or of its case, such as: q4_k m=7
    pub(crate) filter: Vec<String>,

    /// Only kernels of this instruction set: portable, avx2, avx512 or amx [default: all]
    #[arg(long, value_name = "TIER")]
    pub(crate) isa: Option<Tier>,

    /// List the cases of each kernel
    #[arg(long, conflicts_with = "json")]
    pub(crate) cases: bool,

    /// Print JSON: every case with its error and bound
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct OpsPerfArgs {
    /// Words that must all occur in the name of a kernel or of its case, such as: linear q4_k m=1
    pub(crate) filter: Vec<String>,

    /// Only kernels of this instruction set: portable, avx2, avx512 or amx [default: the best for each case]
    #[arg(long, value_name = "TIER")]
    pub(crate) isa: Option<Tier>,

    /// Measure the kernels of all instruction sets
    #[arg(long)]
    pub(crate) all: bool,

    /// Threads that run the same kernel at once, each on operands of its own
    #[arg(short, long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,

    /// Mebibytes of weights or cached rows to go through: more than the last cache holds
    #[arg(long, default_value_t = 512, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) memory: u16,

    /// Milliseconds that each case is measured
    #[arg(long, default_value_t = 200, value_name = "MS", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) millis: u16,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct OpsSupportArgs {
    /// Words that must all occur in the name of a kernel or of its case, such as: linear tiles
    pub(crate) filter: Vec<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const DIFF_HELP: &str =
    "Settings of one side, with commas between: mla, precision, isa, cache-type, threads, chunk, ctx, circuit
(as the flags of the same names take them), and expanded-cache. The flags themselves are for both sides.

Examples:
  latent diff -m model.gguf                                       the default run against the exact one
  latent diff -m model.gguf --a isa=portable --b isa=avx512       two instruction sets
  latent diff -m model.gguf --precision exact --a mla=naive --b mla=absorbed
  latent diff -m folder --model-b model.gguf --precision exact    a conversion against its source
  latent diff -m folder --precision exact --dump theirs.safetensors

Exit codes: 0 the sides agree within the tolerance, 1 they part (or an error, which is printed), or numbers are NaN or infinite
on both sides, so that nobody can say whether they agree.";

#[derive(Args)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Token ids: 1,2,3 [default: those of --dump, or 24 arbitrary ones]
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    pub(crate) tokens: Vec<u32>,

    /// Settings of side A [default: precision=exact]
    #[arg(long, value_delimiter = ',', value_name = "SETTINGS", conflicts_with = "dump")]
    pub(crate) a: Vec<String>,

    /// Settings of side B [default: those of an ordinary run]
    #[arg(long, value_delimiter = ',', value_name = "SETTINGS")]
    pub(crate) b: Vec<String>,

    /// The model of side B, where it is another file
    #[arg(long, value_name = "FILE")]
    pub(crate) model_b: Option<PathBuf>,

    /// A dump of activations (from `latent dump` or tools/dump-activations.py) as side A
    #[arg(long, value_name = "FILE")]
    pub(crate) dump: Option<PathBuf>,

    /// Only the values of these layers, such as 0..2; of the others, the residual stream and routing
    #[arg(long, value_name = "A..B")]
    pub(crate) layers: Option<String>,

    /// Error of a row, |b − a| ÷ |a|, that needs no explanation [default: from the precisions of the sides]
    #[arg(long, value_name = "X")]
    pub(crate) tolerance: Option<f64>,

    /// How many times the error of its inputs an operation may have [default: 16]
    #[arg(long, value_name = "X")]
    pub(crate) growth: Option<f64>,

    /// List every value, also of layers where nothing is wrong
    #[arg(long)]
    pub(crate) all: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Token ids: 1,2,3
    #[arg(long, value_delimiter = ',', value_name = "IDS", required = true)]
    pub(crate) tokens: Vec<u32>,

    /// Only the values of these layers, such as 0..2; of the others, the residual stream and routing
    #[arg(long, value_name = "A..B")]
    pub(crate) layers: Option<String>,

    /// The safetensors file to write
    pub(crate) out: PathBuf,
}
