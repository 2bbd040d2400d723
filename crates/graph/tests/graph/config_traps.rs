//! Mistakes that engines have made when reading these models, one test each.

use crate::config_support;
use crate::config_support::{GgufFixture, GgufSizes, HfFixture, SMALL, V3, deepseek_v3, near};
use latent_graph::config::{
    ConfigError, Gating, GroupScore, KvForm, LayerKind, MetadataValue, ModelConfig, RopePairs, RopeScaling,
    Temperature,
};
use serde_json::{Value, json};

fn small() -> GgufFixture {
    GgufFixture::deepseek2(SMALL)
}

fn with_yarn(changes: Value) -> HfFixture {
    let mut scaling = deepseek_v3().config["rope_scaling"].clone();
    for (key, value) in changes.as_object().expect("an object") {
        scaling[key] = value.clone();
    }
    deepseek_v3().set("rope_scaling", scaling)
}

// ---- YaRN and the softmax scale ----

#[test]
fn the_softmax_scale_comes_from_nope_and_rope_never_from_the_cached_width() {
    let c = GgufFixture::deepseek2(V3).config();
    assert_eq!(c.attention.softmax_scale, 1.0 / 192f64.sqrt());
    assert_eq!(c.attention.latent_width(), 576);
}

#[test]
fn scores_are_scaled_by_mscale_all_dim_not_mscale() {
    let c = with_yarn(json!({"mscale": 0.5, "mscale_all_dim": 1.0})).config();
    near(c.attention.softmax_scale, 0.135234);
    near(c.rope.magnitude(), (1.0 + 0.05 * 40f64.ln()) / (1.0 + 0.1 * 40f64.ln()));
}

#[test]
fn without_mscale_all_dim_only_cos_and_sin_are_scaled() {
    let folder = with_yarn(json!({"mscale": null, "mscale_all_dim": null}));
    let c = folder.config();
    assert_eq!(c.attention.softmax_scale, 1.0 / 192f64.sqrt());
    near(c.rope.magnitude(), 1.368888);
}

#[test]
fn old_and_new_spellings_of_the_rope_say_the_same() {
    let old = deepseek_v3();
    let mut parameters = old.config["rope_scaling"].clone();
    parameters["rope_type"] = json!("yarn");
    parameters["rope_theta"] = json!(10000.0);
    parameters.as_object_mut().expect("an object").shift_remove("type");
    let new = old.clone().without("rope_scaling").without("rope_theta").set("rope_parameters", parameters);
    assert_eq!(new.config(), old.config());
}

/// Expected θ and YaRN factor (1 means none) are those of Transformers 5.24's classes for the same
/// keys.
#[test]
fn rope_scaling_replaces_rope_parameters() {
    let yarn = json!({"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128});
    let with_base = |base: f64| {
        let mut yarn = yarn.clone();
        yarn["rope_theta"] = json!(base);
        yarn
    };
    let plain = json!({"rope_theta": 50000.0, "rope_type": "default"});
    let (none, empty, top) = (Value::Null, json!({}), Some(70000.0));
    let kind = json!({"type": "default"});
    let cases = [
        (&plain, &yarn, None, (10000.0, 8.0)),
        (&plain, &yarn, top, (70000.0, 8.0)),
        (&plain, &with_base(90000.0), top, (90000.0, 8.0)),
        (&empty, &yarn, top, (70000.0, 8.0)),
        (&none, &yarn, top, (70000.0, 8.0)),
        (&plain, &none, top, (50000.0, 1.0)),
        (&plain, &empty, top, (50000.0, 1.0)),
        (&with_base(50000.0), &empty, top, (50000.0, 8.0)),
        (&empty, &empty, top, (70000.0, 1.0)),
        (&none, &none, None, (10000.0, 1.0)),
        (&kind, &none, top, (70000.0, 1.0)),
        (&with_base(50000.0), &kind, None, (10000.0, 1.0)),
        (&with_base(50000.0), &json!({"rope_theta": 20000.0}), None, (20000.0, 1.0)),
    ];
    for (parameters, scaling, base, expected) in cases {
        let mut folder = deepseek_v3().without("rope_theta").set("rope_scaling", scaling.clone());
        folder = folder.set("rope_parameters", parameters.clone());
        if let Some(base) = base {
            folder = folder.set("rope_theta", json!(base));
        }
        let rope = folder.config().rope;
        let factor = match rope.scaling {
            RopeScaling::Yarn { factor, .. } => factor,
            _ => 1.0,
        };
        assert_eq!((rope.base, factor), expected, "{parameters} {scaling} {base:?}");
    }
    // A family without a default θ gets the default of Transformers' classes only if
    // `rope_parameters` had a θ that `rope_scaling` replaced.
    let mut glm = deepseek_v3().without("rope_theta").set("rope_scaling", yarn);
    glm.config["model_type"] = json!("glm4_moe_lite");
    assert!(glm.error().contains("rope_theta is missing"), "{}", glm.error());
    assert_eq!(glm.set("rope_parameters", plain).config().rope.base, 10000.0);
}

#[test]
fn rope_parameters_per_layer_type_are_refused() {
    let yarn = json!({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128});
    for key in ["rope_parameters", "rope_scaling"] {
        let nested = json!({"full_attention": yarn, "sliding_attention": null});
        let error = deepseek_v3().set("rope_scaling", Value::Null).set(key, nested).error();
        for part in [&format!("key {key}.full_attention is an object"), "per layer type are not supported"] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn a_gguf_with_the_log_multiplier_scales_scores_only() {
    let c = GgufFixture::deepseek2(V3).yarn(40.0, 4096, Some(0.1)).config();
    near(c.attention.softmax_scale, 0.135234);
    assert_eq!(c.rope.magnitude(), 1.0);
}

#[test]
fn a_gguf_without_the_log_multiplier_scales_cos_sin_and_scores_as_llama_cpp_does() {
    let c = GgufFixture::deepseek2(V3).yarn(40.0, 4096, None).config();
    near(c.rope.magnitude(), 1.368888);
    near(c.attention.softmax_scale, 0.135234);
    // A log multiplier of 0 means the same as a missing one.
    assert_eq!(GgufFixture::deepseek2(V3).yarn(40.0, 4096, Some(0.0)).config(), c);
}

#[test]
fn attn_factor_multiplies_cos_sin_and_its_square_the_scores() {
    let plain = small().yarn(8.0, 128, Some(0.1)).config();
    let c = small().yarn(8.0, 128, Some(0.1)).real("rope.scaling.attn_factor", 1.5).config();
    assert_eq!(c.rope.magnitude(), 1.5);
    near(c.attention.softmax_scale, plain.attention.softmax_scale * 2.25);
}

#[test]
fn yarn_betas_of_a_gguf_are_used() {
    let file = small().yarn(32.0, 4096, Some(0.1));
    let of = |c: ModelConfig| match c.rope.scaling {
        RopeScaling::Yarn { beta_fast, beta_slow, .. } => (beta_fast, beta_slow),
        other => panic!("{other:?}"),
    };
    assert_eq!(of(file.config()), (32.0, 1.0));
    assert_eq!(of(file.real("rope.scaling.yarn_beta_fast", 1.0).config()), (1.0, 1.0));
}

#[test]
fn the_kinds_of_scaling_of_a_gguf() {
    let linear = RopeScaling::Linear { factor: 4.0 };
    assert_eq!(small().config().rope.scaling, RopeScaling::None);
    let file = small().real("rope.scaling.factor", 4.0);
    assert_eq!(file.config().rope.scaling, linear, "linear is the default");
    assert_eq!(file.clone().text("rope.scaling.type", "none").config().rope.scaling, RopeScaling::None);
    assert_eq!(small().real("rope.scale_linear", 4.0).config().rope.scaling, linear, "the old key");
    assert_eq!(small().real("rope.scaling.factor", 0.0).config().rope.scaling, RopeScaling::None);
    assert_eq!(file.config().attention.softmax_scale, 1.0 / 24f64.sqrt());
}

#[test]
fn attention_temperature_and_no_mscale_for_mistral_large_3() {
    let file =
        GgufFixture::deepseek2(V3).yarn(36.0, 8192, Some(0.1)).real("attention.temperature_scale", 0.1);
    config_support::names(&file.error(), &["deepseek2.attention.temperature_length", "missing"]);
    let c = file.int("attention.temperature_length", 8192).config();
    assert_eq!(c.attention.temperature, Some(Temperature { scale: 0.1, length: 8192 }));
    near(c.attention.softmax_scale, 0.0721688);
    assert_eq!(c.rope.magnitude(), 1.0);
    assert_eq!(small().real("attention.temperature_scale", 0.0).config().attention.temperature, None);
}

#[test]
fn rope_interleave_chooses_the_pairs() {
    assert_eq!(deepseek_v3().config().rope.pairs, RopePairs::Interleaved);
    assert_eq!(deepseek_v3().set("rope_interleave", json!(false)).config().rope.pairs, RopePairs::NeoX);
    assert_eq!(small().config().rope.pairs, RopePairs::Interleaved);
}

#[test]
fn the_latent_norms_take_the_files_epsilon() {
    assert_eq!(deepseek_v3().set("rms_norm_eps", json!(1e-5)).config().rms_eps, 1e-5);
    assert_eq!(small().real("attention.layer_norm_rms_epsilon", 1e-5).config().rms_eps, 1e-5);
}

// ---- The router ----

#[test]
fn a_missing_gating_function_is_sigmoid_exactly_when_there_is_a_bias() {
    for layers in [4, 26, 27, 47, 48] {
        for (bias, gating) in [(true, Gating::Sigmoid), (false, Gating::Softmax)] {
            let sizes = GgufSizes { bias, layers, ..SMALL };
            assert_eq!(GgufFixture::deepseek2(sizes).config().moe.expect("experts").router.gating, gating);
        }
    }
}

#[test]
fn a_gating_key_overrides_the_default() {
    let kinds = [
        (0, Gating::Sigmoid),
        (1, Gating::Softmax),
        (2, Gating::Sigmoid),
        (3, Gating::SoftmaxOfSelected),
        (4, Gating::SqrtSoftplus),
    ];
    for (number, gating) in kinds {
        let c = small().int("expert_gating_func", number).config();
        assert_eq!(c.moe.expect("experts").router.gating, gating);
    }
}

#[test]
fn groups_are_scored_by_two_experts_with_a_bias_and_by_one_without() {
    for (bias, score) in [(true, GroupScore::TopTwoSum), (false, GroupScore::Max)] {
        let file = GgufFixture::deepseek2(GgufSizes { bias, ..SMALL }).int("expert_group_count", 4);
        let r = file.int("expert_group_used_count", 2).config().moe.expect("experts").router;
        assert_eq!((r.group_score, r.groups, r.groups_used), (score, 4, 2));
    }
}

#[test]
fn a_weights_scale_of_0_or_none_is_1() {
    let scale = |file: GgufFixture| file.config().moe.expect("experts").router.scale;
    assert_eq!(scale(small()), 1.0);
    assert_eq!(scale(small().real("expert_weights_scale", 0.0)), 1.0);
    assert_eq!(scale(small().real("expert_weights_scale", 2.5)), 2.5);
}

#[test]
fn normalisation_and_its_floor() {
    let r =
        small().set("expert_weights_norm", MetadataValue::Flag(true)).config().moe.expect("experts").router;
    assert_eq!((r.normalise, r.norm_floor), (true, 6.103515625e-5));
    assert!(!small().config().moe.expect("experts").router.normalise);
    assert_eq!(deepseek_v3().config().moe.expect("experts").router.norm_floor, 1e-20);
}

fn v2(changes: Value) -> HfFixture {
    let folder = deepseek_v3().set("model_type", json!("deepseek_v2")).set("scoring_func", json!("softmax"));
    let mut folder = folder.set("topk_method", json!("greedy"));
    for (key, value) in changes.as_object().expect("an object") {
        folder.config.insert(key.clone(), value.clone());
    }
    HfFixture::new(Value::Object(folder.config))
}

#[test]
fn a_greedy_router_ignores_groups() {
    let r = v2(json!({})).config().moe.expect("experts").router;
    assert_eq!((r.groups, r.groups_used), (1, 1));
}

#[test]
fn v2_scales_weights_only_where_it_does_not_normalise_them() {
    let scale = |norm: bool| v2(json!({"norm_topk_prob": norm})).config().moe.expect("experts").router.scale;
    assert_eq!((scale(false), scale(true)), (2.5, 1.0));
    assert_eq!(deepseek_v3().config().moe.expect("experts").router.scale, 2.5);
}

#[test]
fn defaults_of_v2_where_keys_are_left_out() {
    let mut folder = v2(json!({}));
    for key in
        ["scoring_func", "topk_method", "norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group"]
    {
        folder = folder.without(key);
    }
    let r = folder.config().moe.expect("experts").router;
    assert_eq!((r.gating, r.bias, r.groups, r.normalise, r.scale), (Gating::Softmax, false, 1, false, 1.0));
}

#[test]
fn defaults_of_v3_where_keys_are_left_out() {
    let mut folder = deepseek_v3();
    for key in ["scoring_func", "topk_method", "n_group", "topk_group", "first_k_dense_replace"] {
        folder = folder.without(key);
    }
    assert_eq!(folder.config(), deepseek_v3().config());
    let null = deepseek_v3().set("n_group", Value::Null).set("topk_group", Value::Null);
    assert_eq!(null.config().moe.expect("experts").router.groups, 1, "null means no groups");
}

#[test]
fn which_layers_have_experts() {
    let kinds = |folder: HfFixture| folder.config().layer_kinds;
    let first = kinds(deepseek_v3());
    assert!(first[..3].iter().all(|kind| *kind == LayerKind::Dense));
    assert!(first[3..].iter().all(|kind| *kind == LayerKind::Moe));
    let types: Vec<&str> = (0..61).map(|layer| if layer < 3 { "dense" } else { "sparse" }).collect();
    let listed = deepseek_v3().without("first_k_dense_replace").set("mlp_layer_types", json!(types));
    assert_eq!(kinds(listed), first);
    let every = kinds(deepseek_v3().set("moe_layer_freq", json!(2)).set("first_k_dense_replace", json!(3)));
    assert_eq!(every[3..6], [LayerKind::Dense, LayerKind::Moe, LayerKind::Dense]);
}

// ---- Optional keys and tensors ----

#[test]
fn a_missing_query_rank_is_read_from_the_tensors() {
    assert_eq!(small().config().attention.q_lora_rank, None);
    assert_eq!(small().int("attention.q_lora_rank", 0).config().attention.q_lora_rank, None);
    let file = GgufFixture::deepseek2(GgufSizes { q_lora: 48, ..SMALL }).without("attention.q_lora_rank");
    assert_eq!(file.config().attention.q_lora_rank, Some(48));
}

#[test]
fn a_legacy_file_has_one_expansion_and_the_same_latent() {
    let c = GgufFixture::deepseek2(GgufSizes { legacy: true, ..SMALL }).config();
    let modern = small().config();
    assert_eq!((c.kv_form, modern.kv_form), (KvForm::Combined, KvForm::Separate));
    assert_eq!(ModelConfig { kv_form: KvForm::Separate, ..c }, modern);
}

#[test]
fn a_file_with_mla_keys_and_the_combined_tensor() {
    let file = small().without_tensor("blk.0.attn_k_b.weight").without_tensor("blk.0.attn_v_b.weight");
    let c = file.tensor("blk.0.attn_kv_b.weight", &[4 * (16 + 24), 32]).config();
    assert_eq!((c.kv_form, c.attention.v), (KvForm::Combined, 24));
}

#[test]
fn a_dense_deepseek2_file_has_no_experts() {
    let c = GgufFixture::deepseek2(GgufSizes { experts: 0, dense_lead: 4, ..SMALL }).config();
    assert_eq!((c.moe, c.intermediate_size), (None, 18_432));
    assert_eq!(c.layer_kinds, [LayerKind::Dense; 4]);
}

#[test]
fn a_file_without_a_head_is_tied() {
    assert!(!small().config().tied_embeddings);
    assert!(small().without_tensor("output.weight").config().tied_embeddings);
    let mut folder = deepseek_v3().without("tie_word_embeddings");
    assert!(!folder.config().tied_embeddings);
    folder.tensors.remove("lm_head.weight");
    assert!(folder.config().tied_embeddings);
    assert!(folder.set("tie_word_embeddings", json!(true)).config().tied_embeddings);
}

/// If both tensors are stored with different values, Transformers 5 does not tie them. With equal
/// values, the logits are equal either way.
#[test]
fn a_stored_head_is_used_whatever_the_config_says_of_it() {
    assert!(!deepseek_v3().set("tie_word_embeddings", json!(true)).config().tied_embeddings);
}

#[test]
fn fused_gate_and_up_are_seen_by_their_tensor() {
    assert!(!small().config().moe.expect("experts").fused_gate_up);
    let file = small().tensor("blk.1.ffn_gate_up_exps.weight", &[16, 4096, 64]);
    assert!(file.config().moe.expect("experts").fused_gate_up);
}

#[test]
fn several_shared_experts_are_one_wide_block() {
    let c = small().int("expert_shared_count", 3).config();
    assert_eq!(c.moe.expect("experts").shared_intermediate, 3 * 2048);
}

#[test]
fn keys_may_be_one_number_or_one_a_layer() {
    let list = |values: [i128; 4]| MetadataValue::List(values.map(MetadataValue::Integer).to_vec());
    let file = small()
        .set("attention.head_count", list([4; 4]))
        .set("attention.head_count_kv", list([1; 4]))
        .set("feed_forward_length", list([18_432, 0, 0, 7]))
        .set("expert_used_count", list([0, 8, 8, 8]))
        .set("expert_feed_forward_length", list([0, 2048, 2048, 2048]));
    assert_eq!(file.config(), small().config());
}

#[test]
fn mtp_layers_are_counted_by_their_tensors() {
    let mtp = |file: GgufFixture| (file.config().layers, file.config().mtp_layers);
    // The last block's tensors are missing: the file holds the backbone only.
    assert_eq!(mtp(small().int("nextn_predict_layers", 1)), (3, 0));
    // Converted files may keep the key without MTP tensors. Then all blocks are decoder layers.
    let decoder = |file: GgufFixture, block| file.tensor(&format!("blk.{block}.attn_norm.weight"), &[64]);
    let all = (0..4).fold(small(), decoder);
    for claimed in [1, 2, 4] {
        assert_eq!(mtp(all.clone().int("nextn_predict_layers", claimed)), (4, 0), "{claimed}");
    }
    let predicts = all.tensor("blk.3.nextn.eh_proj.weight", &[64, 128]);
    assert_eq!(mtp(predicts.clone().int("nextn_predict_layers", 1)), (3, 1));
    assert_eq!(mtp(predicts.int("nextn_predict_layers", 2)), (3, 1));
    let stored = small().tensor("blk.3.nextn.eh_proj.weight", &[64, 128]);
    assert_eq!(mtp(stored.clone().int("nextn_predict_layers", 1)), (3, 1));
    assert_eq!(mtp(stored.clone()), (3, 1), "without the key, the tensors tell");
    assert_eq!(stored.config().layer_kinds[3], LayerKind::Moe);
    let mut folder = deepseek_v3();
    assert_eq!(folder.config().mtp_layers, 0, "promised by num_nextn_predict_layers, not stored");
    folder.tensors.put("model.layers.61.eh_proj.weight", &[7168, 14336]);
    let c = folder.config();
    assert_eq!((c.layers, c.mtp_layers, c.layer_kinds[61]), (61, 1, LayerKind::Dense));
}

#[test]
fn scale_tensors_beside_weights_change_no_contract() {
    let file = small().tensor("blk.0.attn_kv_a_mqa.scale", &[1]).tensor("blk.0.attn_k_b.scale", &[1]);
    assert_eq!(file.config(), small().config());
}

#[test]
fn integral_floats_of_a_config_are_integers() {
    let c = deepseek_v3().set("max_position_embeddings", json!(163840.0)).config();
    assert_eq!(c, deepseek_v3().config());
}

#[test]
fn a_class_name_alone_tells_the_family() {
    let c = deepseek_v3().without("model_type").config();
    assert_eq!((c.circuit.as_str(), c.architecture.as_str()), ("deepseek2", "DeepseekV3ForCausalLM"));
}

#[test]
fn an_unknown_architecture_names_those_that_are_known() {
    let error =
        deepseek_v3().set("model_type", json!("llama")).set("architectures", json!(["LlamaForCausalLM"]));
    match error.read().expect_err("not of the family") {
        ConfigError::Unsupported { architecture, known, .. } => {
            assert_eq!(architecture, "llama");
            assert!(
                known.iter().any(|name| name == "deepseek_v3") && known.iter().any(|name| name == "kimi_vl")
            );
        }
        other => panic!("{other}"),
    }
    let error = GgufFixture::new("llama", SMALL).error();
    config_support::names(
        &error,
        &[
            "model.gguf",
            "\"llama\"",
            "deepseek2, deepseek32, glm-dsa, mistral4, axk1, axk2, minicpm3, kimi-linear, bailingmoe3, plm",
        ],
    );
}
