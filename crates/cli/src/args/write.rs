//! `latent make-model`, `latent pack` and `latent convert`.

use super::limits::{bytes, up_to};
use super::quantize::TypeArgs;
use clap::Args;
use latent_testing::TypeRule;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
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

    /// Type of the tensors whose names have this in them (* is any text); several times. GLM's Q4_K_M files are
    /// Q4_K_M with --tensor-type "ffn_gate_shexp=Q5_K" --tensor-type "ffn_up_shexp=Q5_K"
    #[arg(long, value_name = "PATTERN=TYPE")]
    pub(crate) tensor_type: Vec<TypeRule>,

    /// Seed of the random weights
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,

    /// Cut the file into this many shards
    #[arg(long, value_name = "N", value_parser = up_to(latent_formats::limits::MAX_SHARDS as u64))]
    pub(crate) shards: Option<usize>,

    /// Add a layer for multi-token prediction (--draft mtp)
    #[arg(long)]
    pub(crate) mtp: bool,

    /// Leave the weights out: a GGUF header or config.json, for `latent check` and `latent verify`
    #[arg(long)]
    pub(crate) header_only: bool,

    /// Leave holes in place of the weights, which are zeros then: a GGUF file of full size that takes no space on the disk
    #[arg(long, conflicts_with = "header_only")]
    pub(crate) sparse: bool,

    /// Replace existing files
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PackArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) words: Vec<OsString>,

    /// A .gguf file (any shard of a set), a folder of .safetensors, or hf:OWNER/NAME[:QUANT]
    #[arg(short, long, env = "LATENT_MODEL", required_unless_present = "words")]
    pub(crate) model: Option<PathBuf>,

    /// The file to write [default: next to the model, or in this folder for a model of the hub, with the ending .latent]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Threads [default: one for each core that this process may use]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

pub(super) const CONVERT_HELP: &str = "Examples:
  latent convert folder                               a folder of safetensors: writes folder-BF16.gguf next to it
  latent convert folder --type Q4_K_M                 the same quantized: writes folder-Q4_K_M.gguf
  latent convert folder --type Q4_K_M --dry-run       size, memory and speed, without writing
  latent convert folder --split-max-size 20G          writes folder-BF16-00001-of-0000N.gguf and so on
  latent convert model.gguf -o folder                 back: config.json, tokenizer.json and safetensors

An interrupted run to GGUF leaves OUT.….part; the same command goes on with it. docs/converting.md has more.";

#[derive(Args, Debug)]
pub(crate) struct ConvertArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) path: Option<PathBuf>,

    /// A folder of .safetensors, a .gguf file (any shard of a set), or hf:OWNER/NAME[:QUANT]
    #[arg(short, long, env = "LATENT_MODEL", required_unless_present = "path")]
    pub(crate) model: Option<PathBuf>,

    /// The .gguf file to write, or the folder if the model is a .gguf file [default: next to the model, or in this folder for a model of the hub]
    #[arg(short, long, alias = "outfile", value_name = "PATH")]
    pub(crate) out: Option<PathBuf>,

    /// Type of the matrices: F32, F16, BF16, and in a .gguf file a mix of types (Q4_K_M, Q8_0, IQ3_XS, MXFP4_MOE, …), as `latent quantize` has them [default: as they
    /// are stored, FP8 and quantized ones as BF16]
    #[arg(long = "type", alias = "outtype", value_name = "TYPE")]
    pub(crate) ty: Option<String>,

    #[command(flatten)]
    pub(crate) types: TypeArgs,

    /// Cut the model into files of at most this many bytes of tensors [default: one .gguf file; .safetensors of 5 GB]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) split_max_size: Option<u64>,

    /// What llama.cpp calls the rules by which the tokenizer splits text, where they are not found [example: deepseek-v3]
    #[arg(long, value_name = "NAME")]
    pub(crate) pre: Option<String>,

    /// The model that a LoRA adapter is for, as with -m; a config.json is enough. The adapter is converted: a folder of PEFT to a .gguf file, or back
    #[arg(long, value_name = "MODEL", requires = "out")]
    pub(crate) base_model: Option<PathBuf>,

    /// Replace existing files
    #[arg(long)]
    pub(crate) force: bool,
}
