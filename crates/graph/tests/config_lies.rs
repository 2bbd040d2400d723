//! Hyper-parameters that lie: each is refused with the file, the key or tensor, the value, and what was expected.

mod config_support;

use config_support::{Folder, Gguf, Sizes, V3, deepseek_v3, names};
use latent_graph::config::Field;
use serde_json::{Value, json};

const SMALL: Sizes = Sizes { q_lora: 48, ..config_support::SMALL };

fn small() -> Gguf {
    Gguf::deepseek2(SMALL)
}

#[track_caller]
fn gguf(file: Gguf, parts: &[&str]) {
    let error = file.error();
    names(&error, &["model.gguf"]);
    names(&error, parts);
}

#[track_caller]
fn config(folder: Folder, parts: &[&str]) {
    let error = folder.error();
    names(&error, &["model/config.json"]);
    names(&error, parts);
}

#[track_caller]
fn config_key(key: &str, value: Value, expected: &str) {
    let shown = value.to_string();
    config(deepseek_v3().set(key, value), &[key, &shown, expected]);
}

#[test]
fn no_heads() {
    gguf(
        small().int("attention.head_count", 0),
        &["deepseek2.attention.head_count", "is 0", "from 1 to 1024"],
    );
    config_key("num_attention_heads", json!(0), "from 1 to 1024");
}

#[test]
fn a_head_too_many_for_the_tensors() {
    gguf(small().int("attention.head_count", 5), &["blk.0.attn_k_b.weight", "[4, 32, 16]", "[5, 32, 16]"]);
    config_key_shape("num_attention_heads", json!(127), "kv_b_proj.weight", "[32768, 512]");
}

#[track_caller]
fn config_key_shape(key: &str, value: Value, tensor: &str, shape: &str) {
    config(deepseek_v3().set(key, value), &[tensor, shape, "expected"]);
}

#[test]
fn key_heads_that_are_neither_one_nor_all() {
    let key = "deepseek2.attention.head_count_kv";
    gguf(small().int("attention.head_count_kv", 3), &[key, "is 3", "1 (one latent for all heads) or 4"]);
}

#[test]
fn more_experts_used_than_there_are() {
    gguf(
        small().int("expert_used_count", 17),
        &["expert_used_count", "17", "at most 16", "deepseek2.expert_count"],
    );
    config_key("num_experts_per_tok", json!(257), "at most 256");
}

#[test]
fn no_experts_used() {
    gguf(small().int("expert_used_count", 0), &["expert_used_count", "is 0", "from 1"]);
    config_key("num_experts_per_tok", json!(0), "from 1");
}

#[test]
fn more_experts_than_any_model_has() {
    gguf(small().int("expert_count", 1025), &["expert_count", "1025", "to 1024"]);
    config_key("n_routed_experts", json!(4_294_967_296u64), "to 1024");
}

#[test]
fn experts_that_the_router_does_not_know() {
    gguf(small().int("expert_count", 32), &["blk.1.ffn_gate_inp.weight", "[16, 64]", "[32, 64]"]);
    config_key_shape("n_routed_experts", json!(264), "mlp.gate.weight", "[256, 7168]");
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
    let legacy = Gguf::deepseek2(Sizes { legacy: true, ..SMALL });
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
fn a_vocabulary_that_differs_from_the_embedding() {
    gguf(
        small().int("vocab_size", 101),
        &["deepseek2.vocab_size", "101 tokens", "100 tokens", "token_embd.weight"],
    );
    let file = small().set("tokenizer.ggml.tokens", Field::Count(99));
    gguf(file, &["key tokenizer.ggml.tokens", "99 tokens", "100 tokens"]);
    assert!(small().set("tokenizer.ggml.tokens", Field::Count(100)).int("vocab_size", 100).read().is_ok());
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
        &["tensor token_embd.weight", "missing", "vocabulary only"],
    );
    let mut folder = deepseek_v3();
    folder.tensors.remove("model.embed_tokens.weight");
    config(folder, &["tensor model.embed_tokens.weight", "missing"]);
}

#[test]
fn an_embedding_that_is_no_matrix() {
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
fn integers_that_are_none() {
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
fn groups_that_do_not_divide_the_experts() {
    let file = small().int("expert_group_used_count", 1);
    gguf(file.clone().int("expert_group_count", 3), &["expert_group_count", "is 3", "a divisor of 16"]);
    gguf(file.int("expert_group_count", 32), &["expert_group_count", "is 32", "a divisor of 16"]);
    config_key("n_group", json!(7), "a divisor of 256");
}

#[test]
fn groups_used_that_are_none_or_too_many() {
    let file = small().int("expert_group_count", 4);
    gguf(file.clone(), &["expert_group_used_count", "missing"]);
    gguf(file.clone().int("expert_group_used_count", 0), &["expert_group_used_count", "is 0", "from 1 to 4"]);
    gguf(file.int("expert_group_used_count", 5), &["expert_group_used_count", "is 5", "from 1 to 4"]);
    config_key("topk_group", json!(9), "from 1 to 8");
}

#[test]
fn groups_too_small_for_the_choice() {
    let file = small().int("expert_group_count", 4).int("expert_group_used_count", 1);
    gguf(file, &["expert_used_count", "is 8", "at most 4", "1 groups of 4"]);
    let file = small().int("expert_group_count", 16).int("expert_group_used_count", 16);
    gguf(file, &["expert_group_count", "is 16", "at most 8", "two best"]);
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
        for key in
            ["rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"]
        {
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
fn a_base_of_zero() {
    gguf(small().real("rope.freq_base", 0.0), &["rope.freq_base", "is 0", "a number from 1.001"]);
    config_key("rope_theta", json!(0), "a number from 1.001");
    config_key("rope_theta", json!(1.0), "a number from 1.001");
}

#[test]
fn an_epsilon_of_zero_or_none() {
    gguf(small().real("attention.layer_norm_rms_epsilon", 0.0), &["layer_norm_rms_epsilon", "is 0"]);
    gguf(small().without("attention.layer_norm_rms_epsilon"), &["layer_norm_rms_epsilon", "missing"]);
    config(deepseek_v3().without("rms_norm_eps"), &["rms_norm_eps", "missing"]);
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
    let legacy = Gguf::deepseek2(Sizes { legacy: true, ..SMALL });
    gguf(legacy.int("attention.value_length", 25), &["blk.0.attn_kv_b.weight", "[160, 32]", "[164, 32]"]);
    config_key_shape("v_head_dim", json!(127), "kv_b_proj.weight", "[32768, 512]");
}

#[test]
fn no_expansion_of_the_latent() {
    let file = Gguf::deepseek2(Sizes { legacy: true, ..SMALL }).without_tensor("blk.0.attn_kv_b.weight");
    gguf(file, &["tensor blk.0.attn_kv_b.weight", "missing"]);
    gguf(small().without_tensor("blk.0.attn_v_b.weight"), &["tensor blk.0.attn_v_b.weight", "missing"]);
}

#[test]
fn a_whole_head_that_is_not_the_sum_of_its_parts() {
    config_key("qk_head_dim", json!(576), "192: qk_nope_head_dim + qk_rope_head_dim");
}

#[test]
fn dense_layers_where_routers_are_stored_and_the_reverse() {
    let key = "leading_dense_block_count";
    gguf(small().int(key, 2), &[key, "is 2", "at most 1", "blk.1.ffn_gate_inp.weight"]);
    gguf(small().int(key, 0), &["tensor blk.0.ffn_gate_inp.weight", "missing", key]);
    gguf(small().int(key, 5), &[key, "is 5", "from 0 to 4"]);
    gguf(small().without("expert_count"), &["expert_count", "missing", "blk.1.ffn_gate_inp"]);
    config_key("first_k_dense_replace", json!(62), "from 0 to 61");
    config(
        deepseek_v3().set("first_k_dense_replace", json!(2)),
        &["model.layers.2.mlp.gate.weight", "missing"],
    );
    let types = deepseek_v3().set("mlp_layer_types", json!(["dense", "sparse"]));
    config(types, &["mlp_layer_types", "[\"dense\", \"sparse\"]", "a list of 61 texts"]);
    config_key("moe_layer_freq", json!(0), "from 1");
}

#[test]
fn shared_experts_that_are_not_stored_and_the_reverse() {
    gguf(
        small().int("expert_shared_count", 0),
        &["expert_shared_count", "is 0", "blk.1.ffn_gate_shexp.weight"],
    );
    let file = small().without_tensor("blk.1.ffn_gate_shexp.weight");
    gguf(file, &["tensor blk.1.ffn_gate_shexp.weight", "missing", "expert_shared_count is 1"]);
}

#[test]
fn a_feed_forward_block_without_width() {
    gguf(small().int("feed_forward_length", 0), &["feed_forward_length", "is 0", "from 1"]);
    gguf(small().int("expert_feed_forward_length", 0), &["expert_feed_forward_length", "is 0", "from 1"]);
    config_key("intermediate_size", json!(0), "from 1");
    config_key("moe_intermediate_size", json!(0), "from 1");
}

#[test]
fn lists_of_the_wrong_length_or_whose_layers_disagree() {
    let list = |values: &[i128]| Field::List(values.iter().map(|v| Field::Integer(*v)).collect());
    let file = small().set("attention.head_count", list(&[4, 4, 4]));
    gguf(file, &["attention.head_count", "[4, 4, 4]", "a list of 4 integers"]);
    let file = small().set("attention.head_count", list(&[4, 4, 8, 4]));
    gguf(file, &["attention.head_count", "4 in one layer and 8 in another"]);
    let file = small().set("expert_used_count", list(&[0, 8, 8, 4]));
    gguf(file, &["expert_used_count", "8 in one layer and 4 in another"]);
}

#[test]
fn scalings_that_make_no_sense() {
    let text = |kind| small().text("rope.scaling.type", kind);
    gguf(text("dynamic"), &["rope.scaling.type", "\"dynamic\"", "none, linear, yarn or longrope"]);
    gguf(text("yarn"), &["rope.scaling.factor", "missing"]);
    gguf(text("longrope"), &["tensor rope_factors_long.weight", "missing"]);
    gguf(small().real("rope.scaling.factor", 0.5), &["rope.scaling.factor", "0.5", "at least 1"]);
    let betas = small().yarn(4.0, 128, None).real("rope.scaling.yarn_beta_slow", 64.0);
    gguf(betas, &["yarn_beta_fast", "is 32", "at least deepseek2.rope.scaling.yarn_beta_slow, which is 64"]);
    let scaling = |value: Value| deepseek_v3().set("rope_scaling", value);
    config(scaling(json!({"type": "ntk", "factor": 4})), &["rope_scaling.type", "\"ntk\"", "yarn"]);
    config(scaling(json!({"factor": 4})), &["rope_scaling.rope_type", "missing"]);
    config(scaling(json!({"type": "yarn", "factor": 4})), &["original_max_position_embeddings", "missing"]);
    config(scaling(json!("yarn")), &["rope_scaling", "\"yarn\"", "an object"]);
    let zero = json!({"type": "yarn", "factor": 0, "original_max_position_embeddings": 4096});
    config(scaling(zero), &["rope_scaling.factor", "is 0", "a number from 1"]);
    let short = json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]});
    config(scaling(short), &["rope_scaling.short_factor", "[1.0]", "a list of 32 numbers"]);
}

#[test]
fn long_factors_that_make_no_sense() {
    let mut file = Gguf::new("minicpm3", Sizes { experts: 0, ..SMALL });
    file.tensors.put_numbers("rope_factors_short.weight", &[1.0, 1.0, 1.0, 1.0]);
    gguf(file.clone(), &["tensor rope_factors_long.weight", "missing"]);
    file.tensors.put_numbers("rope_factors_long.weight", &[1.0, 1.0, 0.0, 1.0]);
    gguf(file.clone(), &["a factor in tensor rope_factors_long.weight is 0"]);
    file.tensors.put_numbers("rope_factors_long.weight", &[1.0; 3]);
    gguf(file.clone(), &["rope_factors_long.weight", "[3]", "[4]"]);
    file.tensors.put_numbers("rope_factors_long.weight", &[1.0; 4]);
    assert!(file.read().is_ok());
    file.tensors.numbers.clear();
    gguf(file, &["type of tensor rope_factors_short.weight", "F32"]);
}

#[test]
fn prediction_layers_that_are_not_the_last() {
    gguf(small().int("nextn_predict_layers", 4), &["nextn_predict_layers", "is 4", "less than 4"]);
    let file = small().tensor("blk.1.nextn.eh_proj.weight", &[64, 128]).int("nextn_predict_layers", 1);
    gguf(file, &["nextn_predict_layers", "block 1 has tensor nextn.eh_proj"]);
}

#[test]
fn routers_that_contradict_themselves() {
    gguf(small().int("expert_gating_func", 5), &["expert_gating_func", "is 5", "from 0 to 4"]);
    config_key("scoring_func", json!("tanh"), "softmax or sigmoid");
    config_key("topk_method", json!("random"), "greedy, group_limited_greedy or noaux_tc");
    config_key("topk_method", json!("greedy"), "e_score_correction_bias is stored");
    let mut folder = deepseek_v3();
    folder.tensors.remove("model.layers.3.mlp.gate.e_score_correction_bias");
    config(folder, &["model.layers.3.mlp.gate.e_score_correction_bias", "missing", "noaux_tc"]);
    config(deepseek_v3().without("norm_topk_prob"), &["norm_topk_prob", "missing"]);
    config(deepseek_v3().without("routed_scaling_factor"), &["routed_scaling_factor", "missing"]);
}

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
        ("use_mla", json!(false), "another architecture"),
        ("hc_mult", json!(4), "hyper-connections"),
        ("sliding_window", json!(4096), "window"),
        ("attn_logit_softcapping", json!(50.0), "capped attention scores"),
        ("final_logit_softcapping", json!(30.0), "capped logits"),
        ("logit_softcap", json!(30.0), "capped logits"),
        ("swiglu_limit", json!(10.0), "clamped"),
        ("zero_expert_num", json!(256), "experts that pass their input on"),
        ("num_zero_experts", json!(256), "experts that pass their input on"),
        ("partial_rotary_factor", json!(0.5), "64 of 192 elements"),
        ("attention_bias", json!("yes"), "true or false"),
        ("index_topk", json!(0), "from 1"),
    ] {
        let shown = if value.is_string() { "\"yes\"".to_owned() } else { value.to_string() };
        config(deepseek_v3().set(key, value), &[key, &shown, expected]);
        // a null says nothing
        assert_eq!(deepseek_v3().set(key, Value::Null).config(), deepseek_v3().config(), "{key}");
    }
    let kinds = json!(["full_attention", "linear_attention"]);
    config(deepseek_v3().set("layer_types", kinds), &["layer_types", "linear_attention", "not supported"]);
    config(
        deepseek_v3().set("kv_source_layers", json!([0, 0])),
        &["kv_source_layers", "shared between layers"],
    );
    // what published files say that changes nothing
    let same = deepseek_v3()
        .set("mlp_bias", json!(false))
        .set("use_mla", json!(true))
        .set("sliding_window", json!(0));
    assert_eq!(same.set("partial_rotary_factor", json!(1.0)).config(), deepseek_v3().config());
}

#[test]
fn temperatures_without_length() {
    let none = deepseek_v3().set("llama_4_scaling", json!({"beta": 0.1}));
    config(none, &["llama_4_scaling.original_max_position_embeddings", "missing"]);
    let zero = json!({"beta": 0.1, "original_max_position_embeddings": 0});
    config(
        deepseek_v3().set("llama_4_scaling", zero),
        &["original_max_position_embeddings", "is 0", "from 1"],
    );
    let file = small().real("attention.temperature_scale", 0.1).int("attention.temperature_length", 0);
    gguf(file, &["attention.temperature_length", "is 0", "from 1"]);
}

#[test]
fn every_key_that_a_gguf_needs_is_asked_for() {
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
        gguf(Gguf::deepseek2(V3).without(key), &[key, "missing"]);
    }
}

#[test]
fn every_key_that_a_config_needs_is_asked_for() {
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

/// Values that no key should have, and some that are merely unusual.
fn hostile() -> Vec<Field> {
    let numbers =
        [0, 1, -1, 2, 7, 512, 1024, 65_536, i128::from(u32::MAX), i128::from(u64::MAX), i128::from(i64::MIN)];
    let reals = [0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, f64::NAN, f64::INFINITY];
    let mut values: Vec<Field> = numbers.map(Field::Integer).into();
    values.extend(reals.map(Field::Real));
    values.extend([Field::Flag(true), Field::Text(String::new()), Field::Object, Field::Count(usize::MAX)]);
    values.extend([
        Field::List(Vec::new()),
        Field::List(vec![Field::Integer(4); 4]),
        Field::List(vec![Field::Object; 4]),
    ]);
    values
}

#[test]
fn no_value_of_any_key_and_no_shape_of_any_tensor_makes_the_reader_panic() {
    let start =
        small().yarn(8.0, 128, Some(0.1)).int("expert_group_count", 4).int("expert_group_used_count", 2);
    let (mut accepted, mut refused) = (0, 0);
    let mut count = |file: &Gguf| match file.read() {
        Ok(config) => {
            // whatever is accepted can be computed with
            let frequencies = config.rope.inverse_frequencies(config.context_length);
            assert_eq!(frequencies.len(), config.rope.dims / 2);
            assert!(frequencies.iter().all(|f| f.is_finite()), "{frequencies:?}");
            assert!(config.attention.softmax_scale.is_finite() && config.rope.magnitude().is_finite());
            accepted += 1;
        }
        Err(error) => {
            assert!(error.to_string().starts_with("model.gguf: "));
            refused += 1;
        }
    };
    for key in start.keys.keys() {
        for value in hostile() {
            let mut file = start.clone();
            file.keys.insert(key.clone(), value);
            count(&file);
        }
    }
    for tensor in start.tensors.shapes.keys() {
        for shape in
            [&[][..], &[0], &[0, 0], &[1], &[usize::MAX, 1], &[usize::MAX, usize::MAX], &[4, 4, 4, 4]]
        {
            count(&start.clone().tensor(tensor, shape));
        }
    }
    assert!(accepted > 20 && refused > 400, "{accepted} accepted, {refused} refused");
}

#[test]
fn no_value_of_any_key_of_a_config_makes_the_reader_panic() {
    let values = [
        json!(0),
        json!(-1),
        json!(1),
        json!(2),
        json!(1023),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e300),
        json!(1e-300),
        json!(""),
        json!("x"),
        json!(true),
        json!([]),
        json!([1, null]),
        json!({}),
        Value::Null,
    ];
    let start = deepseek_v3();
    let mut refused = 0;
    for key in start.config.keys() {
        for value in &values {
            refused += usize::from(start.clone().set(key, value.clone()).read().is_err());
        }
    }
    for key in start.config["rope_scaling"].as_object().expect("an object").keys() {
        for value in &values {
            let mut scaling = start.config["rope_scaling"].clone();
            scaling[key] = value.clone();
            refused += usize::from(start.clone().set("rope_scaling", scaling).read().is_err());
        }
    }
    assert!(refused > 300, "{refused} refused");
}

/// A config of Kimi-Linear whose layers all have latent attention, with the tensors of layer 0 that it needs.
fn all_latent() -> Folder {
    let types = vec!["full_attention"; 61];
    deepseek_v3().set("model_type", json!("kimi_linear")).set("layer_types", json!(types))
}

#[test]
fn layers_of_linear_attention_are_named() {
    let mut types = vec!["full_attention"; 61];
    types[7] = "linear_attention";
    let mixed = all_latent().set("layer_types", json!(types));
    config(mixed, &["layer_types", "\"linear_attention\" for layer 7", "linear attention (KDA)"]);
    let mixed = deepseek_v3().set("layer_types", json!(types));
    config(mixed, &["layer_types", "linear attention (KDA)"]);
    let short = all_latent().set("layer_types", json!(["full_attention"]));
    config(short, &["layer_types", "a list of 1", "a list of 61"]);
    config(all_latent().without("layer_types"), &["layer_types", "missing", "linear attention (KDA)"]);
    config(all_latent().set("layer_types", json!("full")), &["layer_types", "\"full\""]);
    let published = json!({"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3]});
    let published = all_latent().without("layer_types").set("linear_attn_config", published);
    config(published, &["layer_types", "linear attention (KDA)"]);
}

#[test]
fn what_known_architectures_lack_is_said() {
    for (name, lacks) in [("hy_v4", "hyper-connections"), ("kimi_k3", "attention residuals")] {
        let other = deepseek_v3().set("model_type", json!(name)).set("architectures", json!([]));
        config(other, &[name, "not supported: it needs", lacks, "known are"]);
    }
    gguf(
        Gguf::new("bailingmoe3", SMALL),
        &["\"bailingmoe3\" is not supported: it needs linear attention (KDA)"],
    );
}

#[test]
fn a_gate_of_no_known_kind() {
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

#[test]
fn a_family_that_never_rotates() {
    let rotated = all_latent().set("mla_use_nope", json!(false));
    config(rotated, &["mla_use_nope", "is false", "never rotates"]);
    let odd = deepseek_v3().set("mla_use_nope", json!(true));
    assert_eq!(odd.config().rope.dims, 0);
}
