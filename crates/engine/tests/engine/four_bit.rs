//! GPTQ, AWQ and compressed-tensors checkpoints give the logits of the same weights in f32, on both
//! backends and from packed files.

use crate::support::{all_logits, bits, checkpoint, engine, error};
use latent_engine::{Engine, EngineOptions};
use latent_formats::Checkpoint;
use latent_graph::passes::{CacheForm, FORMS, MlaChoice, Precision};
use latent_testing::{FourBitLayout, FourBitRecipe, Fp8Scale, ModelRecipe, RandomWeightTypes};
use latent_types::TensorType;
use std::path::Path;
use std::sync::Arc;

const TOKENS: [u32; 9] = [256, 5, 99, 300, 7, 7, 42, 511, 0];

fn options(mla: MlaChoice, form: CacheForm, precision: Precision) -> EngineOptions {
    EngineOptions { mla, form, precision, context: Some(128), threads: Some(1), ..EngineOptions::default() }
}

fn exact() -> EngineOptions {
    options(MlaChoice::Auto, CacheForm::Latent, Precision::Exact)
}

fn logits(file: &Arc<Checkpoint>, options: &EngineOptions) -> Vec<Vec<f32>> {
    all_logits(&mut engine(file, options), &TOKENS, 4)
}

fn worst(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    a.iter().zip(b).map(|(a, b)| error(a, b)).fold(0.0, f64::max)
}

/// The model with packed weights, and its copy in f32.
fn written(folder: &Path, shape: &str, form: &FourBitRecipe) -> (Arc<Checkpoint>, Arc<Checkpoint>) {
    let recipe =
        ModelRecipe { layers: Some(2), ..ModelRecipe::new(shape, RandomWeightTypes::from(TensorType::F32)) };
    let (packed, plain) = (folder.join("packed"), folder.join("plain"));
    recipe.write_four_bit(form, &packed, &plain).unwrap();
    (checkpoint(&packed), checkpoint(&plain))
}

fn type_of(file: &Checkpoint, name: &str) -> TensorType {
    file.info(&format!("model.layers.1.{name}.weight")).unwrap().ty
}

/// Maximum relative square error of the logits if the blocks hold the weights exactly: that of
/// other orders of sums in f32.
const SAME: f64 = 1e-10;
/// The same if the weights are rounded to the 11 bits of f16.
const ROUNDED: f64 = 1e-5;

fn check(shape: &str, form: &FourBitRecipe, shown: TensorType, bound: f64) {
    let folder = tempfile::tempdir().unwrap();
    let (packed, plain) = written(folder.path(), shape, form);
    let what = format!("{shape} {form:?}");
    assert_eq!(type_of(&packed, "self_attn.o_proj"), shown, "{what}");
    assert_eq!(type_of(&packed, "self_attn.kv_b_proj"), shown, "{what}");
    assert_eq!(packed.info("lm_head.weight").unwrap().ty, TensorType::F32, "{what}");
    let truth = logits(&plain, &exact());
    assert!(truth.iter().flatten().all(|logit| logit.is_finite()), "{what}");
    for (mla, form) in FORMS {
        let found = logits(&packed, &options(mla, form, Precision::Exact));
        assert!(worst(&found, &truth) <= bound, "{what} {mla} {form:?}: {:e}", worst(&found, &truth));
    }
    let mut reference =
        Engine::load(&*latent_backends::reference(), &packed, &exact(), &mut |_, _| {}).unwrap();
    let found = all_logits(&mut reference, &TOKENS, 4);
    assert!(worst(&found, &truth) <= bound, "{what}, reference: {:e}", worst(&found, &truth));
    let fast = logits(&packed, &options(MlaChoice::Auto, CacheForm::Latent, Precision::Default));
    let mut errors: Vec<f64> = fast.iter().zip(&truth).map(|(a, b)| error(a, b)).collect();
    errors.sort_by(f64::total_cmp);
    assert!(errors[errors.len() / 2] < 3e-2, "{what}: default precision {errors:?}");
}

#[test]
fn symmetric_integers_run_as_q4_0() {
    for layout in [FourBitLayout::Gptq, FourBitLayout::GptqV2, FourBitLayout::PackQuantized] {
        check("tiny-v3", &FourBitRecipe::new(layout, true), TensorType::Q4_0, SAME);
    }
    let larger = FourBitRecipe { group: Some(128), ..FourBitRecipe::new(FourBitLayout::Gptq, true) };
    check("tiny-dense", &larger, TensorType::Q4_0, SAME);
    let whole_rows = FourBitRecipe { group: None, ..FourBitRecipe::new(FourBitLayout::PackQuantized, true) };
    check("tiny-v2", &whole_rows, TensorType::Q4_0, SAME);
}

#[test]
fn integers_with_zero_points_run_as_q5_0() {
    for layout in
        [FourBitLayout::Gptq, FourBitLayout::GptqV2, FourBitLayout::Awq, FourBitLayout::PackQuantized]
    {
        check("tiny-v3", &FourBitRecipe::new(layout, false), TensorType::Q5_0, SAME);
    }
    let larger = FourBitRecipe { group: Some(128), ..FourBitRecipe::new(FourBitLayout::Awq, false) };
    check("tiny-glm", &larger, TensorType::Q5_0, SAME);
}

#[test]
fn inputs_in_another_order_and_odd_groups_run_as_f16() {
    for layout in [FourBitLayout::Gptq, FourBitLayout::PackQuantized] {
        for symmetric in [true, false] {
            let form = FourBitRecipe { ordered: true, ..FourBitRecipe::new(layout, symmetric) };
            check("tiny-v3", &form, TensorType::F16, ROUNDED);
        }
    }
    let small = FourBitRecipe { group: Some(16), ..FourBitRecipe::new(FourBitLayout::Awq, false) };
    check("tiny-dense", &small, TensorType::F16, ROUNDED);
}

#[test]
fn scales_of_other_types_keep_their_values() {
    let bf16 =
        FourBitRecipe { scales: TensorType::BF16, ..FourBitRecipe::new(FourBitLayout::PackQuantized, true) };
    check("tiny-v3", &bf16, TensorType::Q4_0, SAME);
    // The scales are rounded to the 11 bits of f16.
    let f32 =
        FourBitRecipe { scales: TensorType::F32, ..FourBitRecipe::new(FourBitLayout::PackQuantized, false) };
    check("tiny-v2", &f32, TensorType::Q5_0, ROUNDED);
}

#[test]
fn four_bit_floats_run_unchanged() {
    check("tiny-v3", &FourBitRecipe::new(FourBitLayout::Nvfp4, true), TensorType::NVFP4, SAME);
    check("tiny-v3", &FourBitRecipe::new(FourBitLayout::Mxfp4, true), TensorType::MXFP4, SAME);
    check("tiny-v3", &FourBitRecipe::new(FourBitLayout::ModelOpt, true), TensorType::NVFP4, SAME);
}

#[test]
fn fp8_runs_unchanged_with_a_scale_per_tensor_output_or_block() {
    for scale in [Fp8Scale::Tensor, Fp8Scale::Channel, Fp8Scale::Block] {
        let form = FourBitRecipe::new(FourBitLayout::Fp8(scale), true);
        check("tiny-v3", &form, TensorType::F8_E4M3, SAME);
    }
    let form = FourBitRecipe::new(FourBitLayout::Fp8(Fp8Scale::Channel), true);
    check("tiny-glm", &form, TensorType::F8_E4M3, SAME);
    for scale in [Fp8Scale::Tensor, Fp8Scale::Channel, Fp8Scale::Block] {
        check("tiny-v3", &FourBitRecipe::new(FourBitLayout::E5m2(scale), true), TensorType::F16, SAME);
    }
}

#[test]
fn only_experts_are_packed_as_in_kimi_k2_5() {
    let ignored = &["self_attn", "shared_experts", "layers.0.mlp"];
    let form = FourBitRecipe {
        scales: TensorType::BF16,
        ignored,
        ..FourBitRecipe::new(FourBitLayout::PackQuantized, true)
    };
    let folder = tempfile::tempdir().unwrap();
    let (packed, plain) = written(folder.path(), "tiny-v3", &form);
    assert_eq!(type_of(&packed, "self_attn.kv_b_proj"), TensorType::F32);
    assert_eq!(type_of(&packed, "mlp.shared_experts.up_proj"), TensorType::F32);
    assert_eq!(type_of(&packed, "mlp.experts.3.down_proj"), TensorType::Q4_0);
    assert!(worst(&logits(&packed, &exact()), &logits(&plain, &exact())) <= SAME);
}

#[test]
fn a_packed_file_gives_the_same_bits() {
    let forms = [
        FourBitRecipe { scales: TensorType::BF16, ..FourBitRecipe::new(FourBitLayout::PackQuantized, true) },
        FourBitRecipe { ordered: true, ..FourBitRecipe::new(FourBitLayout::Gptq, false) },
        FourBitRecipe::new(FourBitLayout::Nvfp4, true),
        FourBitRecipe::new(FourBitLayout::ModelOpt, true),
        FourBitRecipe::new(FourBitLayout::Fp8(Fp8Scale::Channel), true),
        FourBitRecipe::new(FourBitLayout::E5m2(Fp8Scale::Tensor), true),
    ];
    for form in forms {
        let folder = tempfile::tempdir().unwrap();
        let (packed, _) = written(folder.path(), "tiny-v3", &form);
        let out = folder.path().join("model.latent");
        latent_backends::pack(&packed, &out, Some(2), &mut |_, _| true).unwrap();
        let file = checkpoint(&out);
        assert_eq!(file.fingerprint(), packed.fingerprint());
        for precision in [Precision::Exact, Precision::Default] {
            let options = options(MlaChoice::Auto, CacheForm::Latent, precision);
            assert_eq!(bits(&logits(&file, &options)), bits(&logits(&packed, &options)), "{form:?}");
        }
    }
}

/// Parts of tensor names in Hugging Face folders, with those in Mistral's own folders.
const MISTRAL_NAMES: [(&str, &str); 18] = [
    ("model.embed_tokens.", "tok_embeddings."),
    ("model.norm.", "norm."),
    ("lm_head.", "output."),
    ("model.layers.", "layers."),
    (".input_layernorm.", ".attention_norm."),
    (".post_attention_layernorm.", ".ffn_norm."),
    (".self_attn.q_a_proj.", ".attention.wq_a."),
    (".self_attn.q_a_layernorm.", ".attention.q_a_norm."),
    (".self_attn.q_b_proj.", ".attention.wq_b."),
    (".self_attn.kv_a_proj_with_mqa.", ".attention.wkv_a_with_mqa."),
    (".self_attn.kv_a_layernorm.", ".attention.kv_a_norm."),
    (".self_attn.kv_b_proj.", ".attention.wkv_b."),
    (".self_attn.o_proj.", ".attention.wo."),
    (".gate_proj.", ".w1."),
    (".down_proj.", ".w2."),
    (".up_proj.", ".w3."),
    (".weight_scale", ".qscale_weight"),
    (".input_scale", ".qscale_act"),
];

/// Writes the folder as Mistral publishes models: with params.json and Mistral's tensor names.
fn as_mistral(from: &Path, to: &Path) {
    use latent_formats::safetensors::{Header, Writer};
    use serde_json::{Value, json};
    std::fs::create_dir(to).unwrap();
    let file = std::fs::read(from.join("model.safetensors")).unwrap();
    let header = Header::parse(&file, file.len() as u64).unwrap();
    let mut writer = Writer::new();
    for tensor in &header.tensors {
        let mut name =
            MISTRAL_NAMES.iter().fold(tensor.name.clone(), |name, (ours, theirs)| name.replace(ours, theirs));
        // The MLP of a dense layer has a prefix in its names, and the experts have none.
        let dense = |name: &str| ["w1", "w2", "w3"].iter().any(|end| name.contains(&format!(".mlp.{end}.")));
        name =
            if dense(&name) { name.replace(".mlp.", ".feed_forward.") } else { name.replace(".mlp.", ".") };
        writer.tensor(name, tensor.ty, &tensor.shape).unwrap();
    }
    let mut out = Vec::new();
    let bytes = |i: usize| {
        let tensor = &header.tensors[i];
        &file[tensor.start as usize..(tensor.start + tensor.bytes) as usize]
    };
    writer.write(&mut out, |i, out| out.write_all(bytes(i))).unwrap();
    std::fs::write(to.join("consolidated.safetensors"), out).unwrap();
    let config: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    let rope = &config["rope_scaling"];
    let params = json!({
        "dim": config["hidden_size"], "n_layers": config["num_hidden_layers"], "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_attention_heads"], "hidden_dim": config["intermediate_size"],
        "norm_eps": config["rms_norm_eps"], "vocab_size": config["vocab_size"], "rope_theta": config["rope_theta"],
        "max_position_embeddings": config["max_position_embeddings"], "q_lora_rank": config["q_lora_rank"],
        "kv_lora_rank": config["kv_lora_rank"], "qk_nope_head_dim": config["qk_nope_head_dim"],
        "qk_rope_head_dim": config["qk_rope_head_dim"], "v_head_dim": config["v_head_dim"],
        "tied_embeddings": config["tie_word_embeddings"],
        "quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"},
        "yarn": {"factor": rope["factor"], "beta": 32, "alpha": 1,
            "original_max_position_embeddings": rope["original_max_position_embeddings"]},
        "llama_4_scaling": {"beta": rope["llama_4_scaling_beta"],
            "original_max_position_embeddings": rope["original_max_position_embeddings"]},
        "moe": {"num_experts": config["n_routed_experts"], "num_experts_per_tok": config["num_experts_per_tok"],
            "expert_hidden_dim": config["moe_intermediate_size"], "num_shared_experts": config["n_shared_experts"],
            "first_k_dense_replace": config["first_k_dense_replace"], "routed_scale": config["routed_scaling_factor"]},
    });
    std::fs::write(to.join("params.json"), params.to_string()).unwrap();
}

#[test]
fn a_mistral_folder_gives_the_bits_of_the_hugging_face_folder() {
    let folder = tempfile::tempdir().unwrap();
    let form = FourBitRecipe::new(FourBitLayout::Fp8(Fp8Scale::Tensor), true);
    let (packed, plain) = written(folder.path(), "tiny-mistral4", &form);
    let own = folder.path().join("mistral");
    as_mistral(&folder.path().join("packed"), &own);
    let own = checkpoint(&own);
    let found = logits(&own, &exact());
    assert!(bits(&found) == bits(&logits(&packed, &exact())));
    assert!(worst(&found, &logits(&plain, &exact())) <= SAME);
}
