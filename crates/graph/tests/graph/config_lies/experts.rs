//! Experts, their groups, routers and layers that contradict each other.

use super::refused::{config, config_key, config_key_shape, gguf, small};
use crate::config_support::deepseek_v3;
use serde_json::json;

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
fn groups_that_do_not_divide_the_experts() {
    let file = small().int("expert_group_used_count", 1);
    gguf(file.clone().int("expert_group_count", 3), &["expert_group_count", "is 3", "a divisor of 16"]);
    gguf(file.int("expert_group_count", 32), &["expert_group_count", "is 32", "a divisor of 16"]);
    config_key("n_group", json!(7), "a divisor of 256");
}

#[test]
fn zero_or_too_many_groups_used() {
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
    config(types, &["mlp_layer_types", "[\"dense\", \"sparse\"]", "a list of 61 strings"]);
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
fn contradictory_router_keys() {
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
