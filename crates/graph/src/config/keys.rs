//! Hyper-parameters with one key each: one row serves the readers and writers of both kinds of
//! file.

use super::limits;
use super::model::{ModelConfig, MoeShape};
use std::ops::RangeInclusive;

/// A hyper-parameter.
pub(super) struct ConfigKey<T: 'static> {
    /// Its key in GGUF files, after the architecture.
    pub(super) gguf: &'static str,
    /// Its key in config.json. Families may have another name for it ([`super::families`]).
    pub(super) json: &'static str,
    pub(super) range: RangeInclusive<T>,
    /// Explanation for the error of a missing key, after "it is".
    pub(super) meaning: &'static str,
    /// The value to write in both kinds of file; `None` to omit the key, or if the writers add it
    /// themselves because the kinds differ.
    pub(super) value: fn(&ModelConfig) -> Option<T>,
}

macro_rules! config_keys {
    ($list:ident of $number:ty: $($name:ident($gguf:literal, $json:literal, $range:expr, $meaning:literal, $value:expr);)*) => {
        $(pub(super) static $name: ConfigKey<$number> =
            ConfigKey { gguf: $gguf, json: $json, range: $range, meaning: $meaning, value: $value };)*
        pub(super) static $list: &[&ConfigKey<$number>] = &[$(&$name),*];
    };
}

config_keys! { SIZES of usize:
    VOCABULARY("vocab_size", "vocab_size", limits::VOCABULARY, "the number of tokens in the vocabulary",
        |c| Some(c.vocab_size));
    LAYERS("block_count", "num_hidden_layers", limits::LAYERS, "the number of layers", |_| None);
    MTP_LAYERS("nextn_predict_layers", "num_nextn_predict_layers", 0..=*limits::LAYERS.end(),
        "the number of MTP layers", |_| None);
    CONTEXT("context_length", "max_position_embeddings", limits::CONTEXT, "the maximum context length",
        |c| Some(c.context_length));
    HIDDEN("embedding_length", "hidden_size", limits::HIDDEN, "the width of the residual stream",
        |c| Some(c.hidden_size));
    HEADS("attention.head_count", "num_attention_heads", limits::HEADS, "the number of attention heads",
        |c| Some(c.attention.heads));
    Q_RANK("attention.q_lora_rank", "q_lora_rank", 0..=*limits::RANK.end(), "the rank of the queries' projection",
        |_| None);
    KV_RANK("attention.kv_lora_rank", "kv_lora_rank", limits::RANK, "the width of the latent",
        |c| Some(c.attention.kv_lora_rank));
    ROPE_WIDTH("rope.dimension_count", "qk_rope_head_dim", limits::SHARED_KEY,
        "the width of the part of a head whose key all heads share", |c| Some(c.attention.rope));
    INDEX_TOPK("attention.indexer.top_k", "index_topk", limits::CONTEXT,
        "the number of tokens that a row attends to",
        |c| c.index_topk);
    INDEX_HEADS("attention.indexer.head_count", "index_n_heads", limits::HEADS,
        "the number of heads of the indexer",
        |_| None);
    INDEX_WIDTH("attention.indexer.key_length", "index_head_dim", limits::HEAD_WIDTH,
        "the width of the indexer's heads", |_| None);
    NORM_RANK("gated_norm_rank", "gated_norm_rank", limits::RANK, "the rank of the gates of norms", |c| c.norm_rank);
    EXPERTS("expert_count", "n_routed_experts", 0..=limits::EXPERTS, "the number of experts per layer",
        |c| moe(c, |moe| moe.experts));
    EXPERTS_USED("expert_used_count", "num_experts_per_tok", 1..=limits::EXPERTS,
        "the number of experts per row",
        |c| moe(c, |moe| moe.num_experts_per_tok));
    EXPERT_WIDTH("expert_feed_forward_length", "moe_intermediate_size", 1..=limits::INTERMEDIATE,
        "the width of a routed expert", |c| moe(c, |moe| moe.intermediate));
    SHARED_EXPERTS("expert_shared_count", "n_shared_experts", 0..=limits::SHARED_EXPERTS,
        "the number of shared experts",
        |c| moe(c, |moe| moe.shared_intermediate / moe.intermediate.max(1)));
    GROUPS("expert_group_count", "n_group", 1..=limits::EXPERTS, "the number of expert groups", |_| None);
    GROUPS_USED("expert_group_used_count", "topk_group", 1..=limits::EXPERTS,
        "the number of expert groups selected per row", |_| None);
}

config_keys! { REALS of f64:
    RMS_EPS("attention.layer_norm_rms_epsilon", "rms_norm_eps", limits::RMS_EPS, "the epsilon of every RMSNorm",
        |c| Some(c.rms_eps));
    ROPE_BASE("rope.freq_base", "rope_theta", limits::ROPE_BASE,
        "the base of the rotary embedding's frequencies", |c| Some(c.rope.base));
    EXPERT_SCALE("expert_weights_scale", "routed_scaling_factor", limits::ROUTER_SCALE,
        "the factor on expert weights", |c| c.moe.as_ref().map(|moe| moe.router.scale));
}

fn moe(config: &ModelConfig, of: fn(&MoeShape) -> usize) -> Option<usize> {
    config.moe.as_ref().map(of)
}
