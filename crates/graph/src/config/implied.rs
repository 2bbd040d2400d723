//! Shapes of tensors that a file's keys imply, for reading a config without its tensors.

use super::checkpoint::CheckpointShapes;
use super::families::{self, ModelFamily};
use super::source::{ConfigTensors, MetadataKeys, MetadataValue};
use crate::naming::TensorNaming;
use latent_formats::Checkpoint;

/// Shapes of the tensors that decide a config, by the keys alone: `latent check` of a bare
/// config.json, and ranks without some of the files.
///
/// MTP layers are not implied, because many files have the key and not the layer.
pub(crate) struct ImpliedShapes<'a> {
    pub(crate) keys: &'a dyn MetadataKeys,
    pub(crate) naming: TensorNaming,
}

impl ImpliedShapes<'_> {
    fn field(&self, key: &str) -> Option<MetadataValue> {
        match self.naming {
            TensorNaming::HuggingFace => {
                let nested = |object: &str| self.keys.field(&format!("{object}.{key}"));
                // The nested config of a vision-language model first: the outer object may have
                // keys of the same name.
                families::NESTED.into_iter().find_map(nested).or_else(|| self.keys.field(key))
            }
            TensorNaming::Gguf => {
                let Some(MetadataValue::Text(architecture)) = self.keys.field("general.architecture") else {
                    return None;
                };
                self.keys.field(&format!("{architecture}.{key}"))
            }
        }
    }

    /// A size. A list yields its maximum: lists per layer have 0 for layers of another kind. A
    /// missing key yields 0.
    fn size(&self, key: &str) -> usize {
        let number = |field: &MetadataValue| match field {
            MetadataValue::Integer(value) => usize::try_from(*value).unwrap_or(0),
            _ => 0,
        };
        let spelled = || self.family()?.keys.iter().find(|(ours, _)| *ours == key).map(|(_, theirs)| *theirs);
        match self.field(key).or_else(|| self.field(spelled()?)) {
            Some(MetadataValue::List(values)) => values.iter().map(number).max().unwrap_or(0),
            Some(field) => number(&field),
            None => 0,
        }
    }

    /// The family of config.json, for its names of keys and tensors.
    fn family(&self) -> Option<&'static ModelFamily> {
        match self.field("model_type").or_else(|| self.keys.field("model_type")) {
            Some(MetadataValue::Text(name)) => families::by_model_type(&name),
            _ => None,
        }
    }

    fn config(&self, name: &str) -> Option<Vec<usize>> {
        let name = &self.family().map_or_else(|| name.to_owned(), |family| family.names.plain(name));
        let hidden = self.size("hidden_size");
        if name == "model.embed_tokens.weight" {
            return Some(vec![self.size("vocab_size"), hidden]);
        }
        if name == "lm_head.weight" {
            // Readers take a missing head for a tied one, so the head is implied unless the key
            // says otherwise.
            let tied = self.field("tie_word_embeddings") == Some(MetadataValue::Flag(true));
            return (!tied).then(|| vec![self.size("vocab_size"), hidden]);
        }
        // Only tensors that readers of configs ask for are implied, with the dimensions that they
        // check.
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let layer: usize = layer.parse().ok()?;
        // Layers after the last one would be MTP layers, which are not implied.
        if layer >= self.size("num_hidden_layers") {
            return None;
        }
        let kv = self.size("kv_lora_rank");
        let heads = self.size("num_attention_heads");
        let experts = self.size("n_routed_experts");
        let full = self.field("mla_use_output_gate") == Some(MetadataValue::Flag(true));
        match rest {
            // Exactly one of the two exists, which is how readers tell low rank.
            "self_attn.f_proj.weight" | "self_attn.f_a_proj.weight" => {
                let defaults = self.family()?.kda.as_ref()?;
                let low_rank = match self.field("no_kda_lora") {
                    Some(MetadataValue::Flag(whole)) => !whole,
                    _ => defaults.low_rank,
                };
                // The same order of spellings as in `hf_kda`.
                let size = |keys: [&str; 3]| {
                    keys.into_iter().map(|key| self.size(key)).find(|size| *size > 0).unwrap_or(0)
                };
                let width = size(["linear_attn_config.head_dim", "linear_head_dim", "head_dim"]);
                let heads = size(["linear_attn_config.num_heads", "linear_num_heads", "num_attention_heads"]);
                let outputs = if low_rank { width } else { heads.checked_mul(width)? };
                (low_rank == rest.starts_with("self_attn.f_a_")).then(|| vec![outputs, hidden])
            }
            "self_attn.q_b_proj.weight" if self.family().is_some_and(|family| family.query_gate) => {
                let head =
                    self.size("qk_nope_head_dim") + self.size("qk_rope_head_dim") + self.size("v_head_dim");
                Some(vec![heads.checked_mul(head)?, self.size("q_lora_rank").checked_mul(2)?])
            }
            "input_layernorm.W_down.weight" => {
                let default = self.family()?.norm_rank?;
                let rank = self.size("gated_norm_rank");
                Some(vec![if rank > 0 { rank } else { default }, hidden])
            }
            // Kimi-K3's key: a gate per element. Otherwise the family's, per head.
            "self_attn.g_proj.weight" if full => {
                Some(vec![heads.checked_mul(self.size("v_head_dim"))?, hidden])
            }
            "self_attn.g_proj.weight" => self.family()?.gate.map(|_| vec![heads, hidden]),
            "self_attn.q_a_proj.weight" => {
                Some(vec![self.size("q_lora_rank"), hidden]).filter(|shape| shape[0] > 0)
            }
            "self_attn.kv_a_proj_with_mqa.weight" => Some(vec![kv + self.size("qk_rope_head_dim"), hidden]),
            "self_attn.kv_b_proj.weight" => {
                let expanded = self.size("qk_nope_head_dim").checked_add(self.size("v_head_dim"))?;
                Some(vec![heads.checked_mul(expanded)?, kv])
            }
            "mlp.gate.weight" if experts > 0 => Some(vec![experts, hidden]),
            "mlp.gate.e_score_correction_bias" if experts > 0 && self.biased() => Some(vec![experts]),
            _ => None,
        }
    }

    /// Whether routers have a bias, by `topk_method` or the family's default. No bias is implied
    /// for families whose stored tensors decide.
    fn biased(&self) -> bool {
        let family = match self.field("model_type") {
            Some(MetadataValue::Text(name)) => families::by_model_type(&name),
            _ => None,
        };
        let router = family.map(|family| &family.router);
        let implied =
            router.map_or(Some("noaux_tc"), |router| router.as_ref().and_then(|router| router.method));
        match (self.field("topk_method"), self.field("scoring_func")) {
            (Some(MetadataValue::Text(method)), _) => implied.is_some() && method == "noaux_tc",
            (_, Some(MetadataValue::Text(scores))) => implied.is_some() && scores == "sigmoid",
            _ => implied == Some("noaux_tc"),
        }
    }

    fn gguf(&self, name: &str) -> Option<Vec<usize>> {
        let hidden = self.size("embedding_length");
        // A GGUF file need not have `vocab_size`, but has the list of tokens.
        let vocab = match self.keys.field("tokenizer.ggml.tokens") {
            Some(MetadataValue::Count(count)) => count,
            Some(MetadataValue::List(tokens)) => tokens.len(),
            _ => self.size("vocab_size").max(1),
        };
        if name == "token_embd.weight" || name == "output.weight" {
            return Some(vec![vocab, hidden]);
        }
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let layer: usize = layer.parse().ok()?;
        let experts = self.size("expert_count");
        let sparse = experts > 0 && layer >= self.size("leading_dense_block_count");
        let (heads, kv) = (self.size("attention.head_count"), self.size("attention.kv_lora_rank"));
        let (key, value) = (self.size("attention.key_length_mla"), self.size("attention.value_length_mla"));
        let rope = self.size("rope.dimension_count");
        if layer >= self.size("block_count") {
            return None;
        }
        // The converter marks recurrent layers by 0 key/value heads.
        let recurrent = match self.field("attention.head_count_kv") {
            Some(MetadataValue::List(heads)) => heads.get(layer) == Some(&MetadataValue::Integer(0)),
            _ => false,
        };
        if recurrent {
            return match rest {
                "ssm_a" => Some(vec![heads, 1]),
                // Kimi-Linear has low-rank projections and no bound; Ling-3.0 sets `safe_gate` and
                // has whole ones.
                "ssm_f_b.weight" if self.field("kda.safe_gate") != Some(MetadataValue::Flag(true)) => {
                    let width = self.size("kda.head_dim");
                    Some(vec![heads.checked_mul(width)?, width])
                }
                _ => self.gguf_feed_forward(rest, sparse, (experts, hidden)),
            };
        }
        match rest {
            "attn_q_a.weight" => Some(vec![self.size("attention.q_lora_rank"), hidden]).filter(|s| s[0] > 0),
            "attn_kv_a_mqa.weight" => Some(vec![kv + rope, hidden]),
            "attn_norm_gate_a.weight" if self.size("gated_norm_rank") > 0 => {
                Some(vec![self.size("gated_norm_rank"), hidden])
            }
            "attn_gate.weight" if self.size("gated_norm_rank") > 0 => {
                Some(vec![heads.checked_mul(value)?, self.size("attention.q_lora_rank")])
            }
            "attn_k_b.weight" if key > 0 => Some(vec![heads, kv, key.saturating_sub(rope)]),
            "attn_v_b.weight" if key > 0 => Some(vec![heads, value, kv]),
            "attn_kv_b.weight" if key == 0 => {
                let nope = self.size("attention.key_length").saturating_sub(rope);
                // Without the key, all value heads together are as wide as the residual stream
                // (MiniCPM3).
                let value = match self.size("attention.value_length") {
                    0 => hidden / heads.max(1),
                    value => value,
                };
                Some(vec![heads.checked_mul(nope + value)?, kv])
            }
            _ => self.gguf_feed_forward(rest, sparse, (experts, hidden)),
        }
    }

    fn gguf_feed_forward(
        &self,
        rest: &str,
        sparse: bool,
        (experts, hidden): (usize, usize),
    ) -> Option<Vec<usize>> {
        match rest {
            "ffn_gate_inp.weight" if sparse => Some(vec![experts, hidden]),
            "ffn_gate_shexp.weight" if sparse && self.size("expert_shared_count") > 0 => {
                Some(vec![self.size("expert_feed_forward_length"), hidden])
            }
            // Gating function 2 is sigmoid; only such routers have a bias.
            "exp_probs_b.bias" if sparse && self.size("expert_gating_func") == 2 => Some(vec![experts]),
            _ => None,
        }
    }
}

impl ConfigTensors for ImpliedShapes<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match self.naming {
            TensorNaming::Gguf => self.gguf(name),
            TensorNaming::HuggingFace => self.config(name),
        }
    }

    fn f32s(&self, name: &str) -> Option<Vec<f32>> {
        self.shape(name).map(|shape| vec![1.0; shape.iter().product()])
    }
}

/// Tensor shapes on a rank that may lack files: those of its files, otherwise those that the keys
/// imply.
pub(super) struct RankShapes<'a> {
    here: CheckpointShapes<'a>,
    implied: ImpliedShapes<'a>,
}

impl<'a> RankShapes<'a> {
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        keys: &'a dyn MetadataKeys,
        naming: TensorNaming,
    ) -> RankShapes<'a> {
        RankShapes { here: CheckpointShapes(checkpoint), implied: ImpliedShapes { keys, naming } }
    }
}

impl ConfigTensors for RankShapes<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.here.shape(name).or_else(|| self.implied.shape(name))
    }

    fn f32s(&self, name: &str) -> Option<Vec<f32>> {
        self.here.f32s(name).or_else(|| self.implied.f32s(name))
    }
}
