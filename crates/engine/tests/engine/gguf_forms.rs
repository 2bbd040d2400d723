//! Fixtures of transformers, written as GGUF files with the keys and names of llama.cpp's
//! converter, give the same logits.

use crate::support::{all_logits, bits, checkpoint, engine, error, fixture, folder};
use latent_engine::{DenseAttention, Engine, EngineOptions, SparseAttention};
use latent_formats::gguf::{Writer, WriterValue};
use latent_formats::{Checkpoint, CheckpointSource, OutputFile};
use latent_graph::circuit::KvHalf;
use latent_graph::config::{KvForm, Temperature};
use latent_graph::passes::{CacheForm, MlaChoice, Precision};
use latent_graph::{CheckpointTensors, Circuit, ModelConfig, Stage};
use latent_testing::{ModelRecipe, RandomWeightTypes};
use latent_types::TensorType;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const CASES: [(&str, &str); 3] =
    [("glm-dsa", "glm-dsa"), ("deepseek32", "deepseek32"), ("mistral4", "mistral4")];

const TOKENS: [u32; 9] = [256, 5, 99, 300, 7, 7, 42, 511, 0];

/// The shape of a tensor, outermost dimension first, and its elements.
type FloatTensor = (Vec<usize>, Vec<f32>);

/// Names within a layer, in safetensors and in GGUF.
const NAMES: [(&str, &str); 23] = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.q_a_proj.weight", "attn_q_a.weight"),
    ("self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"),
    ("self_attn.q_b_proj.weight", "attn_q_b.weight"),
    ("self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"),
    ("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"),
    ("self_attn.indexer.wk.weight", "indexer.attn_k.weight"),
    ("self_attn.indexer.k_norm.weight", "indexer.k_norm.weight"),
    ("self_attn.indexer.k_norm.bias", "indexer.k_norm.bias"),
    ("self_attn.indexer.weights_proj.weight", "indexer.proj.weight"),
    ("post_attention_layernorm.weight", "ffn_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("mlp.gate.weight", "ffn_gate_inp.weight"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"),
    ("mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
    ("mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
    ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    ("mlp.experts.down_proj", "ffn_down_exps.weight"),
];

/// The tensors of a folder.
fn tensors(checkpoint: &Checkpoint) -> BTreeMap<String, FloatTensor> {
    let numbers = |ty: TensorType, data: &[u8]| -> Vec<f32> {
        match ty {
            TensorType::F32 => {
                data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            TensorType::BF16 => {
                data.chunks_exact(2).map(|b| f32::from_le_bytes([0, 0, b[0], b[1]])).collect()
            }
            other => panic!("{other} in a fixture"),
        }
    };
    let tensor_names = CheckpointTensors(checkpoint);
    let names = latent_graph::circuit::TensorIndex::all(&tensor_names);
    let all = names.iter().map(|(name, ..)| {
        let tensor = checkpoint.tensor(name).unwrap();
        ((*name).to_owned(), (tensor.info.shape.clone(), numbers(tensor.info.ty, tensor.data)))
    });
    all.collect()
}

/// The tensors with the names of GGUF, stacked experts, and separate W_UK and W_UV.
fn renamed(folder: &BTreeMap<String, FloatTensor>, config: &ModelConfig) -> BTreeMap<String, FloatTensor> {
    let mut made = BTreeMap::new();
    for (name, tensor) in folder {
        let whole = match name.as_str() {
            "model.embed_tokens.weight" => Some("token_embd.weight"),
            "model.norm.weight" => Some("output_norm.weight"),
            "lm_head.weight" => Some("output.weight"),
            _ => None,
        };
        if let Some(whole) = whole {
            made.insert(whole.to_owned(), tensor.clone());
            continue;
        }
        let (layer, rest) = name.strip_prefix("model.layers.").unwrap().split_once('.').unwrap();
        if rest == "self_attn.kv_b_proj.weight" {
            let (k_b, v_b) = halves(tensor, config);
            made.insert(format!("blk.{layer}.attn_k_b.weight"), k_b);
            made.insert(format!("blk.{layer}.attn_v_b.weight"), v_b);
        } else if let Some((_, gguf)) = NAMES.iter().find(|(hf, _)| *hf == rest) {
            made.insert(format!("blk.{layer}.{gguf}"), tensor.clone());
        } else if let Some(part) = rest.strip_prefix("mlp.experts.0.") {
            let word = part.strip_suffix("_proj.weight").unwrap();
            made.insert(format!("blk.{layer}.ffn_{word}_exps.weight"), stack(folder, name, tensor, config));
        } else {
            assert!(rest.starts_with("mlp.experts."), "{name} has no name in GGUF");
        }
    }
    made
}

/// One stacked tensor of all experts, found by the name of the first.
fn stack(
    folder: &BTreeMap<String, FloatTensor>,
    first: &str,
    (shape, _): &FloatTensor,
    config: &ModelConfig,
) -> FloatTensor {
    let experts = config.moe.unwrap().experts;
    let of = |expert: usize| &folder[&first.replace(".experts.0.", &format!(".experts.{expert}."))].1;
    let numbers = (0..experts).flat_map(|expert| of(expert).iter().copied()).collect();
    ([&[experts], &shape[..]].concat(), numbers)
}

/// `attn_k_b` [heads, kv_lora, nope], transposed, and `attn_v_b` [heads, v, kv_lora] of a combined
/// expansion.
fn halves((_, both): &FloatTensor, config: &ModelConfig) -> (FloatTensor, FloatTensor) {
    let a = config.attention;
    let (heads, latent, nope, v) = (a.heads, a.kv_lora_rank, a.nope, a.v);
    let (mut k_b, mut v_b) = (Vec::new(), Vec::new());
    for head in both.chunks_exact((nope + v) * latent) {
        for l in 0..latent {
            k_b.extend((0..nope).map(|n| head[n * latent + l]));
        }
        v_b.extend_from_slice(&head[nope * latent..]);
    }
    ((vec![heads, latent, nope], k_b), (vec![heads, v, latent], v_b))
}

/// Writes the metadata that converters derive from a config.json.
fn keys(writer: &mut Writer, architecture: &str, config: &serde_json::Map<String, Value>) {
    let int = |key: &str| config[key].as_u64().unwrap() as u32;
    let real = |value: &Value| WriterValue::F32(value.as_f64().unwrap() as f32);
    writer.key("general.architecture", WriterValue::String(architecture.to_owned()));
    let mut put = |key: &str, value: WriterValue| {
        writer.key(format!("{architecture}.{key}"), value);
    };
    let latent = int("kv_lora_rank");
    for (key, value) in [
        ("block_count", int("num_hidden_layers")),
        ("context_length", int("max_position_embeddings")),
        ("embedding_length", int("hidden_size")),
        ("feed_forward_length", int("intermediate_size")),
        ("attention.head_count", int("num_attention_heads")),
        ("attention.head_count_kv", 1),
        ("attention.q_lora_rank", int("q_lora_rank")),
        ("attention.kv_lora_rank", latent),
        ("attention.key_length", latent + int("qk_rope_head_dim")),
        ("attention.value_length", latent),
        ("attention.key_length_mla", int("qk_nope_head_dim") + int("qk_rope_head_dim")),
        ("attention.value_length_mla", int("v_head_dim")),
        ("rope.dimension_count", int("qk_rope_head_dim")),
        ("vocab_size", int("vocab_size")),
        ("leading_dense_block_count", int("first_k_dense_replace")),
        ("expert_count", int("n_routed_experts")),
        ("expert_used_count", int("num_experts_per_tok")),
        ("expert_shared_count", int("n_shared_experts")),
        ("expert_feed_forward_length", int("moe_intermediate_size")),
        ("expert_group_count", int("n_group")),
        ("expert_group_used_count", int("topk_group")),
    ] {
        put(key, WriterValue::U32(value));
    }
    put("attention.layer_norm_rms_epsilon", real(&config["rms_norm_eps"]));
    put("expert_weights_scale", real(&config["routed_scaling_factor"]));
    put("expert_weights_norm", WriterValue::Bool(config["norm_topk_prob"].as_bool().unwrap()));
    // Of the three architectures, converters write this key only for DeepSeek-V3.2.
    if architecture == "deepseek32" {
        put("expert_gating_func", WriterValue::U32(2));
    }
    let rope = config["rope_parameters"].as_object().unwrap();
    put("rope.freq_base", real(&rope["rope_theta"]));
    if rope["rope_type"] == "yarn" {
        put("rope.scaling.type", WriterValue::String("yarn".into()));
        put("rope.scaling.factor", real(&rope["factor"]));
        let original = rope["original_max_position_embeddings"].as_u64().unwrap() as u32;
        put("rope.scaling.original_context_length", WriterValue::U32(original));
        let all = rope["mscale_all_dim"].as_f64().unwrap();
        put("rope.scaling.yarn_log_multiplier", WriterValue::F32((0.1 * all) as f32));
    }
    if config.contains_key("index_topk") {
        put("attention.indexer.head_count", WriterValue::U32(int("index_n_heads")));
        put("attention.indexer.key_length", WriterValue::U32(int("index_head_dim")));
        put("attention.indexer.top_k", WriterValue::U32(int("index_topk")));
    }
    if let Some(types) = config.get("indexer_types") {
        let full = types.as_array().unwrap().iter().map(|kind| kind == "full").collect();
        put("attention.indexer.types", WriterValue::Bools(full));
    }
}

/// Writes a fixture as a GGUF file into `to`.
fn write(case: &str, architecture: &str, to: &Path) -> PathBuf {
    let checkpoint = Checkpoint::open(&folder(case)).unwrap();
    let config = ModelConfig::from_checkpoint(&checkpoint).unwrap();
    let CheckpointSource::HuggingFace(source) = checkpoint.source() else { panic!("{case} is a folder") };
    let tensors: Vec<(String, FloatTensor)> = renamed(&tensors(&checkpoint), &config).into_iter().collect();
    let mut writer = Writer::new();
    keys(&mut writer, architecture, &source.config);
    for (name, (shape, _)) in &tensors {
        writer.tensor(name.clone(), TensorType::F32, shape).unwrap();
    }
    let path = to.join(format!("{case}.gguf"));
    let mut out = OutputFile::create(&path).unwrap();
    let bytes = |i: usize| tensors[i].1.1.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    writer.write(&mut out, |i, out| out.write_all(&bytes(i))).unwrap();
    out.complete().unwrap().publish().unwrap();
    path
}

fn exact(mla: MlaChoice) -> EngineOptions {
    EngineOptions {
        mla,
        form: CacheForm::Latent,
        precision: Precision::Exact,
        threads: Some(2),
        context: Some(1024),
        ..EngineOptions::default()
    }
}

#[test]
fn a_gguf_of_each_newer_architecture_gives_the_logits_of_its_folder() {
    let temporary = tempfile::tempdir().unwrap();
    for (case, architecture) in CASES {
        let file = checkpoint(&write(case, architecture, temporary.path()));
        let expected = fixture(case);
        for mla in [MlaChoice::Absorbed, MlaChoice::Naive, MlaChoice::SeparateScores, MlaChoice::Auto] {
            let mut engine = engine(&file, &exact(mla));
            for chunk in [usize::MAX, 7, 1] {
                let logits = all_logits(&mut engine, &expected.tokens, chunk);
                let rows = expected.rows.iter().zip(&expected.logits);
                let sum: f64 = rows.map(|(&row, truth)| error(&logits[row], truth)).sum();
                let mean = sum / expected.rows.len() as f64;
                assert!(mean <= 1e-9, "{case} {mla} in chunks of {chunk}: {mean:e}");
            }
        }
    }
}

#[test]
fn a_config_is_the_same_from_either_file() {
    let temporary = tempfile::tempdir().unwrap();
    for (case, architecture) in CASES {
        let read = |path: &Path| ModelConfig::from_checkpoint(&Checkpoint::open(path).unwrap()).unwrap();
        let (mut gguf, hf) = (read(&write(case, architecture, temporary.path())), read(&folder(case)));
        assert_eq!((gguf.architecture.as_str(), gguf.kv_form), (architecture, KvForm::Separate));
        (gguf.architecture, gguf.kv_form) = (hf.architecture.clone(), hf.kv_form);
        let (g, h) = (gguf.attention.softmax_scale, hf.attention.softmax_scale);
        assert!((g - h).abs() <= 1e-12 * h, "{case}: {g} and {h}");
        gguf.attention.softmax_scale = h;
        // The floor that guards the normalization against a sum of 0 differs between engines.
        gguf.moe.as_mut().unwrap().router.norm_floor = hf.moe.unwrap().router.norm_floor;
        assert_eq!(gguf, hf, "{case}");
        assert_eq!(hf.index_topk, (case != "mistral4").then_some(64));
        let temperature = (case == "mistral4").then_some(Temperature { scale: 0.1, length: 32 });
        assert_eq!(hf.attention.temperature, temperature);
    }
}

#[test]
fn a_context_beyond_the_indexers_tokens_gives_a_warning() {
    let file = checkpoint(&folder("glm-dsa"));
    let summary = |context, sparse| {
        let options = EngineOptions { context: Some(context), sparse, ..exact(MlaChoice::Auto) };
        engine(&file, &options).summary().dense
    };
    assert_eq!(summary(64, SparseAttention::Off), None);
    assert_eq!(summary(65, SparseAttention::On), None);
    let dense = summary(65, SparseAttention::Off).unwrap();
    assert_eq!(dense, DenseAttention { index_topk: 64, context: 65 });
    assert_eq!(
        dense.to_string(),
        "the model was trained with sparse attention to 64 tokens, but runs with dense attention: results \
         may differ beyond 64 tokens (the context holds 65; option `context: 64` avoids this)"
    );
    assert_eq!(engine(&checkpoint(&folder("v3")), &exact(MlaChoice::Auto)).summary().dense, None);
}

#[test]
fn the_indexer_of_dense_attention_is_unused_and_the_reason_is_given() {
    let temporary = tempfile::tempdir().unwrap();
    for (path, name) in [
        (folder("deepseek32"), "model.layers.0.self_attn.indexer.wk.weight"),
        (write("deepseek32", "deepseek32", temporary.path()), "blk.0.indexer.attn_k.weight"),
    ] {
        let file = checkpoint(&path);
        let config = ModelConfig::from_checkpoint(&file).unwrap().without_indexer();
        let circuit = Circuit::named(&config.circuit).unwrap();
        let resolved = exact(MlaChoice::Auto);
        let backend = latent_backends::cpu();
        let resolved = resolved.resolve(&*backend, &config).unwrap();
        let stages = resolved.stages(&config, &CheckpointTensors(&file)).unwrap();
        let irs: Vec<_> = stages.iter().flat_map(|stage: &Stage| &stage.plans).map(|plan| &plan.ir).collect();
        let (unused, unread) = latent_graph::audit::unused(circuit, &config, &CheckpointTensors(&file), &irs);
        assert_eq!(unread, Vec::<String>::new());
        let indexer = unused.iter().find(|unused| unused.tensor == name).unwrap();
        assert!(indexer.why.contains("sparse attention") && indexer.why.contains("dense"), "{}", indexer.why);
        assert_eq!(unused.len(), 15, "five of each of three layers");
        // Without index_topk, the same tensors are unknown.
        let dense = ModelConfig { index_topk: None, ..config.clone() };
        let (_, unread) = latent_graph::audit::unused(circuit, &dense, &CheckpointTensors(&file), &irs);
        assert_eq!(unread.len(), 15);
    }
}

/// The weights of W_KV in layer 0 of the plan for one row: slot, type, and the half of a joined
/// tensor that they are derived from.
fn kv_weights(engine: &Engine) -> Vec<(String, TensorType, Option<KvHalf>)> {
    let plan = &engine.stages()[0].plans[0];
    let of_layer = plan.ir.weights.iter().filter(|weight| weight.layer == Some(0));
    let kv = of_layer.filter(|weight| ["k_b", "v_b", "kv_b"].contains(&weight.slot.as_str()));
    kv.map(|weight| (weight.slot.clone(), weight.ty, weight.derived.as_ref().map(|derived| derived.half)))
        .collect()
}

#[test]
fn a_quantized_joined_w_kv_is_split_if_values_are_rounded_anyway() {
    let made = tempfile::tempdir().unwrap();
    let path = made.path().join("model.gguf");
    let options = |precision, threads| EngineOptions {
        precision,
        threads: Some(threads),
        context: Some(128),
        ..EngineOptions::default()
    };
    for (ty, split) in [
        (TensorType::Q4_0, true),
        (TensorType::Q4_K, true),
        (TensorType::Q6_K, true),
        (TensorType::Q8_0, true),
        (TensorType::MXFP4, true),
        (TensorType::BF16, false),
        (TensorType::F32, false),
    ] {
        for shape in ["tiny-v3", "tiny-glm", "tiny-minicpm3"] {
            let recipe = ModelRecipe {
                layers: Some(2),
                legacy: true,
                ..ModelRecipe::new(shape, RandomWeightTypes::from(ty))
            };
            recipe.write_gguf(&path).unwrap();
            let file = checkpoint(&path);
            let mut exact = engine(&file, &options(Precision::Exact, 2));
            assert_eq!(kv_weights(&exact), [("kv_b".to_owned(), ty, None)], "{shape} {ty}");
            let truth = all_logits(&mut exact, &TOKENS, 4);
            let mut first = None;
            for threads in [1, 3] {
                let mut engine = engine(&file, &options(Precision::Default, threads));
                let expected = match split {
                    true => vec![
                        ("k_b".to_owned(), TensorType::Q8_0, Some(KvHalf::Uk)),
                        ("v_b".to_owned(), ty, Some(KvHalf::Uv)),
                    ],
                    false => vec![("kv_b".to_owned(), ty, None)],
                };
                let mut found = kv_weights(&engine);
                found.sort_by(|a, b| a.0.cmp(&b.0));
                assert_eq!(found, expected, "{shape} {ty}");
                let logits = all_logits(&mut engine, &TOKENS, 4);
                // The router of a random model can be near a tie in some row, which changes its
                // experts. The median ignores such rows.
                let mut errors: Vec<f64> =
                    logits.iter().zip(&truth).map(|(logits, truth)| error(logits, truth)).collect();
                errors.sort_by(f64::total_cmp);
                let median = errors[errors.len() / 2];
                assert!(median < 2e-2, "{shape} {ty}: {median:e}");
                let bits = bits(&logits);
                assert!(*first.get_or_insert(bits.clone()) == bits, "{shape} {ty} of {threads} threads");
            }
        }
    }
}
