//! The configs of the reference fixtures, read from their real files.

use latent_formats::Checkpoint;
use latent_graph::ModelConfig;
use latent_graph::config::{Gating, GroupScore, KvForm, LayerKind, OutputGate, RopePairs, RopeScaling};
use std::path::PathBuf;

fn read(path: &str) -> ModelConfig {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures").join(path);
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|error| panic!("{error}"));
    ModelConfig::from_checkpoint(&checkpoint).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn v3_from_safetensors() {
    let c = read("v3");
    assert_eq!((c.circuit.as_str(), c.architecture.as_str()), ("deepseek2", "deepseek_v3"));
    assert_eq!((c.vocab_size, c.hidden_size, c.layers, c.mtp_layers), (320, 96, 3, 0));
    let a = c.attention;
    assert_eq!((a.heads, a.q_lora_rank, a.kv_lora_rank, a.nope, a.rope, a.v), (4, Some(80), 48, 24, 16, 20));
    assert_eq!(a.softmax_scale, 1.0 / 40f64.sqrt());
    assert_eq!(c.layer_kinds, [LayerKind::Dense, LayerKind::Moe, LayerKind::Moe]);
    assert_eq!((c.intermediate_size, c.kv_form, c.tied_embeddings), (160, KvForm::Combined, false));
    let moe = c.moe.expect("experts");
    assert_eq!(
        (moe.experts, moe.num_experts_per_tok, moe.intermediate, moe.shared_intermediate),
        (16, 4, 48, 48)
    );
    let r = moe.router;
    assert_eq!((r.gating, r.bias, r.groups, r.groups_used), (Gating::Sigmoid, true, 4, 2));
    assert_eq!((r.group_score, r.normalise, r.scale), (GroupScore::TopTwoSum, true, 2.5));
    assert_eq!((c.rope.base, c.rope.dims, c.rope.pairs), (1e4, 16, RopePairs::Interleaved));
    assert_eq!(c.rope.scaling, RopeScaling::None);
}

#[test]
fn the_same_model_reads_alike_from_gguf_and_safetensors() {
    for fixture in ["v3", "v3-yarn", "youtu"] {
        let mut gguf = read(&format!("{fixture}/model.f32.gguf"));
        let hf = read(fixture);
        assert_eq!(gguf.kv_form, KvForm::Separate, "{fixture}");
        // The two formats name and lay out tensors differently, and llama.cpp and Transformers
        // guard the
        // sum of router weights by different floors. Everything else must agree.
        (gguf.architecture, gguf.name, gguf.kv_form) = (hf.architecture.clone(), hf.name.clone(), hf.kv_form);
        if let (Some(g), Some(h)) = (&mut gguf.moe, &hf.moe) {
            assert_eq!((g.router.norm_floor, h.router.norm_floor), (6.103515625e-5, 1e-20));
            g.router.norm_floor = h.router.norm_floor;
        }
        let (g, h) = (gguf.attention.softmax_scale, hf.attention.softmax_scale);
        assert!((g - h).abs() <= 1e-12 * h, "{fixture}: {g} and {h}");
        gguf.attention.softmax_scale = h;
        assert_eq!(gguf, hf, "{fixture}");
    }
}

#[test]
fn yarn_scales_scores_and_not_cos_and_sin() {
    let c = read("v2-lite-yarn");
    let mscale = 0.1 * 0.707 * 8f64.ln() + 1.0;
    assert!((c.attention.softmax_scale - mscale * mscale / 40f64.sqrt()).abs() < 1e-15);
    assert_eq!(c.rope.magnitude(), 1.0);
    assert!(matches!(c.rope.scaling, RopeScaling::Yarn { factor: 8.0, original: 128, .. }));
}

#[test]
fn v2_scores_groups_by_their_best_expert() {
    let r = read("v2-groups").moe.expect("experts").router;
    assert_eq!((r.gating, r.bias, r.groups, r.groups_used), (Gating::Softmax, false, 4, 2));
    assert_eq!((r.group_score, r.normalise, r.scale), (GroupScore::Max, false, 16.0));
}

#[test]
fn every_fixture_has_a_contract() {
    for (fixture, circuit, q_lora, shared) in [
        ("v2-lite", "deepseek2", None, Some(96)),
        ("moonlight", "deepseek2", None, Some(96)),
        ("glm-4.7-flash", "deepseek2", Some(80), Some(48)),
        ("youtu", "deepseek2", Some(80), None),
        ("minicpm3", "minicpm3", Some(80), None),
    ] {
        let c = read(fixture);
        assert_eq!((c.circuit.as_str(), c.attention.q_lora_rank), (circuit, q_lora), "{fixture}");
        assert_eq!(c.moe.map(|moe| moe.shared_intermediate), shared, "{fixture}");
        assert_eq!(c.layer_kinds.len(), 3, "{fixture}");
    }
    let c = read("minicpm3");
    assert_eq!((c.embedding_scale, c.residual_scale, c.logits_scale), (12.0, 1.4 / 3f64.sqrt(), 64.0 / 96.0));
    assert_eq!(c.rope.pairs, RopePairs::NeoX);
    assert!(read("youtu").tied_embeddings);
}

#[test]
fn gates_and_attention_without_rotation() {
    let ling = read("ling-3");
    assert_eq!((ling.circuit.as_str(), ling.context_length), ("bailing_hybrid", 1024));
    assert_eq!(ling.attention.output_gate, Some(OutputGate::PerHead));
    assert_eq!((ling.rope.base, ling.rope.dims, ling.rope.pairs), (6e6, 16, RopePairs::Interleaved));
    let moe = ling.moe.expect("experts");
    assert_eq!((moe.experts, moe.num_experts_per_tok, moe.shared_intermediate), (8, 3, 32));
    let r = moe.router;
    assert_eq!((r.gating, r.bias, r.groups, r.groups_used), (Gating::Sigmoid, true, 4, 2));
    assert_eq!((r.normalise, r.scale), (true, 2.5));
    let kimi = read("kimi-linear");
    assert_eq!((kimi.attention.output_gate, kimi.attention.rope, kimi.rope.dims), (None, 16, 0));
    assert_eq!(kimi.attention.softmax_scale, 1.0 / 40f64.sqrt());
    assert_eq!(kimi.layer_kinds, [LayerKind::Moe; 2]);
    let bare = read("nope-gate");
    assert_eq!(bare.attention.output_gate, Some(OutputGate::PerElement));
    assert_eq!((bare.attention.rope, bare.rope.dims), (0, 0));
    assert_eq!((bare.attention.latent_width(), bare.attention.softmax_scale), (48, 1.0 / 24f64.sqrt()));
}
