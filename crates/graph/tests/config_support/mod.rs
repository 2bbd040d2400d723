//! Model files in memory: keys, and the names and shapes of tensors.
#![allow(dead_code, unreachable_pub, reason = "each test program has its own copy and uses its part")]

use latent_graph::config::{ConfigError, ConfigTensors, JsonKeys, MetadataKeys, MetadataValue, ModelConfig};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Tensors as shapes only. Small ones may have values.
#[derive(Clone, Default)]
pub struct FixtureTensors {
    pub shapes: BTreeMap<String, Vec<usize>>,
    pub numbers: BTreeMap<String, Vec<f32>>,
}

impl FixtureTensors {
    pub fn put(&mut self, name: &str, shape: &[usize]) {
        self.shapes.insert(name.to_owned(), shape.to_vec());
    }

    pub fn put_numbers(&mut self, name: &str, numbers: &[f32]) {
        self.put(name, &[numbers.len()]);
        self.numbers.insert(name.to_owned(), numbers.to_vec());
    }

    pub fn remove(&mut self, name: &str) {
        assert!(self.shapes.remove(name).is_some(), "no tensor {name}");
    }
}

impl ConfigTensors for FixtureTensors {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.shapes.get(name).cloned()
    }

    fn f32s(&self, name: &str) -> Option<Vec<f32>> {
        self.numbers.get(name).cloned()
    }
}

/// A model folder: its config.json and tensors.
#[derive(Clone)]
pub struct HfFixture {
    pub config: Map<String, Value>,
    pub tensors: FixtureTensors,
}

impl HfFixture {
    /// A folder whose tensors have the shapes that its config.json, or the text part of it,
    /// describes.
    pub fn new(config: Value) -> HfFixture {
        let Value::Object(config) = config else { panic!("a config is an object") };
        let mut folder = HfFixture { config, tensors: FixtureTensors::default() };
        let (text, prefix) = match (folder.config.get("text_config"), folder.config.get("language_config")) {
            (Some(Value::Object(text)), _) => (text.clone(), "language_model."),
            (_, Some(Value::Object(text))) => (text.clone(), "language."),
            _ => (folder.config.clone(), ""),
        };
        let size = |key: &str| text.get(key).and_then(Value::as_u64).unwrap_or(0) as usize;
        let tensors = &mut folder.tensors;
        let (hidden, heads) = (size("hidden_size"), size("num_attention_heads"));
        tensors.put(&format!("{prefix}model.embed_tokens.weight"), &[size("vocab_size"), hidden]);
        if text.get("tie_word_embeddings").and_then(Value::as_bool) != Some(true) {
            tensors.put(&format!("{prefix}lm_head.weight"), &[size("vocab_size"), hidden]);
        }
        let layer0 = format!("{prefix}model.layers.0.self_attn.");
        if size("q_lora_rank") > 0 {
            tensors.put(&format!("{layer0}q_a_proj.weight"), &[size("q_lora_rank"), hidden]);
        }
        let latent = size("kv_lora_rank") + size("qk_rope_head_dim");
        tensors.put(&format!("{layer0}kv_a_proj_with_mqa.weight"), &[latent, hidden]);
        let expanded = heads * (size("qk_nope_head_dim") + size("v_head_dim"));
        tensors.put(&format!("{layer0}kv_b_proj.weight"), &[expanded, size("kv_lora_rank")]);
        let experts = size("n_routed_experts");
        let bias = text.get("topk_method").and_then(Value::as_str) == Some("noaux_tc");
        for layer in size("first_k_dense_replace")..size("num_hidden_layers") {
            if experts > 0 {
                let gate = format!("{prefix}model.layers.{layer}.mlp.gate.");
                tensors.put(&format!("{gate}weight"), &[experts, hidden]);
                if bias {
                    tensors.put(&format!("{gate}e_score_correction_bias"), &[experts]);
                }
            }
        }
        folder
    }

    pub fn set(mut self, key: &str, value: Value) -> HfFixture {
        self.config.insert(key.to_owned(), value);
        self
    }

    pub fn without(mut self, key: &str) -> HfFixture {
        assert!(self.config.shift_remove(key).is_some(), "no key {key}");
        self
    }

    pub fn read(&self) -> Result<ModelConfig, ConfigError> {
        ModelConfig::from_config(&JsonKeys { file: "model/config.json", object: &self.config }, &self.tensors)
    }

    pub fn config(&self) -> ModelConfig {
        self.read().unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn error(&self) -> String {
        self.read().expect_err("must be refused").to_string()
    }
}

/// A GGUF file.
#[derive(Clone)]
pub struct GgufFixture {
    pub keys: BTreeMap<String, MetadataValue>,
    pub tensors: FixtureTensors,
}

impl MetadataKeys for GgufFixture {
    fn file(&self) -> String {
        "model.gguf".to_owned()
    }

    fn field(&self, key: &str) -> Option<MetadataValue> {
        self.keys.get(key).cloned()
    }
}

/// The model sizes from which a converter would write a GGUF file.
#[derive(Clone, Copy)]
pub struct GgufSizes {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub q_lora: usize,
    pub kv_lora: usize,
    pub nope: usize,
    pub rope: usize,
    pub v: usize,
    pub vocab: usize,
    pub experts: usize,
    pub bias: bool,
    pub dense_lead: usize,
    pub legacy: bool,
}

/// DeepSeek-V3 (without its multi-token-prediction layer, as llama.cpp's converter writes it).
pub const V3: GgufSizes = GgufSizes {
    layers: 61,
    hidden: 7168,
    heads: 128,
    q_lora: 1536,
    kv_lora: 512,
    nope: 128,
    rope: 64,
    v: 128,
    vocab: 129_280,
    experts: 256,
    bias: true,
    dense_lead: 3,
    legacy: false,
};

/// Four layers of a small DeepSeek-V3 whose queries are projected directly.
pub const SMALL: GgufSizes = GgufSizes {
    layers: 4,
    hidden: 64,
    heads: 4,
    q_lora: 0,
    kv_lora: 32,
    nope: 16,
    rope: 8,
    v: 24,
    vocab: 100,
    experts: 16,
    bias: true,
    dense_lead: 1,
    legacy: false,
};

impl GgufFixture {
    /// A deepseek2 file with the keys that converters always write. Tests add YaRN and router keys.
    pub fn deepseek2(s: GgufSizes) -> GgufFixture {
        let mut file = GgufFixture::new("deepseek2", s);
        let a = "deepseek2.";
        let mut put = |key: &str, value: usize| {
            file.keys.insert(format!("{a}{key}"), MetadataValue::Integer(value as i128));
        };
        if !s.legacy {
            put("attention.key_length", s.kv_lora + s.rope);
            put("attention.value_length", s.kv_lora);
            put("attention.key_length_mla", s.nope + s.rope);
            put("attention.value_length_mla", s.v);
        }
        put("leading_dense_block_count", if s.experts > 0 { s.dense_lead } else { s.layers });
        put("expert_feed_forward_length", 2048);
        put("expert_shared_count", usize::from(s.experts > 0));
        if s.experts > 0 {
            put("expert_count", s.experts);
            put("expert_used_count", 8.min(s.experts));
        }
        let t = &mut file.tensors;
        if !s.legacy {
            t.remove("blk.0.attn_kv_b.weight");
            t.put("blk.0.attn_k_b.weight", &[s.heads, s.kv_lora, s.nope]);
            t.put("blk.0.attn_v_b.weight", &[s.heads, s.v, s.kv_lora]);
        }
        for layer in s.dense_lead..s.layers {
            if s.experts > 0 {
                t.put(&format!("blk.{layer}.ffn_gate_inp.weight"), &[s.experts, s.hidden]);
                t.put(&format!("blk.{layer}.ffn_gate_shexp.weight"), &[2048, s.hidden]);
                if s.bias {
                    t.put(&format!("blk.{layer}.exp_probs_b.bias"), &[s.experts]);
                }
            }
        }
        file
    }

    /// The keys and tensors that all three architectures share, with the combined `attn_kv_b`.
    pub fn new(architecture: &str, s: GgufSizes) -> GgufFixture {
        let mut file = GgufFixture { keys: BTreeMap::new(), tensors: FixtureTensors::default() };
        file.keys.insert("general.architecture".to_owned(), MetadataValue::Text(architecture.to_owned()));
        let numbers = [
            ("block_count", s.layers),
            ("context_length", 163_840),
            ("embedding_length", s.hidden),
            ("feed_forward_length", 18_432),
            ("attention.head_count", s.heads),
            ("attention.head_count_kv", if s.legacy { s.heads } else { 1 }),
            ("attention.key_length", s.nope + s.rope),
            ("attention.value_length", s.v),
            ("attention.kv_lora_rank", s.kv_lora),
            ("rope.dimension_count", s.rope),
        ];
        for (key, value) in numbers {
            file.keys.insert(format!("{architecture}.{key}"), MetadataValue::Integer(value as i128));
        }
        file.keys
            .insert(format!("{architecture}.attention.layer_norm_rms_epsilon"), MetadataValue::Real(1e-6));
        let t = &mut file.tensors;
        t.put("token_embd.weight", &[s.vocab, s.hidden]);
        t.put("output.weight", &[s.vocab, s.hidden]);
        if s.q_lora > 0 {
            file.keys.insert(
                format!("{architecture}.attention.q_lora_rank"),
                MetadataValue::Integer(s.q_lora as i128),
            );
            t.put("blk.0.attn_q_a.weight", &[s.q_lora, s.hidden]);
        } else {
            t.put("blk.0.attn_q.weight", &[s.heads * (s.nope + s.rope), s.hidden]);
        }
        t.put("blk.0.attn_kv_a_mqa.weight", &[s.kv_lora + s.rope, s.hidden]);
        t.put("blk.0.attn_kv_b.weight", &[s.heads * (s.nope + s.v), s.kv_lora]);
        file
    }

    fn full(&self, key: &str) -> String {
        if key.starts_with("general.") || key.starts_with("tokenizer.") {
            return key.to_owned();
        }
        match &self.keys["general.architecture"] {
            MetadataValue::Text(architecture) => format!("{architecture}.{key}"),
            _ => key.to_owned(),
        }
    }

    pub fn set(mut self, key: &str, value: MetadataValue) -> GgufFixture {
        self.keys.insert(self.full(key), value);
        self
    }

    pub fn int(self, key: &str, value: i128) -> GgufFixture {
        self.set(key, MetadataValue::Integer(value))
    }

    pub fn real(self, key: &str, value: f64) -> GgufFixture {
        self.set(key, MetadataValue::Real(value))
    }

    pub fn text(self, key: &str, value: &str) -> GgufFixture {
        self.set(key, MetadataValue::Text(value.to_owned()))
    }

    pub fn without(mut self, key: &str) -> GgufFixture {
        let key = self.full(key);
        assert!(self.keys.remove(&key).is_some(), "no key {key}");
        self
    }

    pub fn without_tensor(mut self, name: &str) -> GgufFixture {
        self.tensors.remove(name);
        self
    }

    pub fn tensor(mut self, name: &str, shape: &[usize]) -> GgufFixture {
        self.tensors.put(name, shape);
        self
    }

    /// The keys that converters write for YaRN.
    pub fn yarn(self, factor: f64, original: usize, log_multiplier: Option<f64>) -> GgufFixture {
        let file = self.text("rope.scaling.type", "yarn").real("rope.scaling.factor", factor);
        let file = file.int("rope.scaling.original_context_length", original as i128);
        match log_multiplier {
            Some(value) => file.real("rope.scaling.yarn_log_multiplier", value),
            None => file,
        }
    }

    pub fn read(&self) -> Result<ModelConfig, ConfigError> {
        ModelConfig::from_gguf(self, &self.tensors)
    }

    pub fn config(&self) -> ModelConfig {
        self.read().unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn error(&self) -> String {
        self.read().expect_err("must be refused").to_string()
    }
}

/// config.json of DeepSeek-V3.
pub fn deepseek_v3() -> HfFixture {
    HfFixture::new(json!({
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": false,
        "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
        "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
        "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-6, "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn"},
        "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280
    }))
}

/// Asserts that an error text contains all `parts`.
#[track_caller]
pub fn names(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

/// Asserts that two numbers agree to the digits that the reference gives.
#[track_caller]
pub fn near(value: f64, golden: f64) {
    assert!((value - golden).abs() < 6e-7, "{value} is not {golden}");
}
