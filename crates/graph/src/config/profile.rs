//! Profiles of known architectures, for comparing an unknown one with them (`latent check`).

use super::{FfnActivation, Gating, families, gguf_file};

/// A known architecture of GGUF files, or family of config.json.
pub(crate) struct ArchitectureProfile {
    /// `general.architecture`, or `model_type`.
    pub(crate) name: &'static str,
    /// The circuit that runs it.
    pub(crate) circuit: &'static str,
    /// Keys of its files (for GGUF without the architecture's prefix).
    pub(crate) keys: Vec<&'static str>,
    /// Keys of config.json with words as values, and the words that its files have.
    pub(crate) words: Vec<(&'static str, &'static [&'static str])>,
}

const GGUF: [&str; 11] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "attention.kv_lora_rank",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
];
const GGUF_EXPERTS: [&str; 5] = [
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_count",
    "leading_dense_block_count",
];

const CONFIG: [&str; 12] = [
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "q_lora_rank",
];
const CONFIG_EXPERTS: [&str; 6] = [
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_shared_experts",
    "norm_topk_prob",
    "routed_scaling_factor",
];
const CONFIG_SCALES: [&str; 3] = ["scale_emb", "scale_depth", "dim_model_base"];

/// All profiles of one kind of file.
pub(crate) fn profiles(of_gguf: bool) -> Vec<ArchitectureProfile> {
    if of_gguf {
        let of = |a: &gguf_file::Architecture| {
            let experts: &[&str] = if a.deepseek { &GGUF_EXPERTS } else { &[] };
            let keys = GGUF.iter().chain(experts).copied().collect();
            ArchitectureProfile { name: a.name, circuit: a.circuit, keys, words: Vec::new() }
        };
        return gguf_file::ARCHITECTURES.iter().map(of).collect();
    }
    let of = |family: &families::ModelFamily| {
        let experts: &[&str] = if family.router.is_some() { &CONFIG_EXPERTS } else { &[] };
        let scales: &[&str] = if family.scaled { &CONFIG_SCALES } else { &[] };
        ArchitectureProfile {
            name: family.model_type,
            circuit: family.circuit,
            keys: CONFIG.iter().chain(experts).chain(scales).copied().collect(),
            words: words(family),
        }
    };
    families::FAMILIES.iter().map(of).collect()
}

fn words(family: &families::ModelFamily) -> Vec<(&'static str, &'static [&'static str])> {
    let activations: &[&str] = match family.activation {
        FfnActivation::SiluGated => &["silu", "swish"],
        FfnActivation::ReluSquared => &["relu2", "squared_relu", "relu_squared"],
    };
    let mut words = vec![("hidden_act", activations)];
    if let Some(router) = &family.router {
        let scores: &[&str] = match router.gating {
            Gating::Sigmoid => &["sigmoid"],
            _ => &["softmax"],
        };
        let methods: &[&str] = match router.method {
            None | Some("noaux_tc") => &["noaux_tc"],
            // DeepSeek's configuration class spells its default "gready".
            Some(_) => &["greedy", "gready", "group_limited_greedy"],
        };
        words.extend([("scoring_func", scores), ("topk_method", methods)]);
    }
    words
}
