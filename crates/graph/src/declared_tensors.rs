//! The tensors that a config.json promises, for reading a contract where there is no file with weights.

use crate::contract::{Field, JsonKeys, Keys, Tensors};
use base::TensorType;

/// Shapes of tensors as a config.json promises them: a contract read with them says what the configuration says.
pub struct ConfigTensors<'a> {
    keys: &'a JsonKeys<'a>,
    /// `text_config.` where the model also sees.
    nested: &'static str,
}

impl<'a> ConfigTensors<'a> {
    /// The tensors that `keys` promise.
    pub fn new(keys: &'a JsonKeys<'a>) -> ConfigTensors<'a> {
        let nested = if keys.field("text_config") == Some(Field::Object) { "text_config." } else { "" };
        ConfigTensors { keys, nested }
    }

    /// The format in which the configuration says that matrices are stored: FP8 where it is quantised so, else `torch_dtype`
    /// (or `dtype`), else BF16, in which all models of these families were published.
    pub fn format(&self) -> TensorType {
        let text = |key: &str| match self.field(key).or_else(|| self.keys.field(key)) {
            Some(Field::Text(word)) => Some(word),
            _ => None,
        };
        if text("quantization_config.quant_method").as_deref() == Some("fp8") {
            return TensorType::F8_E4M3;
        }
        match text("torch_dtype").or_else(|| text("dtype")).as_deref() {
            Some("float32") => TensorType::F32,
            Some("float16") => TensorType::F16,
            _ => TensorType::BF16,
        }
    }

    fn field(&self, key: &str) -> Option<Field> {
        self.keys.field(&format!("{}{key}", self.nested))
    }

    fn size(&self, key: &str) -> Option<usize> {
        match self.field(key)? {
            Field::Integer(value) => usize::try_from(value).ok(),
            _ => None,
        }
    }
}

impl Tensors for ConfigTensors<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let name = if self.nested.is_empty() { name } else { name.strip_prefix("language_model.")? };
        let hidden = self.size("hidden_size")?;
        match name {
            "model.embed_tokens.weight" => return Some(vec![self.size("vocab_size")?, hidden]),
            "lm_head.weight" => {
                let tied = self.field("tie_word_embeddings") == Some(Field::Flag(true));
                return if tied { None } else { Some(vec![self.size("vocab_size")?, hidden]) };
            }
            _ => {}
        }
        let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
        if layer.parse::<usize>().ok()? >= self.size("num_hidden_layers")? {
            return None;
        }
        let heads = || self.size("num_attention_heads");
        match part {
            "self_attn.q_a_proj.weight" => {
                self.size("q_lora_rank").filter(|rank| *rank > 0).map(|rank| vec![rank, hidden])
            }
            "self_attn.kv_a_proj_with_mqa.weight" => {
                Some(vec![self.size("kv_lora_rank")?.checked_add(self.size("qk_rope_head_dim")?)?, hidden])
            }
            "self_attn.kv_b_proj.weight" => {
                let width = self.size("qk_nope_head_dim")?.checked_add(self.size("v_head_dim")?)?;
                Some(vec![heads()?.checked_mul(width)?, self.size("kv_lora_rank")?])
            }
            "mlp.gate.weight" => {
                let experts = self.size("n_routed_experts").or_else(|| self.size("num_local_experts"))?;
                Some(vec![experts, hidden])
            }
            "mlp.gate.e_score_correction_bias" => self.bias(),
            _ => None,
        }
    }

    fn f32s(&self, _name: &str) -> Option<Vec<f32>> {
        None
    }
}

impl ConfigTensors<'_> {
    /// The bias for choosing experts: there by the word of `topk_method`, and where that is missing, in the families whose
    /// router is a sigmoid.
    fn bias(&self) -> Option<Vec<usize>> {
        let experts = self.size("n_routed_experts")?;
        let by_default = matches!(
            self.field("model_type"),
            Some(Field::Text(family)) if ["deepseek_v3", "kimi_k2", "glm4_moe_lite"].contains(&family.as_str())
        );
        let has = match self.field("topk_method") {
            Some(Field::Text(method)) => method == "noaux_tc",
            _ => by_default && self.field("scoring_func").is_none_or(|f| f == Field::Text("sigmoid".into())),
        };
        has.then(|| vec![experts])
    }
}
