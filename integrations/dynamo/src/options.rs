//! Command line options.

use clap::Args;
use dynamo_backend_common::{CommonArgs, WorkerConfig};
use latent_graph::passes::Precision;
use latent_types::CacheType;
use std::path::PathBuf;

/// How the model is loaded and run.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// A .gguf file (any shard of a set), a .latent file or a folder of .safetensors
    #[arg(short, long, env = "LATENT_MODEL")]
    pub model: PathBuf,

    /// Name of the model for clients [default: that of its file or folder]
    #[arg(long, env = "LATENT_ALIAS", value_name = "NAME")]
    pub served_model_name: Option<String>,

    /// A folder with config.json, tokenizer.json and tokenizer_config.json for the frontend, in
    /// place of what the model's own file says
    #[arg(long, value_name = "FOLDER")]
    pub model_files: Option<PathBuf>,

    /// Where such a folder is made for a GGUF file; the same on all hosts [default: latent/cards in
    /// the user's cache]
    #[arg(long, env = "LATENT_CARDS", value_name = "FOLDER", conflicts_with = "model_files")]
    pub cards: Option<PathBuf>,

    /// Tokens of context of one request [default: the model's limit, at most 32768]
    #[arg(short, long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub ctx_size: Option<u32>,

    /// Tokens that the KV cache holds, all requests and cached prefixes together [default: four
    /// contexts, where memory allows]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub cache_tokens: Option<u32>,

    /// Requests that run at once
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub parallel: u16,

    /// Threads [default: one for each core that affinity and cgroup quotas leave to this process]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Type of the KV cache: f32, f16, bf16 or int8 [default: f16; with --precision exact f32]
    #[arg(long, value_name = "TYPE")]
    pub cache_type: Option<CacheType>,

    /// exact: all arithmetic in f32; default: 8-bit activations where weights are quantized
    #[arg(long, default_value = "default")]
    pub precision: Precision,

    /// What computes: cpu or reference
    #[arg(long, default_value = "cpu", value_name = "NAME")]
    pub device: String,

    /// Keep prefixes on disk too, in this folder
    #[arg(long, value_name = "FOLDER")]
    pub cache_disk: Option<PathBuf>,

    /// Most bytes of that folder
    #[arg(long, default_value_t = 16 << 30, value_name = "BYTES", requires = "cache_disk")]
    pub cache_disk_size: u64,
}

impl Options {
    /// The name of the model for clients.
    pub fn name(&self) -> String {
        let stem = || self.model.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        self.served_model_name.clone().or_else(stem).unwrap_or_else(|| "model".into())
    }

    /// What Dynamo is told of this worker; `files` is the folder from which the frontend has
    /// tokenizer and chat template.
    pub fn worker(&self, common: CommonArgs, files: &std::path::Path) -> WorkerConfig {
        WorkerConfig {
            namespace: common.namespace,
            component: common.component,
            endpoint: common.endpoint,
            endpoint_types: common.endpoint_types,
            model_name: files.display().to_string(),
            served_model_name: Some(self.name()),
            custom_jinja_template: common.custom_jinja_template,
            tool_call_parser: common.dyn_tool_call_parser,
            reasoning_parser: common.dyn_reasoning_parser,
            exclude_tools_when_tool_choice_none: common.exclude_tools_when_tool_choice_none,
            disaggregation_mode: common.disaggregation_mode,
            route_to_encoder: common.route_to_encoder,
            enable_rl: common.enable_rl,
            metrics_labels: vec![("model".into(), self.name())],
            runtime: common.runtime,
            ..WorkerConfig::default()
        }
    }
}
