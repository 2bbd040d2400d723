//! Writes a config as GGUF metadata with the keys of llama.cpp's converter: the inverse of
//! `gguf.rs`.
use super::difference::{close, difference};
use super::error::{ConfigError, InexpressibleModel};
use super::families;
use super::gguf;
use super::gguf_file::{ARCHITECTURES, Architecture, StoredRates, YarnKeys};
use super::indexer::Indexer;
use super::key_list::KeyList;
use super::keys as config_keys;
use super::rope::{RopeScaling, mscale_of, yarn_mscale};
use super::source::{ConfigTensors, JsonKeys, MetadataValue};
use super::{Gating, KvForm, LayerKind, ModelConfig, hf};
use latent_formats::{Checkpoint, CheckpointSource};

impl ModelConfig {
    /// The GGUF architecture of an opened model; `None` if Latent neither reads nor writes such
    /// GGUF files.
    pub fn gguf_architecture(checkpoint: &Checkpoint) -> Result<Option<&'static str>, ConfigError> {
        match checkpoint.source() {
            CheckpointSource::Gguf(_) => {
                let config = ModelConfig::from_checkpoint(checkpoint)?;
                Ok(ARCHITECTURES.iter().map(|a| a.name).find(|name| *name == config.architecture))
            }
            CheckpointSource::HuggingFace(source) => {
                let file = format!("{}/{}", checkpoint.display_name(), source.config_file());
                hf::family(&JsonKeys { file: &file, object: &source.config }).map(|family| family.gguf)
            }
        }
    }

    /// How GGUF files of this config store W_UK and W_UV. llama.cpp expects separate tensors for
    /// architectures with absorbed attention, and one for MiniCPM3 and PLM.
    pub fn gguf_kv_form(&self) -> KvForm {
        let apart = architecture(self).is_some_and(|architecture| architecture.deepseek);
        if apart { KvForm::Separate } else { KvForm::Combined }
    }

    /// The keys of a GGUF file with this config's `architecture` and `kv_form`, without a check
    /// that they are read back as the same config.
    pub fn gguf_keys(&self, indexer: Option<&Indexer>) -> Result<KeyList, InexpressibleModel> {
        let Some(architecture) = architecture(self) else {
            let what = format!("{} is not a GGUF architecture", self.architecture);
            return Err(InexpressibleModel { file: "a GGUF file".into(), what });
        };
        let mut keys = KeyList::new(architecture.name);
        sizes(self, architecture, &mut keys);
        if let Some(indexer) = indexer.cloned().or_else(|| Indexer::of_config(self)) {
            keys.add_size("attention.indexer.head_count", indexer.heads);
            keys.add_size("attention.indexer.key_length", indexer.width);
            if let Some(full) = &indexer.full {
                let full = full.iter().map(|full| MetadataValue::Flag(*full)).collect();
                keys.add("attention.indexer.types", MetadataValue::List(full));
            }
        }
        // llama.cpp reads expert keys for these architectures only.
        if architecture.deepseek {
            experts(self, &mut keys);
        }
        recurrent(self, &mut keys);
        let [embedding, residual, logits] = self.own_scales();
        let scales = [("embedding_scale", embedding), ("residual_scale", residual)];
        // llama.cpp's `logit_scale` divides.
        let inverse = ("logit_scale", logits.map(|scale| 1.0 / scale));
        for (key, scale) in scales.into_iter().chain([inverse]) {
            if let Some(scale) = scale {
                keys.add_real(key, scale);
            }
        }
        rope(self, architecture, &mut keys);
        Ok(keys)
    }

    /// Like [`ModelConfig::gguf_keys`], and checks that a reader of the keys and of the file's
    /// `tensors` gets this config again.
    pub fn checked_gguf_keys(
        &self,
        indexer: Option<&Indexer>,
        tensors: &dyn ConfigTensors,
    ) -> Result<KeyList, InexpressibleModel> {
        let keys = self.gguf_keys(indexer)?;
        // Reading back is the proof that the file will run as the same model. It also covers
        // hyper-parameters without a GGUF key.
        let what = match gguf::read(&keys, tensors) {
            Ok(read) => difference(self, &read),
            Err(error) => Some(error.to_string()),
        };
        let file = || format!("a GGUF file of architecture {}", self.architecture);
        what.map_or(Ok(keys), |what| Err(InexpressibleModel { file: file(), what }))
    }

    /// Whether GGUF files of this architecture store the decay rates of recurrent layers as
    /// negative numbers.
    pub(crate) fn negative_rates(&self) -> bool {
        architecture(self).is_some_and(|architecture| architecture.rates == Some(StoredRates::Negative))
    }

    /// Factors on embedding, residual stream and final row that differ from llama.cpp's constants
    /// of the architecture.
    pub fn own_scales(&self) -> [Option<f64>; 3] {
        let usual = match architecture(self) {
            Some(architecture) if architecture.scaled => gguf::usual_scales(self.layers, self.hidden_size),
            _ => [1.0; 3],
        };
        let own = [self.embedding_scale, self.residual_scale, self.logits_scale];
        std::array::from_fn(|i| (!close(own[i], usual[i])).then_some(own[i]))
    }

    /// The families of config.json for a GGUF architecture, the most likely one first.
    pub(super) fn hf_families(&self) -> Vec<&'static families::ModelFamily> {
        // Several families share `deepseek2`. Dense models are most likely Youtu-LLM's, sigmoid
        // routers DeepSeek-V3's, and softmax routers DeepSeek-V2's.
        let likely = match &self.moe {
            None => "youtu",
            Some(moe) if moe.router.gating == Gating::Sigmoid => "deepseek_v3",
            Some(_) => "deepseek_v2",
        };
        let mut found: Vec<_> = families::FAMILIES
            .iter()
            .filter(|family| family.gguf == Some(self.architecture.as_str()))
            .collect();
        found.sort_by_key(|family| family.model_type != likely);
        found
    }
}

fn architecture(config: &ModelConfig) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|architecture| architecture.name == config.architecture)
}

/// Layers, widths and heads.
fn sizes(config: &ModelConfig, architecture: &Architecture, keys: &mut KeyList) {
    let a = &config.attention;
    let apart = config.kv_form == KvForm::Separate;
    // With separate halves, llama.cpp takes `key_length` and `value_length` as the widths of the
    // cached row (multi-query attention over latents), and `*_mla` as those of a head.
    let (key, value) = if apart { (a.latent_width(), a.kv_lora_rank) } else { (a.nope + a.rope, a.v) };
    for key in config_keys::SIZES {
        if let Some(size) = (key.value)(config) {
            keys.add_size(key.gguf, size);
        }
    }
    for key in config_keys::REALS {
        if let Some(value) = (key.value)(config) {
            keys.add_real(key.gguf, value);
        }
    }
    keys.add_size("block_count", config.all_layers());
    // 0 in models without dense layers.
    keys.add_size("feed_forward_length", config.intermediate_size);
    let latent = if apart { 1 } else { a.heads };
    match &config.kda {
        None => keys.add_size("attention.head_count_kv", latent),
        Some(_) => {
            // One entry per block, MTP layers included; 0 marks a recurrent layer, as llama.cpp's
            // converter writes it.
            let of = |layer| if config.is_recurrent(layer) { 0 } else { latent as i128 };
            let heads = (0..config.all_layers()).map(of);
            keys.add(
                "attention.head_count_kv",
                MetadataValue::List(heads.map(MetadataValue::Integer).collect()),
            );
        }
    }
    keys.add_size("attention.key_length", key);
    keys.add_size("attention.value_length", value);
    if apart {
        keys.add_size("attention.key_length_mla", a.nope + a.rope);
        keys.add_size("attention.value_length_mla", a.v);
    }
    // llama.cpp requires the key except for models of certain numbers of layers, which it takes for
    // a Lite model.
    if let Some(rank) = a.q_lora_rank.or(architecture.deepseek.then_some(0)) {
        keys.add_size("attention.q_lora_rank", rank);
    }
    if let Some(temperature) = a.temperature {
        keys.add_real("attention.temperature_scale", temperature.scale);
        keys.add_size("attention.temperature_length", temperature.length);
    }
    if config.mtp_layers > 0 {
        keys.add_size("nextn_predict_layers", config.mtp_layers);
    }
}

/// Keys of layers with a recurrent state.
fn recurrent(config: &ModelConfig, keys: &mut KeyList) {
    let Some(kda) = &config.kda else { return };
    keys.add_size("kda.head_dim", kda.width);
    keys.add_size("ssm.conv_kernel", kda.taps);
    if let Some(bound) = kda.lower_bound {
        // Readers accept a bound without the flag; both are written, as Ling-3.0's config has both.
        keys.add("kda.safe_gate", MetadataValue::Flag(true));
        keys.add_real("kda.gate_lower_bound", bound);
    }
}

/// Keys of experts. llama.cpp requires some of them in dense models too.
fn experts(config: &ModelConfig, keys: &mut KeyList) {
    let decoder = config.layer_kinds.iter().take(config.layers);
    keys.add_size("leading_dense_block_count", decoder.take_while(|kind| **kind == LayerKind::Dense).count());
    let Some(moe) = &config.moe else {
        keys.add_size("expert_feed_forward_length", config.intermediate_size);
        // A dense model: llama.cpp requires both keys for these architectures.
        keys.add_size("expert_shared_count", 0);
        return;
    };
    // Missing keys mean no groups.
    if moe.router.groups > 1 {
        keys.add_size("expert_group_count", moe.router.groups);
        keys.add_size("expert_group_used_count", moe.router.groups_used);
    }
    // llama.cpp's enum `llama_expert_gating_func_type`.
    let gating = match moe.router.gating {
        Gating::Softmax => 1,
        Gating::Sigmoid => 2,
        Gating::SoftmaxOfSelected => 3,
        Gating::SqrtSoftplus => 4,
    };
    keys.add_size("expert_gating_func", gating);
    keys.add("expert_weights_norm", MetadataValue::Flag(moe.router.normalise));
}

/// Keys of the rotary embedding and of YaRN's effect on attention scores: the table in
/// `gguf_rope.rs`, solved for the keys.
fn rope(config: &ModelConfig, architecture: &Architecture, keys: &mut KeyList) {
    let (a, rope) = (&config.attention, &config.rope);
    let magnitude = match &rope.scaling {
        RopeScaling::None => return,
        RopeScaling::Linear { factor } => {
            keys.add_text("rope.scaling.type", "linear");
            keys.add_real("rope.scaling.factor", *factor);
            return;
        }
        RopeScaling::LongRope { original, magnitude, .. } => {
            keys.add_text("rope.scaling.type", "longrope");
            keys.add_size("rope.scaling.original_context_length", *original);
            *magnitude
        }
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow, ext_factor, magnitude } => {
            keys.add_text("rope.scaling.type", "yarn");
            keys.add_real("rope.scaling.factor", *factor);
            keys.add_size("rope.scaling.original_context_length", *original);
            keys.add_real("rope.scaling.yarn_beta_fast", *beta_fast);
            keys.add_real("rope.scaling.yarn_beta_slow", *beta_slow);
            // 1 is the default, which llama.cpp's files omit.
            if *ext_factor != 1.0 {
                keys.add_real("rope.scaling.yarn_ext_factor", *ext_factor);
            }
            let (whole, growth) = (yarn_mscale(*factor, 1.0), config.score_growth());
            let mscale = mscale_of(*factor, growth / magnitude);
            let (attention, log) = match architecture.yarn {
                // As llama.cpp's converter does for Mistral Large 3, although the model has no
                // mscale (ADR 12).
                YarnKeys::Deepseek2 if a.temperature.is_some() => (*magnitude, 1.0),
                YarnKeys::Frequencies if *ext_factor == 0.0 => (*magnitude, 0.0),
                _ if *ext_factor == 0.0 => (*magnitude, mscale),
                YarnKeys::Deepseek2 if mscale != 0.0 => (*magnitude, mscale),
                YarnKeys::Deepseek2 | YarnKeys::Frequencies => (magnitude / whole, 0.0),
                YarnKeys::Mla => (growth / whole, mscale),
            };
            if log != 0.0 {
                keys.add_real("rope.scaling.yarn_log_multiplier", 0.1 * log);
            }
            attention
        }
    };
    if (magnitude - 1.0).abs() > 1e-9 {
        keys.add_real("rope.scaling.attn_factor", magnitude);
    }
}
