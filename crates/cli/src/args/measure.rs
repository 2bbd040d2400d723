//! `latent bench`, `latent profile` and `latent kernels`.

use super::limits::tokens;
use super::model::ModelArgs;
use super::row_counts::RowCounts;
use super::simulated_machine::SimulatedMachine;
use clap::{Args, Subcommand, ValueEnum};
use latent_types::Tier;
use std::ffi::OsString;
use std::path::PathBuf;

/// Forms of the table of `latent bench`.
#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
pub(crate) enum BenchFormat {
    Md,
    Csv,
    Json,
}

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) words: Vec<OsString>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Prompt lengths in tokens, separated by commas (0: no such test)
    // `prompt`, `generate` and `depth`: the spellings until 2026-11. The names now are
    // llama-bench's.
    #[arg(short = 'p', long, alias = "prompt", value_delimiter = ',', default_value = "512", value_name = "N", value_parser = tokens(0))]
    pub(crate) n_prompt: Vec<usize>,

    /// Numbers of tokens to generate, separated by commas (0: no such test)
    #[arg(short = 'n', long, alias = "generate", value_delimiter = ',', default_value = "128", value_name = "N", value_parser = tokens(0))]
    pub(crate) n_gen: Vec<usize>,

    /// Tokens in the KV cache before the test, separated by commas
    #[arg(short = 'd', long, alias = "depth", value_delimiter = ',', default_value = "0", value_name = "N", value_parser = tokens(0))]
    pub(crate) n_depth: Vec<usize>,

    /// Concurrent sequences in the tests that generate, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) sequences: Vec<u16>,

    /// Repeat each test while N other threads keep CPUs busy
    #[arg(long, default_value_t = 0, value_name = "N", conflicts_with = "verify", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) busy: u16,

    /// Measure steps of ROWS tokens of one sequence, as drafts need, instead of prompts and
    /// generation: 1..8 (inclusive), or 1,2,4. Time and bytes read are relative to one row
    #[arg(long, value_delimiter = ',', value_name = "ROWS", conflicts_with_all = ["n_prompt", "n_gen", "sequences"])]
    pub(crate) verify: Vec<RowCounts>,

    /// Repetitions per test
    #[arg(short = 'r', long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) repetitions: u16,

    /// Save the results to a file for --compare
    #[arg(long, value_name = "FILE", conflicts_with = "verify")]
    pub(crate) save: Option<PathBuf>,

    /// Print the speed of each test relative to a file of --save. Ratios need the same machine;
    /// different settings are listed
    #[arg(long, value_name = "FILE", conflicts_with = "verify")]
    pub(crate) compare: Option<PathBuf>,

    /// Exit with code 1 if a test is slower than this ratio to the file of --compare (such as
    /// 0.95), or cannot be compared
    #[arg(long, value_name = "RATIO", requires = "compare", value_parser = super::limits::ratio)]
    pub(crate) fail_below: Option<f64>,

    /// Output format
    #[arg(short, long, value_enum, default_value = "md")]
    pub(crate) output: BenchFormat,

    /// The same as --output json
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ProfileArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) words: Vec<OsString>,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Prompt length in tokens, in steps of at most --batch-size (0: no prompt)
    #[arg(short = 'p', long, alias = "prompt", default_value_t = 512, value_name = "N", value_parser = tokens(0))]
    pub(crate) n_prompt: usize,

    /// Number of tokens to generate (0: none)
    #[arg(short = 'n', long, alias = "generate", default_value_t = 16, value_name = "N", value_parser = tokens(0))]
    pub(crate) n_gen: usize,

    /// Tokens in the KV cache before the test
    #[arg(short = 'd', long, alias = "depth", default_value_t = 0, value_name = "N", value_parser = tokens(0))]
    pub(crate) n_depth: usize,

    /// Concurrent sequences
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) sequences: u16,

    /// Predict the times on another machine: cores=N,gbs=N (GB/s of all its memory), and
    /// optionally nodes=N (memory nodes), speed=RATIO (of a core to one here), line_ns=N (time
    /// of a cache line between cores)
    #[arg(long, value_name = "KEY=N,…")]
    pub(crate) simulate: Option<SimulatedMachine>,

    /// Write a timeline of a step's threads for Perfetto (ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  latent kernels test\n  latent kernels test q4_k avx2\n  latent kernels perf linear tiles m=1\n  latent kernels support\n  latent kernels test --device gpu"
)]
pub(crate) struct KernelsArgs {
    /// Device: cpu, gpu, gpu:N (see `latent devices`), or auto (the first hardware GPU, otherwise
    /// the CPU)
    #[arg(long, global = true, default_value = "cpu", value_name = "NAME", value_parser = super::model::device)]
    pub(crate) device: String,

    #[command(subcommand)]
    pub(crate) command: KernelsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KernelsCommand {
    /// Compare every kernel with f64 arithmetic, and instruction sets with each other
    Test(KernelsTestArgs),
    /// Measure kernels at the sizes of real models, relative to the machine's limits
    Perf(KernelsPerfArgs),
    /// Count bytes, operations, workgroups and memory use of GPU kernels at the sizes of real
    /// models
    Count(KernelsCountArgs),
    /// List all kernels, and which of them run on this machine
    Support(KernelsSupportArgs),
}

#[derive(Args, Debug)]
pub(crate) struct KernelsTestArgs {
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

#[derive(Args, Debug)]
pub(crate) struct KernelsPerfArgs {
    /// Words that must all occur in the name of a kernel or of its case, such as: linear q4_k m=1
    pub(crate) filter: Vec<String>,

    /// Only kernels of this instruction set: portable, avx2, avx512 or amx [default: the best for
    /// each case]
    #[arg(long, value_name = "TIER")]
    pub(crate) isa: Option<Tier>,

    /// Measure the kernels of all instruction sets
    #[arg(long)]
    pub(crate) all: bool,

    /// Number of threads that run the same kernel, each on its own operands
    #[arg(short, long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,

    /// MiB of weights or cached rows to read: more than the last-level cache
    #[arg(long, default_value_t = 512, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) memory: u16,

    /// Measuring time per case in milliseconds
    #[arg(long, default_value_t = 200, value_name = "MS", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) millis: u16,

    /// Save the times of products to a file for `--tuned`, on all instruction sets; other
    /// operations are not measured
    #[arg(long, value_name = "FILE", conflicts_with = "isa")]
    pub(crate) save: Option<PathBuf>,

    /// Replace an existing file of --save
    #[arg(long, requires = "save")]
    pub(crate) force: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct KernelsCountArgs {
    /// Words that must all occur in the name of a kernel or of its case, such as: linear q4_k m=1
    pub(crate) filter: Vec<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct KernelsSupportArgs {
    /// Words that must all occur in the name of a kernel or of its case, such as: linear tiles
    pub(crate) filter: Vec<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
