//! Broken circuit files: each break must be found under its rule's code.

use super::*;

/// The circuit `deepseek2` with one replacement in the text of a block. An empty `block` means the
/// circuit's own file.
fn replaced(block: &str, from: &str, to: &str) -> Circuit {
    let whole = include_str!("../../../circuits/deepseek2.json");
    let text = match block {
        "mla" => include_str!("../../../circuits/blocks/mla.json"),
        "dense" => include_str!("../../../circuits/blocks/dense.json"),
        "moe" => include_str!("../../../circuits/blocks/moe.json"),
        "head" => include_str!("../../../circuits/blocks/head.json"),
        _ => whole,
    };
    // A break that replaces nothing would test the intact circuit.
    assert!(text.contains(from), "nothing to replace: {from}");
    let text = text.replacen(from, to, 1);
    if block.is_empty() {
        return serde_json::from_str(&text).unwrap();
    }
    let mut circuit: Circuit = serde_json::from_str(whole).unwrap();
    circuit.blocks.insert(block.to_owned(), serde_json::from_str(&text).unwrap());
    circuit
}

/// The rule, the block, what is replaced in it, and by what.
const BREAKS: &[(Code, &str, &str, &str)] = &[
    (
        Code::A01,
        "moe",
        r#""in": ["h_mid"], "weights": ["ffn_norm"]"#,
        r#""in": ["h_middle"], "weights": ["ffn_norm"]"#,
    ),
    (
        Code::A01,
        "dense",
        r#"{"op": "rms_norm", "in": ["h_mid"], "weights": ["ffn_norm"], "out": ["y"]},"#,
        "",
    ),
    (Code::A01, "mla", r#""out": ["h_mid"],"#, r#""out": ["attn_delta"],"#),
    (
        Code::A02,
        "mla",
        r#"{"op": "rms_norm", "in": ["h"], "weights": ["attn_norm"], "out": ["x"]},"#,
        r#"{"op": "rms_norm", "in": ["h"], "weights": ["attn_norm"], "out": ["x"]},
    {"op": "rms_norm", "in": ["h"], "weights": ["attn_norm"], "out": ["waste"]},"#,
    ),
    (
        Code::A02,
        "mla",
        r#""in": ["q_low"], "weights": ["q_b"]"#,
        r#""in": ["q_low_raw"], "weights": ["q_b"]"#,
    ),
    (Code::A02, "mla", r#""out": ["h_mid"],"#, r#""out": ["h_mid", "x"],"#),
    (Code::A03, "moe", r#"{"op": "rms_norm", "in": ["h_mid"]"#, r#"{"op": "layer_norm", "in": ["h_mid"]"#),
    (Code::A04, "moe", r#""out": ["topk_ids", "topk_weights"]"#, r#""out": ["topk_ids"]"#),
    (
        Code::A04,
        "mla",
        r#""in": ["q_nope", "q_rope", "latent", "k_rope"]"#,
        r#""in": ["q_nope", "q_rope", "latent"]"#,
    ),
    (Code::A05, "mla", r#""weights": ["attn_out"]"#, r#""weights": ["attn_output"]"#),
    (Code::A05, "mla", r#""weights": ["attn_out"]"#, r#""weights": ["down"]"#),
    (Code::A06, "mla", r#""weights": ["k_b", "v_b", "kv_b"]"#, r#""weights": ["k_b", "kv_b"]"#),
    (
        Code::A06,
        "moe",
        r#""when": ["shared_experts"]},
    {"op": "add", "in": ["ffn_delta""#,
        r#""when": ["!shared_experts"]},
    {"op": "add", "in": ["ffn_delta""#,
    ),
    (Code::A07, "dense", "blk.{layer}.ffn_up.weight", "blk.{layer}.ffn_gate.weight"),
    (Code::A07, "dense", "blk.{layer}.ffn_up.weight", "blk.{layer}.attn_norm.weight"),
    (Code::A07, "mla", "blk.{layer}.attn_norm.weight", "blk.attn_norm.weight"),
    (
        Code::A07,
        "head",
        r#"{"gguf": "output_norm.weight", "hf": "model.norm.weight", "shape""#,
        r#"{"shape""#,
    ),
    (Code::A08, "mla", r#""shape": ["kv_lora+rope", "hidden"]"#, r#""shape": ["kv_lora+ropes", "hidden"]"#),
    (Code::A08, "", r#""when": ["dense"]}"#, r#""when": ["dens"]}"#),
    (Code::A08, "moe", r#""when": ["shared_experts"]}"#, r#""when": ["shared"]}"#),
    (Code::A08, "mla", r#""by": "residual_scale""#, r#""by": "residual""#),
    (Code::A08, "mla", r#""width": "kv_lora""#, r#""width": "kv_lora+""#),
    (
        Code::A09,
        "moe",
        r#""in": ["h_mid", "ffn_delta"], "out": ["h"]"#,
        r#""in": ["h_mid", "ffn_delta"], "out": ["h_next"]"#,
    ),
    (Code::A09, "moe", r#""out": ["h"],"#, r#""out": ["y"],"#),
    (
        Code::A09,
        "head",
        r#""weights": ["head"], "out": ["logits"]"#,
        r#""weights": ["head"], "out": ["logit"]"#,
    ),
    (Code::A80, "", r#"{"block": "dense", "when": ["dense"]}"#, r#"{"block": "dense", "when": ["moe"]}"#),
    (Code::A80, "", r#"{"block": "dense", "when": ["dense"]}"#, r#"{"block": "dense"}"#),
    (Code::A80, "", r#"{"block": "dense", "when": ["dense"]}"#, r#"{"block": "mla", "when": ["dense"]}"#),
    (Code::A80, "", r#""blocks": ["head"]"#, r#""blocks": ["tail"]"#),
    (Code::A80, "", r#""out": {"h": "hidden"}"#, r#""out": {"h": "logits"}"#),
    (Code::A81, "mla", r#""written_by": "mla_attention""#, r#""written_by": "rope""#),
    (Code::A81, "mla", r#""read_by": ["mla_attention"]"#, r#""read_by": ["linear"]"#),
    (Code::A81, "mla", r#""value": "k_rope""#, r#""value": "k_pe""#),
    (Code::A81, "mla", r#""range": "all""#, r#""range": {"last": "heads"}"#),
    (Code::A81, "mla", r#""stride": "1""#, r#""stride": "4""#),
];

#[test]
fn each_break_is_found() {
    let config = config();
    for (code, block, from, to) in BREAKS {
        expect(&format!("{block}: {from} → {to}"), *code, &circuit(&replaced(block, from, to), &config));
    }
}

/// Builds a circuit with a wrong statement about its cache. The audit must report each operation
/// that stores something else.
#[test]
fn a_cache_that_is_not_as_stated_is_found() {
    let config = config();
    let bind = AuditedSession::whole().bind;
    let target = BackendTarget::new("test", table());
    let row =
        r#"{"value": "latent", "width": "kv_lora"}, {"value": "k_rope", "width": "rope", "rotated": true}"#;
    let misstated = [
        (Code::A27, r#"{"value": "latent", "width": "kv_lora"}, "#, "16 elements, expected 64", ""),
        (Code::A27, r#""width": "kv_lora""#, "expected 64", r#""width": "hidden""#),
        (
            Code::A83,
            r#""width": "rope", "rotated": true"#,
            "k_rope: it is rotated by position",
            r#""width": "rope""#,
        ),
        (
            Code::A83,
            r#""width": "kv_lora""#,
            "latent: it is not rotated",
            r#""width": "kv_lora", "rotated": true"#,
        ),
        (
            Code::A83,
            row,
            r#"it stores ["latent", "k_rope"], but the circuit declares the row ["k_rope", "latent"]"#,
            r#"{"value": "k_rope", "width": "rope", "rotated": true}, {"value": "latent", "width": "kv_lora"}"#,
        ),
    ];
    for (code, from, words, to) in misstated {
        let circuit = replaced("mla", from, to);
        let tensors = DeclaredTensors::of(&circuit, &config, TensorNaming::Gguf, TensorType::BF16).unwrap();
        let span = ModelSpan::backbone(&config);
        let ir = Ir::build_with(&circuit, &config, &span, &tensors).unwrap();
        for (mla, form) in [(MlaChoice::Auto, CacheForm::Latent), (MlaChoice::Naive, CacheForm::Latent)] {
            let bucket = BatchBucket::Decode;
            let options = PlanOptions { span: span.clone(), bucket, max_batch_tokens: 1, mla, form, bind };
            let made = Plan::from_ir(ir.clone(), &config, &target, &options).unwrap();
            let bound = BindContext { target: &target, options: bind };
            let findings = plan(&made, &circuit, &config, bound);
            expect(&format!("{from} → {to}"), code, &findings);
            let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
            assert!(texts.iter().any(|text| text.contains(words)), "{from} → {to}: {texts:#?}");
        }
    }
}
