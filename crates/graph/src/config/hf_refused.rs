//! Keys of config.json that change what is computed in a way that no circuit has: a model with one of them would run wrongly.

use super::error::ConfigError;
use super::families::ModelFamily;
use super::reader::Reader;
use super::source::MetadataValue;

/// A key, the values (besides absent and null) that change nothing, and what other values do.
struct UnsupportedKey {
    key: &'static str,
    neutral: fn(&MetadataValue) -> bool,
    expected: &'static str,
}

const fn off(key: &'static str, expected: &'static str) -> UnsupportedKey {
    UnsupportedKey { key, neutral: |field| *field == MetadataValue::Flag(false), expected }
}

const fn zero(key: &'static str, expected: &'static str) -> UnsupportedKey {
    UnsupportedKey {
        key,
        neutral: |field| matches!(field, MetadataValue::Integer(0)) || *field == MetadataValue::Real(0.0),
        expected,
    }
}

const REFUSED: [UnsupportedKey; 13] = [
    off("mlp_bias", "false: biases in feed-forward blocks are not supported"),
    off("use_qk_norm", "false: norms of queries and keys are not supported"),
    UnsupportedKey {
        key: "use_mla",
        neutral: |field| *field == MetadataValue::Flag(true),
        expected: "true: without Multi-head Latent Attention it is another architecture",
    },
    UnsupportedKey {
        key: "hc_mult",
        neutral: |field| matches!(field, MetadataValue::Integer(0 | 1)),
        expected: "1: hyper-connections are not supported",
    },
    UnsupportedKey {
        key: "layer_types",
        neutral: all_attend_to_everything,
        expected: "a list of \"full_attention\" or \"indexed_attention\": other kinds of layers are not supported",
    },
    zero("sliding_window", "null: attention over a window is not supported"),
    zero("attn_logit_softcapping", "null: capped attention scores are not supported"),
    zero("final_logit_softcapping", "null: capped logits are not supported"),
    zero("logit_softcap", "null: capped logits are not supported"),
    zero("swiglu_limit", "null: clamped activations are not supported"),
    zero("zero_expert_num", "0: experts that pass their input on are not supported"),
    zero("num_zero_experts", "0: experts that pass their input on are not supported"),
    zero("kv_source_layers", "null: latents shared between layers are not supported"),
];

/// Sparse attention is run as attention to everything, of which a session tells.
fn all_attend_to_everything(types: &MetadataValue) -> bool {
    let known = |kind: &MetadataValue| matches!(kind, MetadataValue::Text(kind) if kind == "full_attention" || kind == "indexed_attention");
    matches!(types, MetadataValue::List(types) if types.iter().all(known))
}

/// Refuses a config with a key that no circuit follows.
pub(super) fn check(text: &Reader<'_>, family: &ModelFamily) -> Result<(), ConfigError> {
    for refused in &REFUSED {
        // the kinds of a hybrid's layers have been read
        if refused.key == "layer_types" && family.kda.is_some() {
            continue;
        }
        if let Some(value) = text.field(refused.key).filter(|value| !(refused.neutral)(value)) {
            return Err(text.not_computed(refused.key, value, refused.expected));
        }
    }
    Ok(())
}
