//! FP8 weights of published folders: names of scales, all values computed by hand, and malformed
//! scales of every kind.

use crate::support::says;
use latent_formats::safetensors::Writer;
use latent_formats::{Checkpoint, CheckpointSource, Outline, ScaleGrid, ScaleTable, announced_type};
use latent_types::TensorType::{self, BF16, F8_E4M3, F8_E5M2, F16, F32, I8, NVFP4};
use serde_json::json;

type Fp8Tensors = Vec<(&'static str, TensorType, Vec<usize>, Vec<u8>)>;

fn weights(tensors: &Fp8Tensors) -> Vec<u8> {
    let mut writer = Writer::new();
    for (name, ty, shape, _) in tensors {
        writer.tensor(*name, *ty, shape).unwrap();
    }
    let mut file = Vec::new();
    writer.write(&mut file, |i, out| out.write_all(&tensors[i].3)).unwrap();
    file
}

fn folder(config: &str, tensors: &Fp8Tensors) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), weights(tensors)).unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    folder
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Decodes E4M3 by its fields.
fn e4m3(code: u8) -> f32 {
    let (sign, exponent) = (if code & 0x80 == 0 { 1.0 } else { -1.0 }, i32::from(code >> 3 & 15));
    let mantissa = f32::from(code & 7) / 8.0;
    if exponent == 0 {
        sign * mantissa * 2f32.powi(-6)
    } else {
        sign * (1.0 + mantissa) * 2f32.powi(exponent - 7)
    }
}

const ROWS: usize = 20;
const COLS: usize = 33;

/// Codes of all kinds except NaN.
fn codes() -> Vec<u8> {
    (0..ROWS * COLS)
        .map(|i| (i * 37 % 256) as u8)
        .map(|code| if code & 0x7f == 0x7f { 0x10 } else { code })
        .collect()
}

fn with(name: &'static str, ty: TensorType, shape: &[usize], bytes: Vec<u8>) -> Fp8Tensors {
    vec![("a.weight", F8_E4M3, vec![ROWS, COLS], codes()), (name, ty, shape.to_vec(), bytes)]
}

fn scales(checkpoint: &Checkpoint) -> ScaleTable {
    checkpoint.scales("a.weight_scale_inv", F8_E4M3, [1, ROWS, COLS]).unwrap().unwrap()
}

/// The elements of `a.weight` times their scales.
fn elements(checkpoint: &Checkpoint) -> Vec<f32> {
    let rows = checkpoint.rows("a.weight").unwrap().unwrap();
    let ScaleTable { numbers, grid } = scales(checkpoint);
    let (down, across) = grid.sides([1, ROWS, COLS]);
    let place = |i: usize| i / COLS / down * COLS.div_ceil(across) + i % COLS / across;
    rows.bytes(0..ROWS).iter().enumerate().map(|(i, code)| e4m3(*code) * numbers[place(i)]).collect()
}

/// config.json; name, type, shape and bytes of the scales; the factor of each element.
type ScaleCase<'a> = (&'a str, &'static str, TensorType, &'a [usize], Vec<u8>, ScaleGrid);

#[test]
fn scales_of_every_name_and_shape_apply_to_the_right_elements() {
    let channels: Vec<f32> = (0..ROWS).map(|row| 0.25 + row as f32).collect();
    let halves: Vec<u8> =
        channels.iter().flat_map(|scale| ((scale.to_bits() >> 16) as u16).to_le_bytes()).collect();
    let blocks = [0.5, 1.5, 2.5, 3.5, 4.5, 5.5];
    let strategy = |strategy: &str, structure: &str| {
        format!(
            r#"{{"quantization_config":{{"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{{"group_0":{{"weights":
                {{"num_bits":8,"type":"float","strategy":"{strategy}","block_structure":{structure}}}}}}}}}}}"#
        )
    };
    let (tensor, channel) = (strategy("tensor", "null"), strategy("channel", "null"));
    let block = strategy("block", "[16, 16]");
    let fp8 = |settings: &str| format!(r#"{{"quantization_config":{{"quant_method":"fp8"{settings}}}}}"#);
    let (plain, none) = (fp8(r#","weight_block_size":null,"activation_scheme":"static""#), "{}".to_owned());
    let small = fp8(r#","weight_block_size":[16,16]"#);
    let modelopt =
        r#"{"quantization_config":{"quant_method":"modelopt","quant_algo":"FP8_PB_WO"}}"#.to_owned();
    let one = floats(&[0.75]);
    let cases: [ScaleCase<'_>; 10] = [
        (&tensor, "a.weight_scale", F32, &[], one.clone(), ScaleGrid::Matrix),
        (&none, "a.weight_scale", F32, &[1], one.clone(), ScaleGrid::Matrix),
        (&plain, "a.weight_scale_inv", F32, &[], one.clone(), ScaleGrid::Matrix),
        (&plain, "a.weight_scale_inv", F32, &[1, 1], one.clone(), ScaleGrid::Matrix),
        (&modelopt, "a.weight_scale", F32, &[1, 1, 1, 1], one, ScaleGrid::Matrix),
        (&channel, "a.weight_scale", BF16, &[ROWS, 1], halves, ScaleGrid::Rows),
        (&none, "a.weight_scale", F32, &[ROWS], floats(&channels), ScaleGrid::Rows),
        (&block, "a.weight_scale", F32, &[2, 3], floats(&blocks), ScaleGrid::Blocks { rows: 16, cols: 16 }),
        (
            &small,
            "a.weight_scale_inv",
            F32,
            &[2, 3],
            floats(&blocks),
            ScaleGrid::Blocks { rows: 16, cols: 16 },
        ),
        (
            &small,
            "a.weight_scale_inv",
            F32,
            &[2, 1, 3, 1],
            floats(&blocks),
            ScaleGrid::Blocks { rows: 16, cols: 16 },
        ),
    ];
    for (config, name, ty, shape, bytes, grid) in cases {
        let folder = folder(config, &with(name, ty, shape, bytes));
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(scales(&checkpoint).grid, grid, "{name} {shape:?}");
        let found = elements(&checkpoint);
        for (i, code) in codes().into_iter().enumerate() {
            let (row, col) = (i / COLS, i % COLS);
            let scale = match grid {
                ScaleGrid::Matrix => 0.75,
                ScaleGrid::Rows => channels[row],
                ScaleGrid::Blocks { .. } => blocks[row / 16 * 3 + col / 16],
            };
            assert_eq!(found[i], e4m3(code) * scale, "{name} {shape:?}: element {i}");
        }
        // The header alone has the same names and shapes.
        let outline = Outline::open(folder.path()).unwrap();
        let CheckpointSource::HuggingFace(source) = outline.source() else { panic!("a folder") };
        assert!(matches!(announced_type(source), Ok(None | Some(F8_E4M3))), "{config}");
        assert_eq!(
            outline.tensor("a.weight_scale_inv").unwrap().shape,
            checkpoint.info("a.weight_scale_inv").unwrap().shape
        );
    }
}

#[test]
fn stacked_experts_have_a_scale_each() {
    let tensors = vec![
        ("e.gate_up_proj", F8_E4M3, vec![2, 16, 16], vec![0x38; 512]),
        ("e.gate_up_proj_scale_inv", F32, vec![2, 1, 1], floats(&[0.5, 2.0])),
        ("e.down_proj", F8_E4M3, vec![2, 16, 16], vec![0x38; 512]),
        ("e.down_proj_scale_inv", F32, vec![2, 16, 1], floats(&[0.5; 32])),
    ];
    let folder = folder("{}", &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let of = |name: &str| checkpoint.scales(name, F8_E4M3, [2, 16, 16]).unwrap().unwrap();
    assert_eq!(
        of("e.gate_up_proj_scale_inv"),
        ScaleTable { numbers: vec![0.5, 2.0], grid: ScaleGrid::Matrix }
    );
    assert_eq!(of("e.down_proj_scale_inv").grid, ScaleGrid::Rows);
}

#[test]
fn e5m2_becomes_f16_code_by_code() {
    let all: Vec<u8> = (0..=255).collect();
    let tensors =
        vec![("a.weight", F8_E5M2, vec![16, 16], all), ("a.weight_scale", F32, vec![], floats(&[0.125]))];
    let config = r#"{"quantization_config":{"quant_method":"fp8","fmt":"e5m2"}}"#;
    let folder = folder(config, &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let info = checkpoint.info("a.weight").unwrap();
    assert_eq!((info.ty, info.bytes, info.is_stored()), (F16, 512, false));
    let rows = checkpoint.rows("a.weight").unwrap().unwrap();
    for (code, half) in rows.bytes(0..16).chunks_exact(2).enumerate() {
        // Sign, five exponent bits and two mantissa bits are the upper byte of an f16.
        assert_eq!((half[0], usize::from(half[1])), (0, code));
    }
    assert_eq!(rows.bytes(3..5).len(), 64);
    let outline = Outline::open(folder.path()).unwrap();
    assert_eq!(
        (outline.tensor("a.weight").unwrap().ty, outline.tensor("a.weight").unwrap().bytes),
        (F16, 512)
    );
    let CheckpointSource::HuggingFace(source) = outline.source() else { panic!("a folder") };
    assert_eq!(announced_type(source), Ok(Some(F16)));
}

#[test]
fn missing_misshapen_and_nan_scales_are_errors() {
    #[track_caller]
    fn refused(tensors: &Fp8Tensors, parts: &[&str]) {
        let folder = folder("{}", tensors);
        let opened = Checkpoint::open(folder.path());
        says(opened.and_then(|file| file.scales("a.weight_scale_inv", F8_E4M3, [1, ROWS, COLS])), parts);
    }
    let alone = with("b", F32, &[1], floats(&[1.0]));
    refused(&alone, &["FP8 tensor a.weight lacks its scales a.weight_scale_inv"]);
    let mut both = with("a.weight_scale", F32, &[1], floats(&[1.0]));
    both.push(("a.weight_scale_inv", F32, vec![1], floats(&[1.0])));
    refused(&both, &["a.weight has both a.weight_scale_inv and a.weight_scale"]);
    for count in [ROWS - 1, ROWS + 1] {
        let short = with("a.weight_scale_inv", F32, &[count, 1], floats(&vec![1.0; count]));
        refused(&short, &["a.weight_scale_inv has shape", "expected [1, 1] for a.weight of [20, 33]"]);
    }
    let flat =
        vec![("a.weight", F8_E4M3, vec![4], vec![0; 4]), ("a.weight_scale_inv", F32, vec![], floats(&[1.0]))];
    refused(&flat, &["only matrices can have scales"]);
    refused(&with("a.weight_scale_inv", I8, &[1], vec![1]), &["scales of I8"]);
    for (bad, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let mut numbers = vec![1.0; ROWS];
        numbers[7] = bad;
        let tensors = with("a.weight_scale", F32, &[ROWS, 1], floats(&numbers));
        refused(&tensors, &["a.weight_scale_inv: scale 7 is", shown, "a finite number"]);
    }
}

/// ModelOpt's NVFP4: 64 codes per output, an E4M3 scale per 16 codes, and an F32 factor.
fn nvfp4(scale: u8, global: f32) -> Fp8Tensors {
    vec![
        ("a.weight", I8, vec![1, 32], (0..32).map(|i| i * 7).collect()),
        ("a.weight_scale", F8_E4M3, vec![1, 4], vec![0x38, 0x40, scale, 0x30]),
        ("a.weight_scale_2", F32, vec![], floats(&[global])),
        ("a.input_scale", F32, vec![], floats(&[0.5])),
    ]
}

#[test]
fn nvfp4_of_modelopt_has_a_factor() {
    for config in [
        r#"{"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4"}}"#,
        // Older versions have the settings in hf_quant_config.json.
        "{}",
    ] {
        let folder = folder(config, &nvfp4(0x38, 0.25));
        if config == "{}" {
            let text = json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}});
            std::fs::write(folder.path().join("hf_quant_config.json"), text.to_string()).unwrap();
        }
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let names: Vec<&str> = checkpoint.tensors().iter().map(|info| info.name.as_str()).collect();
        assert_eq!(names, ["a.weight", "a.weight_scale_inv"]);
        let block = checkpoint.rows("a.weight").unwrap().unwrap().bytes(0..1).into_owned();
        assert_eq!(block[..4], [0x38, 0x40, 0x38, 0x30]);
        // A byte of a block contains codes i and i + 8 of sixteen, a byte of the file codes 2i and
        // 2i + 1.
        let code = |i: usize| ((i as u8 / 2 * 7) >> (4 * (i % 2))) & 15;
        for (group, bytes) in block[4..].chunks_exact(8).enumerate() {
            for (i, byte) in bytes.iter().enumerate() {
                let at = group * 16 + i;
                assert_eq!(*byte, code(at) | code(at + 8) << 4, "byte {i} of group {group}");
            }
        }
        let factor = checkpoint.scales("a.weight_scale_inv", NVFP4, [1, 1, 64]).unwrap().unwrap();
        assert_eq!(factor, ScaleTable { numbers: vec![0.25], grid: ScaleGrid::Matrix });
        let CheckpointSource::HuggingFace(source) = checkpoint.source() else { panic!("a folder") };
        assert_eq!(announced_type(source), Ok(Some(NVFP4)));
    }
    #[track_caller]
    fn refused(tensors: Fp8Tensors, parts: &[&str]) {
        let folder = folder("{}", &tensors);
        let opened = Checkpoint::open(folder.path());
        says(
            opened.and_then(|file| {
                file.rows("a.weight").map(drop).and_then(|()| file.rows("a.weight_scale_inv").map(drop))
            }),
            parts,
        );
    }
    refused(nvfp4(0x7f, 1.0), &["a.weight_scale: scale 2 is the code 0x7f"]);
    refused(nvfp4(0x38, f32::NAN), &["a.weight_scale_2: scale 0 is NaN, expected a positive number"]);
    let mut short = nvfp4(0x38, 1.0);
    short[1] = ("a.weight_scale", F8_E4M3, vec![1, 3], vec![0x38; 3]);
    refused(short, &["a.weight_scale has shape [1, 3], expected [1, 4] for a.weight of [1, 32]"]);
    let mut alone = nvfp4(0x38, 1.0);
    alone.remove(1);
    refused(alone, &["a.weight has no a.weight_scale"]);
    let mut floats = nvfp4(0x38, 1.0);
    floats[0] = ("a.weight", F32, vec![1, 8], vec![0; 32]);
    refused(floats, &["a.weight is F32, expected U8"]);
    let mut odd = nvfp4(0x38, 1.0);
    odd[0] = ("a.weight", I8, vec![1, 24], vec![0; 24]);
    refused(odd, &["48 inputs are not a multiple of 64"]);
}

/// A params.json like that of Mistral Large 3.
fn params() -> serde_json::Value {
    json!({
        "dim": 32, "n_layers": 2, "head_dim": 24, "hidden_dim": 64, "n_heads": 2, "n_kv_heads": 2, "rope_theta": 10000.0,
        "norm_eps": 1e-6, "vocab_size": 64, "tied_embeddings": false, "max_position_embeddings": 294_912,
        "llama_4_scaling": {"original_max_position_embeddings": 8192, "beta": 0.1},
        "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "kv_lora_rank": 16, "v_head_dim": 16,
        "quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"},
        "yarn": {"original_max_position_embeddings": 8192, "factor": 36, "apply_scale": false, "beta": 32, "alpha": 1},
        "moe": {"expert_parallel": 1, "expert_model_parallel": 1, "route_every_n": 1, "first_k_dense_replace": 1, "num_experts": 4,
            "num_experts_per_tok": 2, "num_expert_groups": 1, "num_expert_groups_per_tok": 1, "routed_scale": 1.0,
            "expert_hidden_dim": 16, "num_shared_experts": 1},
        "vision_encoder": {"hidden_size": 8}
    })
}

#[test]
fn a_mistral_folder_is_read_like_a_hugging_face_folder() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = |name| (name, F8_E4M3, vec![4, 4], vec![0x38; 16]);
    let plain = |name| (name, BF16, vec![2], vec![0; 4]);
    let mut tensors = vec![
        plain("tok_embeddings.weight"),
        plain("norm.weight"),
        plain("output.weight"),
        plain("layers.1.attention_norm.weight"),
        plain("layers.1.ffn_norm.weight"),
        plain("layers.1.attention.q_a_norm.weight"),
        plain("layers.1.attention.kv_a_norm.weight"),
        plain("layers.1.gate.weight"),
        plain("layers.1.attention.k_fake_quantizer.qscale_act"),
        plain("vision_encoder.patch_conv.weight"),
        plain("patch_merger.merging_layer.weight"),
    ];
    let matrices = [
        [
            "layers.0.feed_forward.w1.weight",
            "layers.0.feed_forward.w1.qscale_weight",
            "layers.0.feed_forward.w1.qscale_act",
        ],
        [
            "layers.1.attention.wkv_a_with_mqa.weight",
            "layers.1.attention.wkv_a_with_mqa.qscale_weight",
            "layers.1.attention.wkv_a_with_mqa.qscale_act",
        ],
        [
            "layers.1.experts.3.w2.weight",
            "layers.1.experts.3.w2.qscale_weight",
            "layers.1.experts.3.w2.qscale_act",
        ],
        [
            "layers.1.shared_experts.w3.weight",
            "layers.1.shared_experts.w3.qscale_weight",
            "layers.1.shared_experts.w3.qscale_act",
        ],
    ];
    for [weight, scale, input] in matrices {
        tensors.push(matrix(weight));
        tensors.push((scale, F32, vec![], floats(&[0.5])));
        tensors.push((input, F32, vec![], floats(&[2.0])));
    }
    let name = "consolidated-00001-of-00001.safetensors";
    std::fs::write(folder.path().join(name), weights(&tensors)).unwrap();
    let map: serde_json::Map<_, _> =
        tensors.iter().map(|tensor| (tensor.0.to_owned(), json!(name))).collect();
    let index = folder.path().join("consolidated.safetensors.index.json");
    std::fs::write(&index, json!({"weight_map": map}).to_string()).unwrap();
    std::fs::write(folder.path().join("params.json"), params().to_string()).unwrap();
    std::fs::write(folder.path().join("tekken.json"), "{}").unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let names: Vec<&str> = checkpoint.tensors().iter().map(|info| info.name.as_str()).collect();
    let expected = [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.1.post_attention_layernorm.weight",
        "model.layers.1.self_attn.q_a_layernorm.weight",
        "model.layers.1.self_attn.kv_a_layernorm.weight",
        "model.layers.1.mlp.gate.weight",
        "model.layers.1.self_attn.k_scale",
        "vision_tower.patch_conv.weight",
        "multi_modal_projector.patch_merger.merging_layer.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.gate_proj.weight_scale_inv",
        "model.layers.0.mlp.gate_proj.input_scale",
        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight_scale_inv",
        "model.layers.1.self_attn.kv_a_proj_with_mqa.input_scale",
        "model.layers.1.mlp.experts.3.down_proj.weight",
        "model.layers.1.mlp.experts.3.down_proj.weight_scale_inv",
        "model.layers.1.mlp.experts.3.down_proj.input_scale",
        "model.layers.1.mlp.shared_experts.up_proj.weight",
        "model.layers.1.mlp.shared_experts.up_proj.weight_scale_inv",
        "model.layers.1.mlp.shared_experts.up_proj.input_scale",
    ];
    assert_eq!(names, expected);
    let CheckpointSource::HuggingFace(source) = checkpoint.source() else { panic!("a folder") };
    assert_eq!((source.config_file(), announced_type(source)), ("params.json", Ok(Some(F8_E4M3))));
    let config = serde_json::Value::Object(source.config.clone());
    for (key, value) in [
        ("model_type", json!("deepseek_v3")),
        ("hidden_size", json!(32)),
        ("num_hidden_layers", json!(2)),
        ("intermediate_size", json!(64)),
        ("moe_intermediate_size", json!(16)),
        ("n_routed_experts", json!(4)),
        ("n_group", json!(1)),
        ("first_k_dense_replace", json!(1)),
        ("scoring_func", json!("softmax")),
        ("max_position_embeddings", json!(294_912)),
    ] {
        assert_eq!(config[key], value, "{key}");
    }
    assert_eq!(config["rope_scaling"]["apply_yarn_scaling"], json!(false));
    assert_eq!(config["rope_scaling"]["beta_fast"], json!(32));
    // The same for the file alone, with any name.
    let alone = folder.path().join("other.json");
    std::fs::write(&alone, params().to_string()).unwrap();
    for path in [alone, folder.path().join("params.json")] {
        let outline = Outline::open(&path).unwrap();
        let CheckpointSource::HuggingFace(of_file) = outline.source() else { panic!("a folder") };
        assert_eq!((&of_file.config, outline.refusal().is_none()), (&source.config, true));
    }
    // An unknown format is named in the error.
    let mut other = params();
    other["quantization"]["qformat_weight"] = json!("fp6_e3m2");
    std::fs::write(folder.path().join("params.json"), other.to_string()).unwrap();
    says(Checkpoint::open(folder.path()), &["quant_method \"mistral fp6_e3m2\" is not supported"]);
    // A missing file of the index.
    std::fs::write(folder.path().join("params.json"), params().to_string()).unwrap();
    std::fs::remove_file(folder.path().join(name)).unwrap();
    says(Checkpoint::open(folder.path()), &["consolidated.safetensors.index.json", name]);
}
