//! Keys of config.json that change the computation in unsupported ways. A model with one of them
//! would load and give wrong results.
use super::error::ConfigError;
use super::families::ModelFamily;
use super::reader::Reader;
use super::source::MetadataValue;

/// A key, its values that change nothing (in addition to absent and null), and the explanation of
/// the error.
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
        // DeepSeek-VL2's smallest model has the class of the others and ordinary attention.
        key: "use_mla",
        neutral: |field| *field == MetadataValue::Flag(true),
        expected: "true: models without Multi-head Latent Attention are not supported",
    },
    UnsupportedKey {
        // Hyper-connections: several residual streams (DeepSeek-V4, Hy4). One stream is the
        // ordinary residual.
        key: "hc_mult",
        neutral: |field| matches!(field, MetadataValue::Integer(0 | 1)),
        expected: "1: hyper-connections are not supported",
    },
    UnsupportedKey {
        key: "layer_types",
        neutral: all_attend_to_everything,
        expected: "a list of \"full_attention\" or \"indexed_attention\": other kinds of layers are not supported",
    },
    // 0 and null both mean no window.
    zero("sliding_window", "null: attention over a window is not supported"),
    zero("attn_logit_softcapping", "null: capped attention scores are not supported"),
    zero("final_logit_softcapping", "null: capped logits are not supported"),
    zero("logit_softcap", "null: capped logits are not supported"),
    zero("swiglu_limit", "null: clamped activations are not supported"),
    // Two names of one feature: experts that return their input (identity experts).
    zero("zero_expert_num", "0: identity experts are not supported"),
    zero("num_zero_experts", "0: identity experts are not supported"),
    zero("kv_source_layers", "null: latents shared between layers are not supported"),
];

/// `indexed_attention` is accepted: without indexers the session runs it as dense attention and
/// reports that.
fn all_attend_to_everything(types: &MetadataValue) -> bool {
    let known = |kind: &MetadataValue| matches!(kind, MetadataValue::Text(kind) if kind == "full_attention" || kind == "indexed_attention");
    matches!(types, MetadataValue::List(types) if types.iter().all(known))
}

/// Refuses a config with an unsupported key.
pub(super) fn check(text: &Reader<'_>, family: &ModelFamily) -> Result<(), ConfigError> {
    for refused in &REFUSED {
        // `hf_kda` has read the kinds of a hybrid's layers.
        if refused.key == "layer_types" && family.kda.is_some() {
            continue;
        }
        // Only values that change the result are refused: published files state many of these keys
        // with their neutral value (`mlp_bias: false`, `use_mla: true`).
        if let Some(value) = text.field(refused.key).filter(|value| !(refused.neutral)(value)) {
            return Err(text.not_computed(refused.key, value, refused.expected));
        }
    }
    Ok(())
}
