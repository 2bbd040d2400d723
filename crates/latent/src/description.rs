//! A description of a loaded model, for people and programs.

use latent_engine::Engine;
use latent_formats::Checkpoint;

/// A LoRA adapter of a loaded model.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct LoadedAdapter {
    /// The file or folder.
    pub path: String,
    /// The scale of answers that say no other.
    pub scale: f32,
}

/// What was loaded, and how it runs.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Description {
    /// The model's name, or its file's.
    pub name: String,
    /// Its file.
    pub file: String,
    /// The architecture's name.
    pub architecture: String,
    /// Weights, counted as numbers.
    pub parameters: u64,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Layers.
    pub layers: usize,
    /// Elements of a hidden state, and of an embedding.
    pub hidden_size: usize,
    /// Logits per token.
    pub vocab_size: usize,
    /// Tokens of context.
    pub context: usize,
    /// Tokens of context that the model was trained for.
    pub trained_context: usize,
    /// Element type of the KV cache.
    pub cache_type: String,
    /// Bytes that a token takes in it.
    pub cache_bytes_per_token: usize,
    /// What computes.
    pub device: String,
    /// The instruction set.
    pub isa: String,
    /// Threads.
    pub threads: usize,
    /// Seconds that loading took.
    pub load_seconds: f64,
    /// LoRA adapters, in the order in which answers name their scales.
    pub adapters: Vec<LoadedAdapter>,
    /// What may surprise: keys of config.json that are overridden, weights that are paged, attention that was trained sparse, a template that cannot be used.
    pub warnings: Vec<String>,
}

impl Description {
    pub(crate) fn new(checkpoint: &Checkpoint, engine: &Engine) -> Description {
        let (summary, config) = (engine.summary(), engine.config());
        let paged = summary.paged.as_ref().map(ToString::to_string);
        let dense = summary.dense.as_ref().map(ToString::to_string);
        let adapters = engine
            .adapters()
            .iter()
            .map(|adapter| LoadedAdapter { path: adapter.path.display().to_string(), scale: adapter.scale });
        Description {
            adapters: adapters.collect(),
            name: summary.name.clone(),
            file: checkpoint.display_name(),
            architecture: config.architecture.clone(),
            parameters: summary.parameters,
            weight_bytes: summary.weight_bytes,
            layers: config.layers,
            hidden_size: config.hidden_size,
            vocab_size: config.vocab_size,
            context: engine.context(),
            trained_context: config.context_length,
            cache_type: summary.cache.to_string(),
            cache_bytes_per_token: summary.token_bytes,
            device: summary.backend.to_owned(),
            isa: summary.tier.name().to_owned(),
            threads: summary.placement.threads(),
            load_seconds: summary.load_time.as_secs_f64(),
            warnings: summary.warnings.iter().cloned().chain(paged).chain(dense).collect(),
        }
    }
}
