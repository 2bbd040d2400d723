//! The bodies of the fuzz targets, as plain functions: cargo-fuzz calls them with the bytes that it makes up (`fuzz/`), and a test with
//! every seed in `fuzz/corpus`.
//!
//! A function takes any bytes, and panics where a promise of SECURITY.md is broken. Where bytes at random would not get past a parser, they
//! are read by a grammar: each byte is a choice, and when they have run out the shortest choice is taken.
//!
//! ```
//! let (name, run) = latent_fuzz_targets::TARGETS[0];
//! assert_eq!(name, "config");
//! run(br#"{"model_type": "deepseek_v3"}"#);
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "engine")]
mod circuit;
#[cfg(feature = "engine")]
mod dump;
mod encode;
mod headers;
#[cfg(feature = "engine")]
mod model;
#[cfg(feature = "engine")]
mod plan_step;
#[cfg(feature = "engine")]
mod session;
mod shards;
mod source;
mod special_split;
#[cfg(feature = "engine")]
mod stop_strings;
mod template;
mod tiktoken;
mod tokenizer_json;

#[cfg(feature = "engine")]
pub use circuit::circuit;
#[cfg(feature = "engine")]
pub use dump::dump;
pub use encode::encode;
pub use headers::{config, gguf, packed, safetensors};
#[cfg(feature = "engine")]
pub use plan_step::plan_step;
#[cfg(feature = "engine")]
pub use session::session;
pub use shards::shards;
pub use special_split::special_split;
#[cfg(feature = "engine")]
pub use stop_strings::stop_strings;
pub use template::template;
pub use tiktoken::tiktoken;
pub use tokenizer_json::{tokenizer, tokenizer_json};

/// The name of a target, which is that of its corpus, and what runs an input.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("config", config),
    ("encode", encode),
    ("gguf", gguf),
    ("packed", packed),
    ("safetensors", safetensors),
    ("shards", shards),
    ("special_split", special_split),
    ("template", template),
    ("tiktoken", tiktoken),
    ("tokenizer", tokenizer),
    ("tokenizer_json", tokenizer_json),
    #[cfg(feature = "engine")]
    ("circuit", circuit),
    #[cfg(feature = "engine")]
    ("dump", dump),
    #[cfg(feature = "engine")]
    ("plan_step", plan_step),
    #[cfg(feature = "engine")]
    ("session", session),
    #[cfg(feature = "engine")]
    ("stop_strings", stop_strings),
];
