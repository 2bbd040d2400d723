//! Mistral's own folders. params.json is converted to the keys of config.json, and tensor names to
//! those of DeepSeek-V3 in Transformers.
//!
//! The mapping of names is that of vLLM's and SGLang's loaders of Mistral Large 3. Both forms have
//! rotary pairs interleaved in query and key rows, so weights are not changed.

use serde_json::{Map, Value, json};
use std::path::Path;

/// Keys of params.json with another name in config.json.
const KEYS: [(&str, &str); 9] = [
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
    ("n_kv_heads", "num_key_value_heads"),
    ("hidden_dim", "intermediate_size"),
    ("norm_eps", "rms_norm_eps"),
    ("tied_embeddings", "tie_word_embeddings"),
    ("activation", "hidden_act"),
    ("max_seq_len", "max_position_embeddings"),
];

/// Keys of `moe`, their names in config.json, and defaults. config.json needs a value where
/// params.json may omit one.
const MOE_KEYS: [(&str, &str, Option<u64>); 9] = [
    ("num_experts", "n_routed_experts", None),
    ("num_experts_per_tok", "num_experts_per_tok", None),
    ("expert_hidden_dim", "moe_intermediate_size", None),
    ("first_k_dense_replace", "first_k_dense_replace", Some(0)),
    ("num_shared_experts", "n_shared_experts", Some(1)),
    ("routed_scale", "routed_scaling_factor", Some(1)),
    ("num_expert_groups", "n_group", Some(1)),
    ("num_expert_groups_per_tok", "topk_group", Some(1)),
    ("route_every_n", "moe_layer_freq", Some(1)),
];

/// Keys of `yarn` and their names in config.json.
const YARN_KEYS: [(&str, &str); 3] =
    [("beta", "beta_fast"), ("alpha", "beta_slow"), ("apply_scale", "apply_yarn_scaling")];

/// Keys without effect on the computation, or of parts that are not run.
// `model_type` and `architectures` of the file are replaced by those that `config` chooses.
const IGNORED: [&str; 6] =
    ["vision_encoder", "multimodal", "mm_tokens", "ragged_attention", "model_type", "architectures"];

/// Context length of models whose params.json states none (vLLM's default).
const USUAL_CONTEXT: u64 = 128_000;

/// Converts params.json to the keys of config.json.
pub(crate) fn config(params: Map<String, Value>) -> Map<String, Value> {
    let latent = params.get("kv_lora_rank").is_some_and(|rank| !rank.is_null());
    let mut config = Map::new();
    let mut keep = |key: &str, value: Value| {
        config.insert(key.to_owned(), value);
    };
    for (key, value) in params {
        match (key.as_str(), value) {
            ("moe", Value::Object(moe)) => experts(moe, &mut keep),
            ("yarn", Value::Object(yarn)) => keep("rope_scaling", scaling(yarn)),
            ("quantization", Value::Object(quantization)) if !quantization.is_empty() => {
                keep("quantization_config", quantized(&quantization));
            }
            ("quantization", Value::Null | Value::Object(_)) => {}
            (key, value) => match KEYS.iter().find(|(theirs, _)| *theirs == key) {
                Some((_, ours)) => keep(ours, value),
                None if IGNORED.contains(&key) => {}
                None => keep(key, value),
            },
        }
    }
    // params.json has no model type. MLA with these keys is DeepSeek-V3's architecture; the others
    // get a type that is rejected by name later.
    let (family, class) = match (latent, config.contains_key("n_routed_experts")) {
        (true, _) => ("deepseek_v3", "MistralLarge3ForCausalLM"),
        (false, true) => ("mixtral", "MixtralForCausalLM"),
        (false, false) => ("mistral", "MistralForCausalLM"),
    };
    config.insert("model_type".into(), family.into());
    config.insert("architectures".into(), json!([class]));
    // Keys that readers of config.json require.
    for (key, usual) in [
        ("max_position_embeddings", json!(USUAL_CONTEXT)),
        ("hidden_act", json!("silu")),
        ("tie_word_embeddings", json!(false)),
    ] {
        if config.get(key).is_none_or(Value::is_null) {
            config.insert(key.into(), usual);
        }
    }
    config
}

/// Converts `moe`. Mistral's router takes the softmax over all experts and normalizes the weights
/// of the chosen ones.
fn experts(mut moe: Map<String, Value>, keep: &mut dyn FnMut(&str, Value)) {
    for (theirs, ours, usual) in MOE_KEYS {
        match moe.remove(theirs).filter(|value| !value.is_null()).or(usual.map(Value::from)) {
            Some(value) => keep(ours, value),
            None => continue,
        }
    }
    keep("scoring_func", "softmax".into());
    keep("topk_method", Value::Null);
    keep("norm_topk_prob", true.into());
}

/// Converts `yarn`. Like vLLM, this treats it as DeepSeek's YaRN, whose scale on attention scores
/// `apply_scale` can turn off.
fn scaling(yarn: Map<String, Value>) -> Value {
    let mut scaling = Map::new();
    scaling.insert("rope_type".into(), "yarn".into());
    // Readers of config.json scale attention scores only if this key is set.
    scaling.insert("mscale_all_dim".into(), json!(1));
    for (key, value) in yarn {
        let ours = YARN_KEYS.iter().find(|(theirs, _)| *theirs == key).map_or(key.as_str(), |(_, ours)| ours);
        scaling.insert(ours.to_owned(), value);
    }
    Value::Object(scaling)
}

/// Converts `quantization`: E4M3 with a scale per tensor, with or without scales of inputs.
fn quantized(keys: &Map<String, Value>) -> Value {
    let text = |key: &str| keys.get(key).and_then(Value::as_str).unwrap_or("");
    match text("qformat_weight") {
        "fp8_e4m3" => {
            let fixed = !matches!(text("qscheme_act"), "NO_SCALES" | "DYNAMIC");
            let scheme = if fixed { "static" } else { "dynamic" };
            // Null, because without a block size each matrix has one scale.
            json!({"quant_method": "fp8", "activation_scheme": scheme, "weight_block_size": null})
        }
        // An unknown method. Opening the folder rejects it and names it.
        other => json!({"quant_method": format!("mistral {other}")}),
    }
}

/// Modules of a layer.
const MODULES: [(&str, &str); 11] = [
    ("attention_norm", "input_layernorm"),
    ("attention.wq", "self_attn.q_proj"),
    ("attention.wq_a", "self_attn.q_a_proj"),
    ("attention.q_a_norm", "self_attn.q_a_layernorm"),
    ("attention.wq_b", "self_attn.q_b_proj"),
    ("attention.wkv_a_with_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attention.kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attention.wkv_b", "self_attn.kv_b_proj"),
    ("attention.wo", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("gate", "mlp.gate"),
];

/// Matrices of a feed-forward block.
const FEED_FORWARD: [(&str, &str); 3] = [("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")];

/// Whether a file has Mistral's tensor names, by its own name: `consolidated.safetensors` or
/// `consolidated-….safetensors`.
pub(crate) fn names_tensors(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("consolidated"))
}

/// Hugging Face's name of a tensor with a name of Mistral's; `None` for other names.
pub(crate) fn plain_name(name: &str) -> Option<String> {
    match name {
        "norm.weight" => return Some("model.norm.weight".into()),
        "tok_embeddings.weight" => return Some("model.embed_tokens.weight".into()),
        _ => {}
    }
    if let Some(end) = name.strip_prefix("output.") {
        return Some(format!("lm_head.{}", ending(end)));
    }
    // Vision tensors are not run, but must have names that are recognized as such.
    if let Some(rest) = name.strip_prefix("vision_encoder.") {
        return Some(format!("vision_tower.{rest}"));
    }
    let projector = ["vision_language_adapter.", "patch_merger.", "pre_mm_projector_norm."];
    if projector.iter().any(|start| name.starts_with(start)) {
        return Some(format!("multi_modal_projector.{name}"));
    }
    let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    if layer.is_empty() || !layer.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let (module, end) = rest.rsplit_once('.')?;
    Some(format!("model.layers.{layer}.{}", member(module, end)?))
}

fn member(module: &str, end: &str) -> Option<String> {
    let end = ending(end);
    if let Some((_, ours)) = MODULES.iter().find(|(theirs, _)| *theirs == module) {
        return Some(format!("{ours}.{end}"));
    }
    // Scales of an FP8 cache: `attention.k_fake_quantizer.qscale_act`.
    if let Some(kind) =
        module.strip_prefix("attention.").and_then(|name| name.strip_suffix("_fake_quantizer"))
    {
        return Some(format!("self_attn.{kind}_scale"));
    }
    let (block, matrix) = module.rsplit_once('.')?;
    let (_, matrix) = FEED_FORWARD.iter().find(|(theirs, _)| *theirs == matrix)?;
    let block = match block {
        "feed_forward" => "mlp".to_owned(),
        "shared_experts" => "mlp.shared_experts".to_owned(),
        _ => {
            let expert = block.strip_prefix("experts.")?;
            let number = !expert.is_empty() && expert.bytes().all(|digit| digit.is_ascii_digit());
            number.then(|| format!("mlp.experts.{expert}"))?
        }
    };
    Some(format!("{block}.{matrix}.{end}"))
}

fn ending(end: &str) -> &str {
    match end {
        // `fp8.rs` finds scales by this name, which compressed-tensors uses.
        "qscale_weight" => "weight_scale",
        "qscale_act" => "input_scale",
        end => end,
    }
}
