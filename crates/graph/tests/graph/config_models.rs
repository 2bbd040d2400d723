//! The published models: dimensions, router and softmax scale, as read from their config.json or
//! GGUF keys.

use crate::config_support;
use crate::config_support::{GgufFixture, GgufSizes, HfFixture, V3, deepseek_v3, near};
use latent_graph::config::{
    ConfigError, FfnActivation, Gating, GroupScore, IndexerShape, KvForm, RopePairs, RopeScaling, Temperature,
};
use serde_json::{Value, json};

/// DeepSeek-V3's config with other values.
fn like_v3(changes: Value) -> HfFixture {
    let mut folder = deepseek_v3();
    for (key, value) in changes.as_object().expect("an object") {
        folder.config.insert(key.clone(), value.clone());
    }
    HfFixture::new(Value::Object(folder.config))
}

fn v2_lite() -> HfFixture {
    like_v3(json!({
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "first_k_dense_replace": 1,
        "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_group": 1,
        "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16,
        "num_experts_per_tok": 6, "num_hidden_layers": 27, "q_lora_rank": null, "routed_scaling_factor": 1.0,
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096, "type": "yarn"},
        "scoring_func": "softmax", "topk_group": 1, "topk_method": "greedy", "vocab_size": 102400
    }))
}

fn moonlight() -> HfFixture {
    like_v3(json!({
        "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 11264, "moe_intermediate_size": 1408,
        "max_position_embeddings": 8192, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "q_lora_rank": null,
        "rms_norm_eps": 1e-5, "rope_scaling": null, "rope_theta": 50000.0, "routed_scaling_factor": 2.446,
        "topk_group": 1, "vocab_size": 163840
    }))
}

fn kimi_k2(scaling: Value) -> HfFixture {
    like_v3(json!({
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "first_k_dense_replace": 1,
        "max_position_embeddings": 131072, "n_group": 1, "n_routed_experts": 384, "num_attention_heads": 64,
        "num_nextn_predict_layers": 0, "rope_theta": 50000.0, "rope_scaling": scaling,
        "routed_scaling_factor": 2.827, "topk_group": 1, "vocab_size": 163840
    }))
}

fn yarn(factor: f64, beta_fast: f64) -> Value {
    json!({"beta_fast": beta_fast, "beta_slow": 1.0, "factor": factor, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn"})
}

#[test]
fn deepseek_v3_and_r1() {
    let c = deepseek_v3().config();
    assert_eq!((c.layers, c.mtp_layers, c.hidden_size, c.vocab_size), (61, 0, 7168, 129_280));
    assert_eq!((c.attention.latent_width(), c.attention.expanded_width()), (576, 40_960));
    near(c.attention.softmax_scale, 0.135234);
    assert_eq!(c.rope.magnitude(), 1.0);
    let moe = c.moe.expect("experts");
    assert_eq!((moe.experts, moe.num_experts_per_tok, moe.shared_intermediate), (256, 8, 2048));
    assert_eq!((moe.router.groups, moe.router.groups_used, moe.router.scale), (8, 4, 2.5));
}

#[test]
fn deepseek_v2_lite() {
    let c = v2_lite().config();
    assert_eq!((c.attention.q_lora_rank, c.intermediate_size), (None, 10944));
    near(c.attention.softmax_scale, 0.114721);
    let moe = c.moe.expect("experts");
    assert_eq!((moe.shared_intermediate, moe.router.gating, moe.router.bias), (2816, Gating::Softmax, false));
    assert_eq!((moe.router.normalise, moe.router.scale), (false, 1.0));
}

#[test]
fn deepseek_v2_and_v2_5() {
    for (mscale, golden) in [(0.707, 0.114721), (1.0, 0.135234)] {
        let folder = like_v3(json!({
            "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "first_k_dense_replace": 1,
            "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_group": 8,
            "n_routed_experts": 160, "n_shared_experts": 2, "norm_topk_prob": false, "num_experts_per_tok": 6,
            "num_hidden_layers": 60, "routed_scaling_factor": 16.0, "scoring_func": "softmax", "topk_group": 3,
            "topk_method": "group_limited_greedy", "vocab_size": 102400,
            "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": mscale,
                "mscale_all_dim": mscale, "original_max_position_embeddings": 4096, "type": "yarn"}
        }));
        let c = folder.config();
        near(c.attention.softmax_scale, golden);
        let r = c.moe.expect("experts").router;
        assert_eq!((r.groups, r.groups_used, r.group_score, r.scale), (8, 3, GroupScore::Max, 16.0));
    }
}

#[test]
fn kimi_k2_and_k2_0905() {
    for (factor, beta_fast, golden) in [(32.0, 1.0, 0.130861), (64.0, 32.0, 0.144680)] {
        let c = kimi_k2(yarn(factor, beta_fast)).config();
        assert_eq!((c.architecture.as_str(), c.circuit.as_str()), ("kimi_k2", "deepseek2"));
        assert_eq!((c.attention.heads, c.attention.expanded_width()), (64, 20_480));
        near(c.attention.softmax_scale, golden);
        assert_eq!(c.moe.expect("experts").experts, 384);
        assert!(matches!(c.rope.scaling, RopeScaling::Yarn { beta_fast: fast, .. } if fast == beta_fast));
    }
}

#[test]
fn the_text_part_of_kimi_k2_5_and_kimi_vl() {
    let k25 = HfFixture::new(
        json!({"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": kimi_k2(yarn(64.0, 32.0)).config}),
    );
    let c = k25.config();
    assert_eq!((c.architecture.as_str(), c.layers), ("kimi_k25", 61));
    near(c.attention.softmax_scale, 0.144680);
    let text =
        moonlight().set("rope_theta", json!(800000.0)).set("max_position_embeddings", json!(131072)).config;
    let vl = HfFixture::new(
        json!({"model_type": "kimi_vl", "text_config": text, "vision_config": {"layers": 27}}),
    );
    let c = vl.config();
    assert_eq!((c.rope.base, c.context_length), (8e5, 131_072));
    near(c.attention.softmax_scale, 0.0721688);
}

#[test]
fn moonlight_has_no_yarn_and_no_query_rank() {
    let c = moonlight().config();
    assert_eq!((c.rms_eps, c.rope.base, c.rope.scaling.clone()), (1e-5, 5e4, RopeScaling::None));
    near(c.attention.softmax_scale, 0.0721688);
    let moe = c.moe.expect("experts");
    assert_eq!((moe.router.gating, moe.router.groups, moe.router.scale), (Gating::Sigmoid, 1, 2.446));
    assert_eq!(moe.shared_intermediate, 2816);
}

#[test]
fn glm_4_7_flash() {
    let mut folder = like_v3(json!({
        "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "first_k_dense_replace": 1,
        "hidden_size": 2048, "intermediate_size": 10240, "max_position_embeddings": 202752,
        "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 64, "num_attention_heads": 20,
        "num_experts_per_tok": 4, "num_hidden_layers": 47, "q_lora_rank": 768, "qk_nope_head_dim": 192,
        "rms_norm_eps": 1e-5, "rope_scaling": null, "rope_theta": 1000000, "routed_scaling_factor": 1.8,
        "topk_group": 1, "v_head_dim": 256, "vocab_size": 154880
    }))
    .without("scoring_func");
    folder.tensors.put("model.layers.47.eh_proj.weight", &[2048, 4096]);
    folder.tensors.put("model.layers.47.mlp.gate.weight", &[64, 2048]);
    let c = folder.without("num_nextn_predict_layers").config();
    assert_eq!((c.layers, c.mtp_layers, c.all_layers(), c.layer_kinds.len()), (47, 1, 48, 48));
    assert_eq!((c.attention.nope, c.attention.v, c.attention.expanded_width()), (192, 256, 10_240));
    near(c.attention.softmax_scale, 0.0625);
    assert_eq!(c.moe.expect("experts").router.gating, Gating::Sigmoid);
}

#[test]
fn youtu_llm_is_dense_and_tied() {
    for model_type in ["youtu_llm", "youtu"] {
        let c = HfFixture::new(json!({
            "architectures": ["YoutuForCausalLM"], "model_type": model_type, "hidden_act": "silu",
            "hidden_size": 2048, "intermediate_size": 6144, "kv_lora_rank": 512, "max_position_embeddings": 131072,
            "num_attention_heads": 16, "num_hidden_layers": 32, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "rope_interleave": true, "rope_theta": 1600000,
            "tie_word_embeddings": true, "v_head_dim": 128, "vocab_size": 128256
        }))
        .config();
        assert_eq!((c.moe, c.tied_embeddings, c.rope.base), (None, true, 1.6e6));
        assert_eq!(c.rope.pairs, RopePairs::Interleaved);
        near(c.attention.softmax_scale, 0.0721688);
    }
}

#[test]
fn gigachat3() {
    let c = like_v3(json!({
        "first_k_dense_replace": 1, "hidden_size": 1536, "intermediate_size": 8960, "max_position_embeddings": 262144,
        "moe_intermediate_size": 1280, "n_group": 1, "n_routed_experts": 64, "num_attention_heads": 32,
        "num_experts_per_tok": 4, "num_hidden_layers": 26, "q_lora_rank": null, "rope_theta": 100000,
        "rope_scaling": yarn(64.0, 32.0), "topk_group": 1, "v_head_dim": 192, "vocab_size": 128256
    }))
    .config();
    assert_eq!((c.attention.expanded_width(), c.attention.v), (12_288, 192));
    near(c.attention.softmax_scale, 0.144680);
}

#[test]
fn kanana_2_has_48_layers_and_no_query_rank() {
    let c = like_v3(json!({
        "first_k_dense_replace": 1, "hidden_size": 2048, "n_group": 1, "n_routed_experts": 128,
        "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 48, "q_lora_rank": null,
        "rope_scaling": null, "topk_group": 1, "vocab_size": 128256
    }))
    .config();
    assert_eq!((c.layers, c.attention.q_lora_rank), (48, None));
}

#[test]
fn mistral_large_3_scales_frequencies_only_and_warms_queries() {
    let scaling = json!({"type": "yarn", "factor": 36, "original_max_position_embeddings": 8192, "beta": 32,
        "alpha": 1, "apply_scale": false});
    let folder = like_v3(json!({
        "max_position_embeddings": 294912, "intermediate_size": 16384, "moe_intermediate_size": 4096, "n_group": 1,
        "n_routed_experts": 128, "num_experts_per_tok": 4, "rope_scaling": scaling, "routed_scaling_factor": 1.0,
        "scoring_func": "softmax", "topk_group": 1, "topk_method": null, "vocab_size": 131072,
        "llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 8192}
    }));
    let c = folder.config();
    near(c.attention.softmax_scale, 0.0721688);
    assert_eq!(c.rope.magnitude(), 1.0);
    assert!(matches!(
        c.rope.scaling,
        RopeScaling::Yarn { factor: 36.0, original: 8192, beta_fast: 32.0, .. }
    ));
    let temperature = c.attention.temperature.expect("a temperature");
    assert_eq!(temperature, Temperature { scale: 0.1, length: 8192 });
    for (position, golden) in
        [(8191, 1.0), (8192, 1.069315), (16384, 1.109861), (65536, 1.219722), (262_143, 1.346574)]
    {
        near(temperature.factor(position), golden);
    }
    let r = c.moe.expect("experts").router;
    assert_eq!((r.gating, r.bias, r.normalise, r.groups), (Gating::Softmax, false, true, 1));
}

#[test]
fn minicpm3_4b() {
    let factors: Vec<f64> = (0..16).map(|i| 1.0 + f64::from(i)).collect();
    let c = HfFixture::new(json!({
        "architectures": ["MiniCPM3ForCausalLM"], "model_type": "minicpm3", "dim_model_base": 256,
        "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 6400, "kv_lora_rank": 256,
        "max_position_embeddings": 32768, "num_attention_heads": 40, "num_hidden_layers": 62, "q_lora_rank": 768,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "rms_norm_eps": 1e-5, "scale_depth": 1.4,
        "scale_emb": 12, "vocab_size": 73448, "tie_word_embeddings": true,
        "rope_scaling": {"type": "longrope", "short_factor": factors, "long_factor": factors,
            "original_max_position_embeddings": 32768}
    }))
    .config();
    near(c.attention.softmax_scale, 0.102062);
    assert_eq!((c.attention.latent_width(), c.attention.expanded_width()), (288, 6400));
    assert_eq!((c.embedding_scale, c.residual_scale, c.logits_scale), (12.0, 1.4 / 62f64.sqrt(), 0.1));
    assert_eq!((c.rope.base, c.rope.pairs, c.rope.magnitude()), (1e4, RopePairs::NeoX, 1.0));
    assert_eq!(c.rope.inverse_frequencies(1)[1], 1e4f64.powf(-2.0 / 32.0) / 2.0);
}

#[test]
fn plm_1_8b() {
    let c = HfFixture::new(json!({
        "architectures": ["PLMForCausalLM"], "model_type": "plm", "hidden_act": "relu2", "hidden_size": 2048,
        "intermediate_size": 8192, "kv_lora_rank": 512, "max_position_embeddings": 4096, "num_attention_heads": 16,
        "num_hidden_layers": 32, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-6, "rope_theta": 100000.0, "tie_word_embeddings": true, "v_head_dim": 128,
        "vocab_size": 151936
    }))
    .config();
    assert_eq!((c.circuit.as_str(), c.activation), ("plm", FfnActivation::ReluSquared));
    assert_eq!((c.rope.pairs, c.tied_embeddings), (RopePairs::Interleaved, true));
    near(c.attention.softmax_scale, 0.0721688);
}

#[test]
fn gguf_files_of_the_family() {
    let lite = GgufSizes {
        layers: 27,
        hidden: 2048,
        heads: 16,
        q_lora: 0,
        vocab: 102_400,
        experts: 64,
        bias: false,
        dense_lead: 1,
        ..V3
    };
    let glm = GgufSizes {
        layers: 47,
        hidden: 2048,
        heads: 20,
        q_lora: 768,
        nope: 192,
        v: 256,
        vocab: 154_880,
        experts: 64,
        dense_lead: 1,
        ..V3
    };
    let kimi = GgufSizes { heads: 64, experts: 384, dense_lead: 1, vocab: 163_840, ..V3 };
    let giga = GgufSizes {
        layers: 26,
        hidden: 1536,
        heads: 32,
        q_lora: 0,
        v: 192,
        vocab: 128_256,
        experts: 64,
        dense_lead: 1,
        ..V3
    };
    for (sizes, scaling, golden) in [
        (lite, Some((40.0, 0.0707)), 0.114721),
        (V3, Some((40.0, 0.1)), 0.135234),
        (kimi, Some((32.0, 0.1)), 0.130861),
        (giga, Some((64.0, 0.1)), 0.144680),
        (glm, None, 0.0625),
    ] {
        let file = GgufFixture::deepseek2(sizes);
        let c = match scaling {
            Some((factor, log)) => file.yarn(factor, 4096, Some(log)).config(),
            None => file.config(),
        };
        near(c.attention.softmax_scale, golden);
        assert_eq!((c.rope.magnitude(), c.kv_form), (1.0, KvForm::Separate));
        assert_eq!((c.layers, c.attention.nope, c.attention.v), (sizes.layers, sizes.nope, sizes.v));
        assert_eq!(c.attention.q_lora_rank, (sizes.q_lora > 0).then_some(sizes.q_lora));
    }
}

#[test]
fn gguf_of_minicpm3_and_plm() {
    let sizes = GgufSizes {
        layers: 62,
        hidden: 2560,
        heads: 40,
        q_lora: 768,
        kv_lora: 256,
        nope: 64,
        rope: 32,
        v: 64,
        vocab: 73_448,
        experts: 0,
        legacy: true,
        ..V3
    };
    let mut file =
        GgufFixture::new("minicpm3", sizes).without("attention.value_length").without_tensor("output.weight");
    file.tensors.put_numbers("rope_factors_short.weight", &[1.0; 16]);
    file.tensors.put_numbers("rope_factors_long.weight", &[4.0; 16]);
    let c = file.int("context_length", 32_768).config();
    near(c.attention.softmax_scale, 0.102062);
    assert_eq!((c.attention.v, c.tied_embeddings, c.kv_form), (64, true, KvForm::Combined));
    assert_eq!((c.embedding_scale, c.residual_scale, c.logits_scale), (12.0, 1.4 / 62f64.sqrt(), 0.1));
    assert_eq!((c.rope.inverse_frequencies(32_768)[0], c.rope.inverse_frequencies(32_769)[0]), (1.0, 0.25));
    assert_eq!(c.rope.pairs, RopePairs::NeoX);
    let sizes = GgufSizes {
        layers: 32,
        hidden: 2048,
        heads: 16,
        q_lora: 0,
        vocab: 151_936,
        experts: 0,
        legacy: true,
        ..V3
    };
    let c = GgufFixture::new("plm", sizes).without_tensor("output.weight").config();
    assert_eq!((c.activation, c.tied_embeddings, c.moe), (FfnActivation::ReluSquared, true, None));
    assert_eq!((c.attention.q_lora_rank, c.rope.pairs), (None, RopePairs::Interleaved));
}

/// GLM-5's config.json: DeepSeek-V3's keys and the indexer's.
fn glm_5() -> HfFixture {
    let mut folder = like_v3(json!({
        "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "hidden_size": 6144,
        "intermediate_size": 12288, "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64,
        "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "qk_head_dim": 256, "head_dim": 64,
        "n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-5, "max_position_embeddings": 202752, "vocab_size": 154880,
        "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32, "indexer_rope_interleave": true,
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}
    }));
    folder.config.shift_remove("rope_scaling");
    folder.config.shift_remove("rope_theta");
    folder
}

#[test]
fn glm_5_attends_to_the_tokens_of_an_indexer() {
    let c = glm_5().config();
    let indexer = IndexerShape { heads: 32, width: 128, topk: 2048, pairs: RopePairs::Interleaved };
    assert_eq!((c.attention.indexer, c.full_indexers.clone()), (Some(indexer), vec![true; 78]));
    assert_eq!((c.circuit.as_str(), c.architecture.as_str()), ("deepseek2", "glm_moe_dsa"));
    assert_eq!((c.layers, c.hidden_size, c.attention.heads, c.index_topk), (78, 6144, 64, Some(2048)));
    assert_eq!(
        (c.attention.nope, c.attention.rope, c.attention.v, c.attention.q_lora_rank),
        (192, 64, 256, Some(2048))
    );
    assert_eq!(c.attention.softmax_scale, 1.0 / 256f64.sqrt());
    assert_eq!((c.rope.base, c.rope.pairs, c.rope.magnitude()), (1e6, RopePairs::Interleaved, 1.0));
    let r = c.moe.expect("experts").router;
    assert_eq!((r.gating, r.bias, r.groups, r.normalise, r.scale), (Gating::Sigmoid, true, 1, true, 2.5));
    // Transformers omits keys whose values are the class's defaults when it saves a config.
    let mut bare = glm_5();
    for key in
        ["scoring_func", "topk_method", "n_group", "topk_group", "first_k_dense_replace", "moe_layer_freq"]
    {
        bare = bare.without(key);
    }
    assert_eq!(bare.config(), glm_5().config());
}

/// The layers that have an indexer of their own, in each spelling of the keys.
#[test]
fn layers_share_the_tokens_of_the_indexer_before_them() {
    let full = |key: &str, value: Value| -> Vec<usize> {
        let mut folder = glm_5();
        folder.config.insert(key.to_owned(), value);
        let offset = json!(if key == "index_topk_freq" { 3 } else { 2 });
        folder.config.insert("index_skip_topk_offset".to_owned(), offset);
        let full = folder.config().full_indexers;
        (0..full.len()).filter(|layer| full[*layer]).collect()
    };
    // GLM-5.2: 0, 1, 2, 6, 10, …, 74
    let published: Vec<usize> = [0, 1].into_iter().chain((2..78).step_by(4)).collect();
    assert_eq!(full("index_topk_freq", json!(4)), published);
    let is_full = |layer: &usize| published.contains(layer);
    let types: Vec<&str> = (0..78).map(|layer| if is_full(&layer) { "full" } else { "shared" }).collect();
    assert_eq!(full("indexer_types", json!(types)), published);
    let letters: String = (0..78).map(|layer| if is_full(&layer) { 'F' } else { 'S' }).collect();
    assert_eq!(full("index_topk_pattern", json!(letters)), published);
    let refused = |key: &str, value: Value| {
        let mut folder = glm_5();
        folder.config.insert(key.to_owned(), value);
        folder.error()
    };
    for (key, value, says) in [
        ("indexer_types", json!(vec!["shared"; 78]), "no earlier layer"),
        ("index_topk_pattern", json!("S".repeat(78)), "no earlier layer"),
        ("indexer_types", json!(["full", "shared"]), "each of the 78 layers"),
        ("index_topk_pattern", json!("FX"), "F (full) or S (shared)"),
        ("index_head_dim", json!(32), "at least 64"),
    ] {
        let error = refused(key, value);
        assert!(error.contains(key) && error.contains(says), "{error}");
    }
}

#[test]
fn deepseek_v3_2_is_deepseek_v3_with_an_indexer() {
    let folder = like_v3(json!({
        "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "index_topk": 2048,
        "index_head_dim": 128, "index_n_heads": 64
    }));
    let (c, v3) = (folder.config(), deepseek_v3().config());
    assert_eq!(c.index_topk, Some(2048));
    // The indexer rotates halves, whatever pairs the attention rotates.
    let indexer = IndexerShape { heads: 64, width: 128, topk: 2048, pairs: RopePairs::NeoX };
    assert_eq!((c.attention.indexer, c.full_indexers.clone()), (Some(indexer), vec![true; 61]));
    let dense = c.without_indexer();
    let same = latent_graph::ModelConfig { index_topk: None, architecture: v3.architecture.clone(), ..dense };
    assert_eq!(same, v3);
}

/// The text part of Mistral-Small-4-119B as Transformers' class stores it.
fn mistral_small_4() -> Value {
    json!({
        "model_type": "mistral4", "attention_bias": false, "first_k_dense_replace": 0, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288, "kv_lora_rank": 256,
        "max_position_embeddings": 1048576, "moe_intermediate_size": 2048, "n_group": 1, "n_routed_experts": 128,
        "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts_per_tok": 4,
        "num_hidden_layers": 36, "num_key_value_heads": 32, "q_lora_rank": 1024, "qk_head_dim": 128,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "rope_interleave": true,
        "rope_parameters": {"type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0,
            "original_max_position_embeddings": 8192, "max_position_embeddings": 1048576, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
            "partial_rotary_factor": 0.5},
        "routed_scaling_factor": 1.0, "tie_word_embeddings": false, "topk_group": 1, "v_head_dim": 128,
        "vocab_size": 131072
    })
}

#[test]
fn mistral_small_4_is_wrapped_and_warms_queries() {
    let wrapped = json!({"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
        "text_config": mistral_small_4()});
    let mut folder = HfFixture::new(wrapped);
    folder.tensors.put("language_model.model.layers.0.mlp.experts.gate_up_proj", &[128, 4096, 4096]);
    let c = folder.config();
    assert_eq!((c.circuit.as_str(), c.architecture.as_str()), ("deepseek2", "mistral3"));
    assert_eq!((c.layers, c.attention.latent_width(), c.context_length), (36, 320, 1_048_576));
    assert_eq!(c.attention.temperature, Some(Temperature { scale: 0.1, length: 8192 }));
    let mscale = 0.1 * 128f64.ln() + 1.0;
    near(c.attention.softmax_scale, mscale * mscale / 128f64.sqrt());
    assert_eq!(c.rope.magnitude(), 1.0);
    let moe = c.moe.expect("experts");
    assert!(moe.fused_gate_up);
    assert_eq!((moe.router.gating, moe.router.bias, moe.router.normalise), (Gating::Softmax, false, true));
    // Mistral's own params.json of this model has apply_scale false.
    let mut text = mistral_small_4();
    text["rope_parameters"]["apply_yarn_scaling"] = json!(false);
    assert_eq!(HfFixture::new(text).config().attention.softmax_scale, 1.0 / 128f64.sqrt());
    let dense = json!({"model_type": "mistral3", "text_config": {"model_type": "mistral"}});
    let error = HfFixture::new(dense).read().expect_err("Mistral Small 3 has no latent attention");
    assert!(matches!(error, ConfigError::Unsupported { architecture, .. } if architecture == "mistral"));
}

fn a_x_k1() -> HfFixture {
    let folder = like_v3(json!({
        "architectures": ["AXK1ForCausalLM"], "model_type": "axk1", "first_k_dense_replace": 1,
        "max_position_embeddings": 131072, "n_routed_experts": 192, "num_attention_heads": 64,
        "num_nextn_predict_layers": 0, "rope_scaling": null, "vocab_size": 163840, "topk_method": null
    }));
    folder.without("topk_method")
}

#[test]
fn a_x_k1_groups_experts_without_a_bias() {
    let c = a_x_k1().config();
    assert_eq!((c.circuit.as_str(), c.layers, c.attention.heads), ("axk1", 61, 64));
    let r = c.moe.expect("experts").router;
    assert_eq!((r.gating, r.bias, r.groups, r.groups_used), (Gating::Sigmoid, false, 8, 4));
    assert_eq!((r.group_score, r.normalise, r.scale), (GroupScore::TopTwoSum, true, 2.5));
    // A.X-K1's published code does not read topk_method.
    let named = a_x_k1().set("topk_method", json!("noaux_tc"));
    assert_eq!(named.config(), c);
}

#[test]
fn deepseek_vl2_holds_its_text_part_in_language_config() {
    let language = json!({
        "architectures": ["DeepseekV2ForCausalLM"], "first_k_dense_replace": 1, "hidden_size": 2560,
        "intermediate_size": 12288, "kv_lora_rank": 512, "lm_head": true, "max_position_embeddings": 4096,
        "model_type": "deepseek_v2", "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 72,
        "n_shared_experts": 2, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts_per_tok": 6,
        "num_hidden_layers": 30, "num_key_value_heads": 32, "q_lora_rank": null, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "rm_head": false, "routed_scaling_factor": 2.0, "scoring_func": "sigmoid",
        "topk_group": 1, "topk_method": "noaux_tc", "use_mla": true, "v_head_dim": 128, "vocab_size": 129280
    });
    let folder = HfFixture::new(json!({"model_type": "deepseek_vl_v2", "language_config": language}));
    assert!(folder.tensors.shapes.contains_key("language.model.embed_tokens.weight"));
    let c = folder.config();
    assert_eq!((c.circuit.as_str(), c.architecture.as_str()), ("deepseek2", "deepseek_vl_v2"));
    assert_eq!((c.layers, c.hidden_size, c.rms_eps, c.rope.base), (30, 2560, 1e-6, 1e4));
    let r = c.moe.expect("experts").router;
    // DeepSeek-V2's code either normalizes or scales the weights. DeepSeek-VL2's does both.
    assert_eq!((r.gating, r.bias, r.normalise, r.scale), (Gating::Sigmoid, true, true, 2.0));
    let mut small = folder;
    small.config["language_config"]["use_mla"] = json!(false);
    config_support::names(
        &small.error(),
        &["language_config.use_mla", "false", "Multi-head Latent Attention are not supported"],
    );
}

#[test]
fn a_gguf_of_the_newer_architectures() {
    let modern = |architecture: &str, sizes: GgufSizes| {
        let mut file = GgufFixture::deepseek2(sizes);
        let keys = std::mem::take(&mut file.keys).into_iter();
        file.keys = keys
            .map(|(key, value)| (key.replacen("deepseek2.", &format!("{architecture}."), 1), value))
            .collect();
        file.set("general.architecture", latent_graph::config::MetadataValue::Text(architecture.to_owned()))
    };
    // GLM-5 has 78 layers. The key also counts the MTP layer, which the file omits.
    let glm = GgufSizes {
        layers: 79,
        hidden: 6144,
        heads: 64,
        q_lora: 2048,
        nope: 192,
        v: 256,
        vocab: 154_880,
        ..V3
    };
    let c =
        modern("glm-dsa", glm).int("attention.indexer.top_k", 2048).int("nextn_predict_layers", 1).config();
    assert_eq!((c.circuit.as_str(), c.architecture.as_str(), c.layers), ("deepseek2", "glm-dsa", 78));
    assert_eq!((c.index_topk, c.attention.softmax_scale), (Some(2048), 1.0 / 256f64.sqrt()));
    let c =
        modern("deepseek32", V3).yarn(40.0, 4096, Some(0.1)).int("attention.indexer.top_k", 2048).config();
    near(c.attention.softmax_scale, 0.135234);
    assert_eq!((c.rope.magnitude(), c.index_topk), (1.0, Some(2048)));
    let small = GgufSizes {
        layers: 36,
        hidden: 4096,
        heads: 32,
        q_lora: 1024,
        kv_lora: 256,
        nope: 64,
        dense_lead: 0,
        experts: 128,
        bias: false,
        vocab: 131_072,
        ..V3
    };
    let file = modern("mistral4", small).yarn(128.0, 8192, Some(0.1));
    let c = file.config();
    assert_eq!(
        c.attention.temperature,
        Some(Temperature { scale: 0.1, length: 8192 }),
        "which converters leave out"
    );
    let mscale = 0.1 * 128f64.ln() + 1.0;
    near(c.attention.softmax_scale, mscale * mscale / 128f64.sqrt());
    assert_eq!(c.moe.expect("experts").router.gating, Gating::Softmax);
    assert_eq!(
        file.real("attention.temperature_scale", 0.0).config().attention.temperature,
        None,
        "a file that says none"
    );
    // A glm-dsa file without a gating key is sigmoid, even without a bias tensor.
    let unsaid = modern("glm-dsa", GgufSizes { bias: false, ..glm });
    assert_eq!(unsaid.config().moe.expect("experts").router.gating, Gating::Sigmoid);
}
