//! The description of a loaded model, for users and programs.

use latent_engine::Engine;
use latent_formats::Checkpoint;

/// A LoRA adapter of a loaded model.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct LoadedAdapter {
    /// The file or folder.
    pub path: String,
    /// The default scale.
    pub scale: f32,
}

/// The loaded model, and how it runs.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Description {
    /// The name of the model or of its file.
    pub name: String,
    /// The model's file.
    pub file: String,
    /// The name of the architecture.
    pub architecture: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Size of the weights, in bytes.
    pub weight_bytes: u64,
    /// Number of layers.
    pub layers: usize,
    /// Elements of a hidden state, and of an embedding.
    pub hidden_size: usize,
    /// Logits per token.
    pub vocab_size: usize,
    /// Context size, in tokens.
    pub context: usize,
    /// Maximum context size with which the model can be loaded into the available memory, in
    /// tokens.
    pub largest_context: usize,
    /// Context size that the model was trained for, in tokens.
    pub trained_context: usize,
    /// Element type of the KV cache.
    pub cache_type: String,
    /// Size of a token in the KV cache, in bytes.
    pub cache_bytes_per_token: usize,
    /// The name of the backend.
    pub device: String,
    /// The instruction-set tier.
    pub isa: String,
    /// Number of threads.
    pub threads: usize,
    /// Whether the model's MTP layer drafts tokens.
    pub drafts: bool,
    /// Loading time, in seconds.
    pub load_seconds: f64,
    /// LoRA adapters, in the order of the scales of answers.
    pub adapters: Vec<LoadedAdapter>,
    /// Warnings: overridden keys of config.json, paged weights, dense attention in a model that was
    /// trained with sparse attention, an unusable response template.
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
            largest_context: engine.largest_context(),
            trained_context: config.context_length,
            cache_type: summary.cache.to_string(),
            cache_bytes_per_token: summary.token_bytes,
            device: summary.backend.to_owned(),
            isa: summary.tier.name().to_owned(),
            threads: summary.placement.threads(),
            drafts: engine.drafts(),
            load_seconds: summary.load_time.as_secs_f64(),
            warnings: summary.warnings.iter().cloned().chain(paged).chain(dense).collect(),
        }
    }
}
