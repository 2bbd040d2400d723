//! Sizes of attention and of its rope part that contradict the tensors or each other.

use super::refused::{SMALL, config, config_key, config_key_shape, gguf, small};
use crate::config_support::{GgufFixture, GgufSizes, deepseek_v3};
use serde_json::{Value, json};

#[test]
fn no_heads() {
    gguf(
        small().int("attention.head_count", 0),
        &["deepseek2.attention.head_count", "is 0", "from 1 to 1024"],
    );
    config_key("num_attention_heads", json!(0), "from 1 to 1024");
}

#[test]
fn more_heads_than_the_tensors_have() {
    gguf(small().int("attention.head_count", 5), &["blk.0.attn_k_b.weight", "[4, 32, 16]", "[5, 32, 16]"]);
    config_key_shape("num_attention_heads", json!(127), "kv_b_proj.weight", "[32768, 512]");
}

#[test]
fn key_heads_that_are_neither_one_nor_all() {
    let key = "deepseek2.attention.head_count_kv";
    gguf(small().int("attention.head_count_kv", 3), &[key, "is 3", "1 (one latent for all heads) or 4"]);
}

#[test]
fn an_odd_rope_size() {
    gguf(small().int("rope.dimension_count", 7), &["rope.dimension_count", "is 7", "even"]);
    config_key("qk_rope_head_dim", json!(63), "even");
}

#[test]
fn no_rope_at_all() {
    gguf(small().int("rope.dimension_count", 0), &["blk.0.attn_kv_a_mqa.weight", "kv_lora_rank + rope"]);
    gguf(small().without("rope.dimension_count"), &["deepseek2.rope.dimension_count", "missing"]);
}

#[test]
fn a_query_head_without_room_for_its_rope_part() {
    for length in [8, 5] {
        let file = small().int("attention.key_length_mla", length);
        gguf(file, &["attention.key_length_mla", &length.to_string(), "more than 8", "rope.dimension_count"]);
    }
    let legacy = GgufFixture::deepseek2(GgufSizes { legacy: true, ..SMALL });
    gguf(legacy.int("attention.key_length", 8), &["attention.key_length is 8", "more than 8"]);
}

#[test]
fn one_mla_key_without_the_other() {
    gguf(small().without("attention.value_length_mla"), &["attention.value_length_mla", "missing"]);
    gguf(small().without("attention.key_length_mla"), &["attention.key_length_mla", "missing"]);
    let neither = small().without("attention.key_length_mla").without("attention.value_length_mla");
    gguf(neither, &["attention.key_length_mla", "missing", "split attn_k_b"]);
}

#[test]
fn a_latent_that_its_tensor_does_not_have() {
    gguf(small().int("attention.kv_lora_rank", 31), &["blk.0.attn_kv_a_mqa.weight", "[40, 64]", "[39, 64]"]);
    gguf(small().int("attention.kv_lora_rank", 0), &["kv_lora_rank", "is 0", "from 1"]);
    config_key_shape("kv_lora_rank", json!(511), "kv_a_proj_with_mqa.weight", "[576, 7168]");
}

#[test]
fn a_query_rank_that_its_tensor_does_not_have() {
    gguf(small().int("attention.q_lora_rank", 49), &["blk.0.attn_q_a.weight", "[48, 64]", "[49, 64]"]);
    gguf(
        small().int("attention.q_lora_rank", 0),
        &["q_lora_rank", "is 0", "blk.0.attn_q_a.weight", "[48, 64]"],
    );
    gguf(small().without_tensor("blk.0.attn_q_a.weight"), &["tensor blk.0.attn_q_a.weight", "missing"]);
    config_key_shape("q_lora_rank", json!(1535), "q_a_proj.weight", "[1536, 7168]");
    config(deepseek_v3().set("q_lora_rank", Value::Null), &["q_lora_rank", "missing", "q_a_proj.weight"]);
}

#[test]
fn a_value_width_that_its_tensor_does_not_have() {
    gguf(
        small().int("attention.value_length_mla", 25),
        &["blk.0.attn_v_b.weight", "[4, 24, 32]", "[4, 25, 32]"],
    );
    let legacy = GgufFixture::deepseek2(GgufSizes { legacy: true, ..SMALL });
    gguf(legacy.int("attention.value_length", 25), &["blk.0.attn_kv_b.weight", "[160, 32]", "[164, 32]"]);
    config_key_shape("v_head_dim", json!(127), "kv_b_proj.weight", "[32768, 512]");
}

#[test]
fn no_expansion_of_the_latent() {
    let file =
        GgufFixture::deepseek2(GgufSizes { legacy: true, ..SMALL }).without_tensor("blk.0.attn_kv_b.weight");
    gguf(file, &["tensor blk.0.attn_kv_b.weight", "missing"]);
    gguf(small().without_tensor("blk.0.attn_v_b.weight"), &["tensor blk.0.attn_v_b.weight", "missing"]);
}

#[test]
fn a_whole_head_that_is_not_the_sum_of_its_parts() {
    config_key("qk_head_dim", json!(576), "192: qk_nope_head_dim + qk_rope_head_dim");
}

#[test]
fn an_unknown_gate() {
    let v3 = || deepseek_v3().set("mla_use_output_gate", json!(true));
    config(v3(), &["tensor model.layers.0.self_attn.g_proj.weight", "missing"]);
    let mut wrong = v3();
    wrong.tensors.put("model.layers.0.self_attn.g_proj.weight", &[128, 7168]);
    config(wrong, &["g_proj.weight", "[128, 7168]", "16384 outputs", "a gate for each element"]);
    let mut wrong = deepseek_v3();
    wrong.tensors.put("model.layers.0.self_attn.g_proj.weight", &[129, 7168]);
    config(wrong, &["g_proj.weight", "[129, 7168]", "128 outputs: a gate for each head, or 16384"]);
    config(deepseek_v3().set("mla_use_output_gate", json!("yes")), &["mla_use_output_gate", "true or false"]);
    let mut wrong = small();
    wrong.tensors.put("blk.0.attn_gate.weight", &[3, 64]);
    gguf(wrong, &["blk.0.attn_gate.weight", "[3, 64]", "a gate for each head, or"]);
}
