//! Configs that ask for computations which the circuits do not have.

use super::refused::{SMALL, config, config_key, gguf};
use crate::config_support::{GgufFixture, HfFixture, deepseek_v3};
use serde_json::{Value, json};

#[test]
fn what_the_circuits_do_not_compute() {
    config_key("hidden_act", json!("gelu"), "silu");
    config_key("tie_word_embeddings", json!("yes"), "true or false");
    let mut folder = deepseek_v3();
    folder.tensors.remove("lm_head.weight");
    config(folder, &["tensor lm_head.weight", "missing", "tie_word_embeddings is false"]);
}

#[test]
fn keys_that_change_what_is_computed() {
    for (key, value, expected) in [
        ("mlp_bias", json!(true), "false"),
        ("use_qk_norm", json!(true), "false"),
        ("use_mla", json!(false), "Multi-head Latent Attention are not supported"),
        ("hc_mult", json!(4), "hyper-connections"),
        ("sliding_window", json!(4096), "window"),
        ("attn_logit_softcapping", json!(50.0), "capped attention scores"),
        ("final_logit_softcapping", json!(30.0), "capped logits"),
        ("logit_softcap", json!(30.0), "capped logits"),
        ("swiglu_limit", json!(10.0), "clamped"),
        ("zero_expert_num", json!(256), "identity experts are not supported"),
        ("num_zero_experts", json!(256), "identity experts are not supported"),
        ("partial_rotary_factor", json!(0.5), "64 of 192 elements"),
        ("attention_bias", json!("yes"), "true or false"),
        ("index_topk", json!(0), "from 1"),
    ] {
        let shown = if value.is_string() { "\"yes\"".to_owned() } else { value.to_string() };
        config(deepseek_v3().set(key, value), &[key, &shown, expected]);
        // A null means the same as a missing key.
        assert_eq!(deepseek_v3().set(key, Value::Null).config(), deepseek_v3().config(), "{key}");
    }
    let kinds = json!(["full_attention", "linear_attention"]);
    config(deepseek_v3().set("layer_types", kinds), &["layer_types", "linear_attention", "not supported"]);
    config(
        deepseek_v3().set("kv_source_layers", json!([0, 0])),
        &["kv_source_layers", "shared between layers"],
    );
    // Published files have these keys. With these values they change nothing.
    let same = deepseek_v3()
        .set("mlp_bias", json!(false))
        .set("use_mla", json!(true))
        .set("sliding_window", json!(0));
    assert_eq!(same.set("partial_rotary_factor", json!(1.0)).config(), deepseek_v3().config());
}

/// A config of Kimi-Linear whose layers all have latent attention, with layer 0's tensors that the
/// reader needs.
fn all_latent() -> HfFixture {
    let types = vec!["full_attention"; 61];
    deepseek_v3().set("model_type", json!("kimi_linear")).set("layer_types", json!(types))
}

#[test]
fn layers_of_linear_attention_that_contradict_the_rest_are_named() {
    let mut types = vec!["full_attention"; 61];
    types[7] = "linear_attention";
    let mixed = all_latent().set("layer_types", json!(types));
    config(mixed, &["head_dim", "the width of a head with a recurrent state"]);
    let mixed = deepseek_v3().set("layer_types", json!(types));
    config(
        mixed,
        &["layer_types", "\"linear_attention\" for layer 7", "not supported in models of this family"],
    );
    types[3] = "sliding_attention";
    let other = all_latent().set("layer_types", json!(types));
    config(other, &["layer_types", "\"sliding_attention\" for layer 3", "not supported"]);
    let none = all_latent().set("layer_types", json!(vec!["linear_attention"; 61]));
    config(none, &["layer_types", "at least one layer with latent attention"]);
    let short = all_latent().set("layer_types", json!(["full_attention"]));
    config(short, &["layer_types", "a list of 1", "a list of 61"]);
    config(all_latent().without("layer_types"), &["layer_types", "missing", "linear attention (KDA)"]);
    config(all_latent().set("layer_types", json!("full")), &["layer_types", "\"full\""]);
    let listed = |full: Value, kda: Value| {
        let lists = json!({"full_attn_layers": full, "kda_layers": kda});
        all_latent().without("layer_types").set("linear_attn_config", lists)
    };
    let all: Vec<usize> = (1..=61).collect();
    config(
        listed(json!([4, 8]), json!([1, 2, 3])),
        &["linear_attn_config.kda_layers", "a list without layer 5"],
    );
    config(
        listed(json!([4]), json!([0])),
        &["linear_attn_config.kda_layers", "is 0", "layer numbers from 1 to 61"],
    );
    config(listed(json!([4]), json!([62])), &["linear_attn_config.kda_layers", "is 62"]);
    config(
        listed(json!([4]), json!(all)),
        &["linear_attn_config.full_attn_layers", "is 4", "each in one list"],
    );
    config(
        listed(json!("4"), json!(all)),
        &["linear_attn_config.full_attn_layers", "a list of layer numbers"],
    );
    let groups = all_latent().without("layer_types").set("layer_group_size", json!(0));
    config(groups, &["layer_group_size", "from 1"]);
}

#[test]
fn missing_features_of_known_architectures_are_named() {
    for (name, lacks) in [("hy_v4", "hyper-connections"), ("kimi_k3", "attention residuals")] {
        let other = deepseek_v3().set("model_type", json!(name)).set("architectures", json!([]));
        config(other, &[name, "not supported: it needs", lacks, "supported: "]);
    }
    gguf(
        GgufFixture::new("kimi-k3", SMALL),
        &["\"kimi-k3\" is not supported: it needs linear attention (KDA)"],
    );
}

#[test]
fn a_family_that_never_rotates() {
    let rotated = all_latent().set("mla_use_nope", json!(false));
    config(rotated, &["mla_use_nope", "is false", "never rotates"]);
    let odd = deepseek_v3().set("mla_use_nope", json!(true));
    assert_eq!(odd.config().rope.dims, 0);
}
