//! The config of a model: its typed, checked hyper-parameters, independent of the container.

mod checkpoint;
mod decimal;
mod difference;
mod error;
mod families;
mod gguf;
mod gguf_file;
mod gguf_kda;
mod gguf_keys;
mod gguf_moe;
mod gguf_rope;
mod hf;
mod hf_file;
mod hf_kda;
mod hf_keys;
mod hf_moe;
mod hf_refused;
mod hf_rope;
mod implied;
mod indexer;
mod key_list;
mod keys;
mod limits;
mod model;
mod moe;
mod outline;
mod part;
mod profile;
mod rank_config;
mod reader;
mod rope;
mod source;

pub use error::{ConfigError, InexpressibleModel};
pub(crate) use families::lacks;
pub(crate) use implied::ImpliedShapes;
pub use indexer::{INDEX_NORM_EPS, Indexer};
pub use key_list::KeyList;
pub use model::{
    AttentionShape, DecayRate, FfnActivation, Gating, GroupMask, GroupScore, IndexerShape, KdaShape, KvForm,
    LayerKind, ModelConfig, MoeShape, OutputGate, QueryGate, RouterSpec, Temperature,
};
pub(crate) use outline::OutlineFile;
pub use part::{RankPart, RankShare, WireType};
pub(crate) use profile::{ArchitectureProfile, profiles};
pub use rope::{RopePairs, RopeScaling, RopeSpec};
pub use source::{ConfigTensors, JsonKeys, MetadataKeys, MetadataValue};

use crate::naming::TensorNaming;
use checkpoint::CheckpointShapes;
use implied::RankShapes;
use latent_formats::{Checkpoint, CheckpointSource, Outline, OutlineData};

/// Warnings about keys of an outline's config.json that other data in its folder overrides.
pub(crate) fn warnings(file: &OutlineFile<'_>) -> Vec<String> {
    match file.0.source() {
        CheckpointSource::HuggingFace(_) => hf::warnings(file, file).unwrap_or_default(),
        CheckpointSource::Gguf(_) => Vec::new(),
    }
}

impl Indexer {
    /// The indexer of an opened model, if its keys describe one.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<Indexer>, ConfigError> {
        match checkpoint.source() {
            CheckpointSource::Gguf(source) => {
                let file = checkpoint.display_name();
                let keys = checkpoint::GgufKeys { file, metadata: &source.metadata };
                let Some(MetadataValue::Text(architecture)) = keys.field("general.architecture") else {
                    return Ok(None);
                };
                Indexer::of_gguf(&reader::Reader::gguf(&keys, &format!("{architecture}.")))
            }
            CheckpointSource::HuggingFace(source) => {
                let file = format!("{}/{}", checkpoint.display_name(), source.config_file());
                let keys = JsonKeys { file: &file, object: &source.config };
                Indexer::of_config_json(&hf::text(&keys)?)
            }
        }
    }
}

impl ModelConfig {
    /// The epsilon of the RMSNorm whose weight is in this slot of the circuit.
    pub fn norm_eps(&self, slot: &str) -> f64 {
        let name = Some(self.architecture.as_str());
        let mut families = families::FAMILIES.iter();
        let family = families.find(|family| name == Some(family.model_type) || name == family.gguf);
        match family.and_then(|family| family.latent_eps) {
            // ADR 9: older families use the file's epsilon for latents, as llama.cpp and vLLM do.
            // Newer ones follow Transformers, whose classes fix it at 1e-6.
            Some(eps) if matches!(slot, "q_a_norm" | "kv_a_norm") => eps,
            _ => self.rms_eps,
        }
    }

    /// Reads and checks the config of an opened model.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`] for an architecture without a circuit; otherwise the missing or
    /// wrong key or tensor, with its value and what was expected.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<ModelConfig, ConfigError> {
        match checkpoint.source() {
            CheckpointSource::Gguf(source) => {
                let keys =
                    checkpoint::GgufKeys { file: checkpoint.display_name(), metadata: &source.metadata };
                ModelConfig::from_gguf(&keys, &CheckpointShapes(checkpoint))
            }
            CheckpointSource::HuggingFace(source) => {
                let file = format!("{}/{}", checkpoint.display_name(), source.config_file());
                let keys = JsonKeys { file: &file, object: &source.config };
                ModelConfig::from_config(&keys, &CheckpointShapes(checkpoint))
            }
        }
    }

    /// The config of a model on a rank that may lack some of its files. A missing tensor is assumed
    /// to have the shape that the keys imply. Vocabulary, context and names are right; facts about
    /// layers may not be. Ranks plan with [`from_checkpoint`](Self::from_checkpoint) after they
    /// have exchanged their lists of tensors. With all files present, the result is the same.
    pub fn before_loading(checkpoint: &Checkpoint) -> Result<ModelConfig, ConfigError> {
        if checkpoint.is_whole() {
            return ModelConfig::from_checkpoint(checkpoint);
        }
        let name = checkpoint.display_name();
        match checkpoint.source() {
            CheckpointSource::Gguf(source) => {
                let keys = checkpoint::GgufKeys { file: name, metadata: &source.metadata };
                gguf::read(&keys, &RankShapes::new(checkpoint, &keys, TensorNaming::Gguf))
            }
            CheckpointSource::HuggingFace(source) => {
                let file = format!("{name}/{}", source.config_file());
                let keys = JsonKeys { file: &file, object: &source.config };
                hf::read(&keys, &RankShapes::new(checkpoint, &keys, TensorNaming::HuggingFace))
            }
        }
    }

    /// Reads and checks the config of an outline, whose data may be missing. For a config.json
    /// alone, tensors are assumed to exist in the shapes that the keys imply.
    pub fn from_outline(outline: &Outline) -> Result<ModelConfig, ConfigError> {
        let file = OutlineFile(outline);
        match outline.source() {
            CheckpointSource::Gguf(_) => gguf::read(&file, &file),
            // Without any header, only the keys tell which tensors the model has.
            CheckpointSource::HuggingFace(_) if outline.data() == OutlineData::Config => {
                hf::read(&file, &ImpliedShapes { keys: &file, naming: TensorNaming::HuggingFace })
            }
            CheckpointSource::HuggingFace(_) => hf::read(&file, &file),
        }
    }

    /// Warnings about keys of config.json that other data in the folder overrides. Empty for GGUF
    /// files.
    pub fn warnings(checkpoint: &Checkpoint) -> Result<Vec<String>, ConfigError> {
        let CheckpointSource::HuggingFace(source) = checkpoint.source() else { return Ok(Vec::new()) };
        let file = format!("{}/{}", checkpoint.display_name(), source.config_file());
        hf::warnings(&JsonKeys { file: &file, object: &source.config }, &CheckpointShapes(checkpoint))
    }

    /// Reads and checks a config from GGUF metadata and the shapes of the file's tensors.
    pub fn from_gguf(
        keys: &dyn MetadataKeys,
        tensors: &dyn ConfigTensors,
    ) -> Result<ModelConfig, ConfigError> {
        gguf::read(keys, tensors)
    }

    /// Reads and checks a config from a parsed config.json and the shapes of the folder's tensors.
    pub fn from_config(
        keys: &dyn MetadataKeys,
        tensors: &dyn ConfigTensors,
    ) -> Result<ModelConfig, ConfigError> {
        hf::read(keys, tensors)
    }
}
