//! Circuit files, broken.

use super::*;

/// The text of a circuit with one thing replaced.
fn replaced(from: &str, to: &str) -> Circuit {
    let text = include_str!("../../../circuits/deepseek2.json");
    assert!(text.contains(from), "nothing to replace: {from}");
    serde_json::from_str(&text.replacen(from, to, 1)).unwrap()
}

#[test]
fn each_break_is_found() {
    let attn_norm = r#"{"op": "rms_norm", "in": ["h"], "weights": ["attn_norm"], "out": ["x"]},"#;
    let wasted = format!(
        r#"{attn_norm} {{"op": "rms_norm", "in": ["h"], "weights": ["attn_norm"], "out": ["waste"]}},"#
    );
    let ffn_norm = r#"{"op": "rms_norm", "in": ["h_mid"], "weights": ["ffn_norm"], "out": ["y"]},"#;
    let breaks: &[(Code, &str, &str)] = &[
        (
            Code::A01,
            r#""in": ["h_mid"], "weights": ["ffn_norm"]"#,
            r#""in": ["h_middle"], "weights": ["ffn_norm"]"#,
        ),
        (Code::A01, ffn_norm, ""),
        (Code::A02, attn_norm, &wasted),
        (Code::A02, r#""in": ["q_low"], "weights": ["q_b"]"#, r#""in": ["q_low_raw"], "weights": ["q_b"]"#),
        (Code::A03, r#"{"op": "rms_norm", "in": ["h_mid"]"#, r#"{"op": "layer_norm", "in": ["h_mid"]"#),
        (Code::A04, r#""out": ["topk_ids", "topk_weights"]"#, r#""out": ["topk_ids"]"#),
        (
            Code::A04,
            r#""in": ["q_nope", "q_rope", "latent", "k_rope"]"#,
            r#""in": ["q_nope", "q_rope", "latent"]"#,
        ),
        (Code::A05, r#""weights": ["attn_out"]"#, r#""weights": ["attn_output"]"#),
        (Code::A06, r#""weights": ["k_b", "v_b", "kv_b"]"#, r#""weights": ["k_b", "kv_b"]"#),
        (
            Code::A06,
            r#""when": ["moe", "shared_experts"]},
    {"op": "add", "in": ["ffn_delta""#,
            r#""when": ["moe", "!shared_experts"]},
    {"op": "add", "in": ["ffn_delta""#,
        ),
        (Code::A07, "blk.{layer}.ffn_up.weight", "blk.{layer}.ffn_gate.weight"),
        (Code::A07, "blk.{layer}.attn_norm.weight", "blk.attn_norm.weight"),
        (Code::A07, r#"{"gguf": "output_norm.weight", "hf": "model.norm.weight", "shape""#, r#"{"shape""#),
        (Code::A08, r#""shape": ["kv_lora+rope", "hidden"]"#, r#""shape": ["kv_lora+ropes", "hidden"]"#),
        (Code::A08, r#""when": ["dense"]}"#, r#""when": ["dens"]}"#),
        (Code::A08, r#""by": "residual_scale""#, r#""by": "residual""#),
        (
            Code::A09,
            r#""in": ["h_mid", "ffn_delta"], "out": ["h"]"#,
            r#""in": ["h_mid", "ffn_delta"], "out": ["h_next"]"#,
        ),
        (Code::A09, r#""weights": ["head"], "out": ["logits"]"#, r#""weights": ["head"], "out": ["logit"]"#),
    ];
    let config = config();
    for (code, from, to) in breaks {
        expect(&format!("{from} → {to}"), *code, &circuit(&replaced(from, to), &config));
    }
}
