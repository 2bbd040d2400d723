//! Errors of the whole model: vocabulary, hidden size, layers, and values of the wrong type.

use super::refused::{config, config_key, gguf, small};
use crate::config_support::{GgufFixture, V3, deepseek_v3};
use latent_graph::config::MetadataValue;
use serde_json::json;

#[test]
fn a_vocabulary_that_differs_from_the_embedding() {
    gguf(
        small().int("vocab_size", 101),
        &["deepseek2.vocab_size", "101 tokens", "100 tokens", "token_embd.weight"],
    );
    let file = small().set("tokenizer.ggml.tokens", MetadataValue::Count(99));
    gguf(file, &["key tokenizer.ggml.tokens", "99 tokens", "100 tokens"]);
    assert!(
        small().set("tokenizer.ggml.tokens", MetadataValue::Count(100)).int("vocab_size", 100).read().is_ok()
    );
    config_key("vocab_size", json!(129_281), "129280, the rows of tensor model.embed_tokens.weight");
}

#[test]
fn a_hidden_size_that_differs_from_the_embedding() {
    gguf(small().int("embedding_length", 65), &["embedding_length", "is 65", "64, the columns"]);
    config_key("hidden_size", json!(7169), "7168, the columns");
}

#[test]
fn a_file_without_an_embedding() {
    gguf(
        small().without_tensor("token_embd.weight"),
        &["tensor token_embd.weight", "missing", "vocabulary-only file cannot run"],
    );
    let mut folder = deepseek_v3();
    folder.tensors.remove("model.embed_tokens.weight");
    config(folder, &["tensor model.embed_tokens.weight", "missing"]);
}

#[test]
fn an_embedding_that_is_not_a_matrix() {
    gguf(small().tensor("token_embd.weight", &[6400]), &["token_embd.weight", "[6400]", "two dimensions"]);
}

#[test]
fn two_to_the_32_layers() {
    gguf(small().int("block_count", 1 << 32), &["block_count", "4294967296", "from 1 to 512"]);
    config_key("num_hidden_layers", json!(4_294_967_296u64), "from 1 to 512");
    config_key("num_hidden_layers", json!(0), "from 1 to 512");
    config_key("num_hidden_layers", json!(-1), "from 1 to 512");
}

#[test]
fn values_that_are_not_integers() {
    config_key("num_hidden_layers", json!("61"), "an integer");
    config_key("num_hidden_layers", json!(61.5), "an integer");
    config(
        deepseek_v3().set("num_hidden_layers", json!(1e300)),
        &["num_hidden_layers is 1e300", "an integer"],
    );
    config_key("num_hidden_layers", json!([61]), "an integer");
    config_key("num_hidden_layers", json!(true), "an integer");
    gguf(small().text("context_length", "long"), &["context_length", "\"long\"", "an integer"]);
    gguf(small().int("context_length", i128::from(u64::MAX)), &["context_length", "18446744073709551615"]);
}

#[test]
fn numbers_that_are_not_finite() {
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
        let shown = value.to_string();
        for key in [
            "attention.layer_norm_rms_epsilon",
            "rope.freq_base",
            "expert_weights_scale",
            "rope.scaling.factor",
            "rope.scaling.attn_factor",
            "attention.temperature_scale",
        ] {
            gguf(small().real(key, value), &[&format!("key deepseek2.{key} is {shown}"), "a number from"]);
        }
        for key in [
            "rope.scaling.yarn_log_multiplier",
            "rope.scaling.yarn_beta_fast",
            "rope.scaling.yarn_beta_slow",
            "rope.scaling.yarn_ext_factor",
        ] {
            let file = small().yarn(4.0, 128, Some(0.1)).real(key, value);
            gguf(file, &[&format!("key deepseek2.{key} is {shown}"), "a number from"]);
        }
    }
    for key in ["rms_norm_eps", "rope_theta", "routed_scaling_factor"] {
        config_key(key, json!(-1.0), "a number from");
        config_key(key, json!("nan"), "a number from");
    }
}

#[test]
fn a_zero_or_missing_epsilon() {
    gguf(small().real("attention.layer_norm_rms_epsilon", 0.0), &["layer_norm_rms_epsilon", "is 0"]);
    gguf(small().without("attention.layer_norm_rms_epsilon"), &["layer_norm_rms_epsilon", "missing"]);
    config(deepseek_v3().without("rms_norm_eps"), &["rms_norm_eps", "missing"]);
}

#[test]
fn lists_of_the_wrong_length_or_whose_layers_disagree() {
    let list =
        |values: &[i128]| MetadataValue::List(values.iter().map(|v| MetadataValue::Integer(*v)).collect());
    let file = small().set("attention.head_count", list(&[4, 4, 4]));
    gguf(file, &["attention.head_count", "[4, 4, 4]", "a list of 4 integers"]);
    let file = small().set("attention.head_count", list(&[4, 4, 8, 4]));
    gguf(file, &["attention.head_count", "4 in one layer and 8 in another"]);
    let file = small().set("expert_used_count", list(&[0, 8, 8, 4]));
    gguf(file, &["expert_used_count", "8 in one layer and 4 in another"]);
}

#[test]
fn prediction_layers_that_are_not_the_last() {
    gguf(small().int("nextn_predict_layers", 4), &["nextn_predict_layers", "is 4", "less than 4"]);
    let file = small().tensor("blk.1.nextn.eh_proj.weight", &[64, 128]).int("nextn_predict_layers", 1);
    gguf(file, &["nextn_predict_layers", "block 1 has tensor nextn.eh_proj"]);
}

#[test]
fn missing_keys_of_a_gguf_are_named() {
    for key in [
        "general.architecture",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.kv_lora_rank",
        "rope.dimension_count",
        "expert_used_count",
        "expert_feed_forward_length",
    ] {
        gguf(GgufFixture::deepseek2(V3).without(key), &[key, "missing"]);
    }
}

#[test]
fn missing_keys_of_a_config_are_named() {
    for key in [
        "hidden_size",
        "intermediate_size",
        "kv_lora_rank",
        "max_position_embeddings",
        "moe_intermediate_size",
        "num_attention_heads",
        "num_experts_per_tok",
        "num_hidden_layers",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "vocab_size",
    ] {
        config(deepseek_v3().without(key), &[&format!("key {key} is missing")]);
    }
}
