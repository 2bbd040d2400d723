//! Writes a config as config.json with the keys of Transformers' classes: the inverse of `hf.rs`.
use super::decimal::tidied;
use super::difference::{close, difference};
use super::error::InexpressibleModel;
use super::families::ModelFamily;
use super::hf;
use super::indexer::Indexer;
use super::keys;
use super::rope::{RopePairs, RopeScaling, longrope_magnitude, mscale_of};
use super::source::{ConfigTensors, JsonKeys};
use super::{FfnActivation, Gating, LayerKind, ModelConfig, MoeShape, Temperature};
use serde_json::{Map, Value, json};

/// The object of a config.json.
type ConfigObject = Map<String, Value>;

impl ModelConfig {
    /// The config.json of a folder with `tensors`, for a config whose `architecture` is that of a
    /// GGUF file. Several families share an architecture. The first one whose config.json is read
    /// back as this config is taken, the most likely first.
    pub fn config_json(
        &self,
        indexer: Option<&Indexer>,
        tensors: &dyn ConfigTensors,
    ) -> Result<ConfigObject, InexpressibleModel> {
        let mut first = None;
        for family in self.hf_families() {
            let object = self.config_json_of(family, indexer);
            let what = match hf::read(&JsonKeys { file: "config.json", object: &object }, tensors) {
                Ok(read) => difference(self, &read),
                Err(error) => Some(error.to_string()),
            };
            // Reading back decides, because a family's defaults can contradict the config.
            let Some(what) = what else { return Ok(object) };
            // The most likely family's problem explains the most.
            first.get_or_insert_with(|| format!("with model_type {}, {what}", family.model_type));
        }
        let what = first.unwrap_or_else(|| {
            format!("no model_type corresponds to the GGUF architecture {}", self.architecture)
        });
        Err(InexpressibleModel { file: "config.json".into(), what })
    }

    fn config_json_of(&self, family: &ModelFamily, indexer: Option<&Indexer>) -> ConfigObject {
        let a = &self.attention;
        let mut object = ConfigObject::new();
        let mut add = |key: &str, value: Value| object.insert(key.to_owned(), value);
        add("architectures", json!(family.classes[..1]));
        add("model_type", json!(family.model_type));
        let sizes = keys::SIZES.iter().map(|key| (key.json, (key.value)(self).map(Value::from)));
        let reals = keys::REALS.iter().map(|key| (key.json, (key.value)(self).map(Value::from)));
        for (key, value) in sizes.chain(reals) {
            if let Some(value) = value {
                add(key, value);
            }
        }
        if self.intermediate_size > 0 {
            add("intermediate_size", json!(self.intermediate_size));
        }
        add("num_hidden_layers", json!(self.layers));
        add("num_nextn_predict_layers", json!(self.mtp_layers));
        // Expanded keys and values have as many heads as queries.
        add("num_key_value_heads", json!(a.heads));
        add("q_lora_rank", json!(a.q_lora_rank));
        add("qk_nope_head_dim", json!(a.nope));
        add("v_head_dim", json!(a.v));
        add("attention_bias", json!(self.attention_bias));
        let silu = self.activation == FfnActivation::SiluGated;
        add("hidden_act", json!(if silu { "silu" } else { "relu2" }));
        add("tie_word_embeddings", json!(self.tied_embeddings));
        // The family's default needs no key.
        if self.rope.pairs != family.pairs {
            add("rope_interleave", json!(self.rope.pairs == RopePairs::Interleaved));
        }
        add("rope_scaling", self.rope_scaling());
        // Mistral Large 3: a key of its own. Mistral Small 4 has it among the rope parameters.
        if let (Some(temperature), None) = (a.temperature, self.temperature_of_rope()) {
            let length = temperature.length;
            let scaling = json!({"beta": temperature.scale, "original_max_position_embeddings": length});
            add("llama_4_scaling", scaling);
        }
        if family.scaled {
            add("scale_emb", json!(self.embedding_scale));
            // 1.4 and not 1.3999999999999999: the inverse of the division by √layers.
            add("scale_depth", json!(tidied(self.residual_scale * (self.layers as f64).sqrt())));
            add("dim_model_base", json!((self.logits_scale * self.hidden_size as f64).round() as u64));
        }
        if let Some(indexer) = indexer.cloned().or_else(|| Indexer::of_config(self)) {
            add("index_n_heads", json!(indexer.heads));
            add("index_head_dim", json!(indexer.width));
            if let Some(full) = &indexer.full {
                let word = |full: &bool| if *full { "full" } else { "shared" };
                add("indexer_types", full.iter().map(word).collect());
            }
        }
        if let Some(moe) = &self.moe {
            self.add_experts(moe, family, &mut add);
        }
        if family.kda.is_some() {
            self.add_layer_types(family, &mut add);
        }
        // Published names of the family, as its code reads them.
        for (ours, theirs) in family.keys {
            if let Some(value) = object.remove(*ours) {
                object.insert((*theirs).to_owned(), value);
            }
        }
        object
    }

    fn add_experts(
        &self,
        moe: &MoeShape,
        family: &ModelFamily,
        add: &mut dyn FnMut(&str, Value) -> Option<Value>,
    ) {
        let router = &moe.router;
        let decoder = self.layer_kinds.iter().take(self.layers);
        // Other orders of dense and MoE layers cannot be stated with these keys. Reading back
        // refuses them.
        add("first_k_dense_replace", json!(decoder.take_while(|kind| **kind == LayerKind::Dense).count()));
        add("moe_layer_freq", json!(1));
        add("n_group", json!(router.groups));
        add("topk_group", json!(router.groups_used));
        match router.gating {
            Gating::Softmax => drop(add("scoring_func", json!("softmax"))),
            Gating::Sigmoid => drop(add("scoring_func", json!("sigmoid"))),
            // config.json has no value for these. The check by reading back then refuses the model.
            Gating::SoftmaxOfSelected | Gating::SqrtSoftplus => {}
        }
        // Families whose code does not read the key do not get it.
        if family.router.as_ref().is_some_and(|defaults| defaults.method.is_some()) {
            let method = match (router.bias, router.groups) {
                (true, _) => "noaux_tc",
                (false, 1) => "greedy",
                (false, _) => "group_limited_greedy",
            };
            add("topk_method", json!(method));
        }
        add("norm_topk_prob", json!(router.normalise));
    }

    /// The layers with a recurrent state and its sizes. All spellings are written:
    /// `linear_attn_config` for Kimi-Linear's published code, the flat keys for Ling-3.0's, and
    /// `layer_types` for Transformers.
    fn add_layer_types(&self, family: &ModelFamily, add: &mut dyn FnMut(&str, Value) -> Option<Value>) {
        let layers = || (0..self.layers).map(|layer| self.is_recurrent(layer));
        let word = |recurrent| if recurrent { "linear_attention" } else { "full_attention" };
        add("layer_types", layers().map(word).collect());
        if !family.rotates {
            add("mla_use_nope", json!(true));
        }
        let Some(kda) = &self.kda else { return };
        // Counted from 1, as in Kimi-Linear's files.
        let numbers = |wanted: bool| -> Vec<usize> {
            layers()
                .zip(1..)
                .filter(|(recurrent, _)| *recurrent == wanted)
                .map(|(_, number)| number)
                .collect()
        };
        add(
            "linear_attn_config",
            json!({
                "full_attn_layers": numbers(false),
                "kda_layers": numbers(true),
                "num_heads": kda.heads,
                "head_dim": kda.width,
                "short_conv_kernel_size": kda.taps,
            }),
        );
        add("head_dim", json!(kda.width));
        add("short_conv_kernel_size", json!(kda.taps));
        add("no_kda_lora", json!(kda.rank.is_none()));
        add("kda_safe_gate", json!(kda.lower_bound.is_some()));
        if let Some(bound) = kda.lower_bound {
            add("kda_lower_bound", json!(bound));
        }
    }

    fn rope_scaling(&self) -> Value {
        let mut scaling = match &self.rope.scaling {
            RopeScaling::None => Value::Null,
            RopeScaling::Linear { factor } => {
                // Both spellings, for older and newer readers.
                json!({"rope_type": "linear", "type": "linear", "factor": factor})
            }
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow, magnitude, .. } => {
                let growth = self.score_growth();
                json!({
                    "rope_type": "yarn",
                    "type": "yarn",
                    "factor": factor,
                    "original_max_position_embeddings": original,
                    "beta_fast": beta_fast,
                    "beta_slow": beta_slow,
                    "mscale": mscale_of(*factor, growth * magnitude),
                    "mscale_all_dim": mscale_of(*factor, growth),
                })
            }
            RopeScaling::LongRope { original, short, long, magnitude } => {
                let implied = longrope_magnitude(self.context_length as f64 / *original as f64, *original);
                json!({
                    "rope_type": "longrope",
                    "type": "longrope",
                    "original_max_position_embeddings": original,
                    "short_factor": short,
                    "long_factor": long,
                    "attention_factor": (!close(*magnitude, implied)).then_some(magnitude),
                })
            }
        };
        if let (Some(temperature), Some(scaling)) = (self.temperature_of_rope(), scaling.as_object_mut()) {
            scaling.insert("llama_4_scaling_beta".into(), json!(temperature.scale));
        }
        scaling
    }

    /// The attention temperature, if its length is YaRN's original context. It is then written
    /// among the rope's keys.
    fn temperature_of_rope(&self) -> Option<Temperature> {
        let RopeScaling::Yarn { original, .. } = &self.rope.scaling else { return None };
        self.attention.temperature.filter(|temperature| temperature.length == *original)
    }
}
