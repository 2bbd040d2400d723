//! `latent make-model`, `latent pack` and `latent convert`.

use super::limits::{bytes, up_to};
use super::quantize::TypeArgs;
use clap::Args;
use latent_testing::TypeRule;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct MakeModelArgs {
    /// Name of the shape; --list prints all
    #[arg(required_unless_present = "list")]
    pub(crate) shape: Option<String>,

    /// Type of the weights (F32, BF16, Q8_0, Q4_K, …) or a mix (Q4_K_M, Q4_0_M)
    #[arg(required_unless_present = "list", value_name = "TYPE")]
    pub(crate) kind: Option<String>,

    /// The .gguf file to write, or a folder for safetensors
    #[arg(required_unless_present = "list")]
    pub(crate) out: Option<PathBuf>,

    /// List the known shapes
    #[arg(long)]
    pub(crate) list: bool,

    /// Number of layers, at most those of the shape
    #[arg(long, value_name = "N", value_parser = up_to(512))]
    pub(crate) layers: Option<usize>,

    /// Write one attn_kv_b tensor and no *_mla keys, as in old files
    #[arg(long)]
    pub(crate) legacy: bool,

    /// Type of attn_k_b and attn_v_b, if different
    #[arg(long, value_name = "TYPE")]
    pub(crate) kvb: Option<String>,

    /// Type of the tensors whose names contain this text (* matches any text); repeatable. GLM's
    /// Q4_K_M files are Q4_K_M with --tensor-type "ffn_gate_shexp=Q5_K" --tensor-type
    /// "ffn_up_shexp=Q5_K"
    #[arg(long, value_name = "PATTERN=TYPE")]
    pub(crate) tensor_type: Vec<TypeRule>,

    /// Seed of the random weights
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,

    /// Number of shards
    #[arg(long, value_name = "N", value_parser = up_to(latent_formats::limits::MAX_SHARDS as u64))]
    pub(crate) shards: Option<usize>,

    /// Add a layer for multi-token prediction (--draft mtp)
    #[arg(long)]
    pub(crate) mtp: bool,

    /// Write no weights: a GGUF header or config.json, for `latent check` and `latent verify`
    #[arg(long)]
    pub(crate) header_only: bool,

    /// Write a sparse file: a GGUF file of full size whose weights are zeros and take no disk space
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

    /// Output file [default: next to the model, or in the current folder for a model of the hub,
    /// with the ending .latent]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Number of threads [default: one per available core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

pub(super) const CONVERT_HELP: &str = "Examples:
  latent convert folder                          writes folder-BF16.gguf
  latent convert folder --type Q4_K_M            writes folder-Q4_K_M.gguf
  latent convert folder --type Q4_K_M --dry-run  size, memory and speed
  latent convert folder --split-max-size 20G     writes shards
  latent convert model.gguf -o folder            writes safetensors

After an interruption, the same command resumes from OUT.….part.
See docs/converting.md.";

#[derive(Args, Debug)]
pub(crate) struct ConvertArgs {
    /// The model, as with -m
    #[arg(value_name = "MODEL")]
    pub(crate) path: Option<PathBuf>,

    /// A folder of .safetensors, a .gguf file (any shard of a set), or hf:OWNER/NAME[:QUANT]
    #[arg(short, long, env = "LATENT_MODEL", required_unless_present = "path")]
    pub(crate) model: Option<PathBuf>,

    /// Output: a .gguf file, or a folder if the model is a .gguf file [default: next to the model,
    /// or in the current folder for a model of the hub]
    // `outfile` and `outtype`: names of llama.cpp's convert_hf_to_gguf.py.
    #[arg(short, long, alias = "outfile", value_name = "PATH")]
    pub(crate) out: Option<PathBuf>,

    /// Type of the matrices: F32, F16, BF16, or in a .gguf file a mix (Q4_K_M, Q8_0, IQ3_XS,
    /// MXFP4_MOE, …), as for `latent quantize` [default: as stored; FP8 and quantized ones become
    /// BF16]
    #[arg(long = "type", alias = "outtype", value_name = "TYPE")]
    pub(crate) ty: Option<String>,

    #[command(flatten)]
    pub(crate) types: TypeArgs,

    /// Split the model into files with at most this many bytes of tensors [default: one .gguf file;
    /// .safetensors of 5 GB]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) split_max_size: Option<u64>,

    /// llama.cpp's name of the pre-tokenizer, if it cannot be identified, such as deepseek-v3
    #[arg(long, value_name = "NAME")]
    pub(crate) pre: Option<String>,

    /// Convert a LoRA adapter (a PEFT folder to a .gguf file, or back) for this base model, as with
    /// -m; a config.json is enough
    #[arg(long, value_name = "MODEL", requires = "out")]
    pub(crate) base_model: Option<PathBuf>,

    /// Replace existing files
    #[arg(long)]
    pub(crate) force: bool,
}
