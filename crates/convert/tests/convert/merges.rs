//! Adapters of routed experts are merged from both formats into their experts.

use latent_convert::quantize::{AdapterNames, Assignment, MergedWeights, Mix, Options, Weights, write};
use latent_convert::{AdapterBase, convert_adapter};
use latent_formats::gguf::{Writer, WriterValue};
use latent_formats::{AdapterFile, Checkpoint, LowRankPair};
use latent_graph::{Circuit, ModelConfig};
use latent_testing::{ModelRecipe, RandomPair, write_peft_adapter};
use latent_types::TensorType;
use std::path::Path;

const TENSOR: &str = "blk.1.ffn_up_exps.weight";
const RANK: usize = 2;

fn number(i: usize) -> f32 {
    (i * 37 % 101) as f32 / 64.0 - 0.75
}

/// Writes llama.cpp's format: A and B with a matrix per expert.
fn write_experts(path: &Path, a: (&[f32], usize), b: (&[f32], usize), experts: usize) {
    let mut writer = Writer::new();
    writer.key("general.architecture", WriterValue::String("deepseek2".into()));
    writer.key("general.type", WriterValue::String("adapter".into()));
    writer.key("adapter.type", WriterValue::String("lora".into()));
    writer.key("adapter.lora.alpha", WriterValue::F32(4.0));
    writer.tensor(format!("{TENSOR}.lora_a"), TensorType::F32, &[experts, RANK, a.1]).unwrap();
    writer.tensor(format!("{TENSOR}.lora_b"), TensorType::F32, &[experts, b.1, RANK]).unwrap();
    let data = [a.0, b.0].map(|values| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
    let mut file = Vec::new();
    writer.write(&mut file, |i, out| out.write_all(&data[i])).unwrap();
    std::fs::write(path, file).unwrap();
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let data = checkpoint.tensor(name).unwrap().data;
    data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn adapters_of_experts_change_their_experts() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let recipe = ModelRecipe { layers: Some(2), ..ModelRecipe::new("tiny-v3", "F32".parse().unwrap()) };
    recipe.write_gguf(&at("model.gguf")).unwrap();
    let base = Checkpoint::open(&at("model.gguf")).unwrap();
    let [experts, outputs, inputs] = base.info(TENSOR).unwrap().shape[..] else { panic!("three dimensions") };
    let a: Vec<f32> = (0..experts * RANK * inputs).map(number).collect();
    let b: Vec<f32> = (0..experts * outputs * RANK).map(|i| number(i + 50)).collect();
    write_experts(&at("a.gguf"), (&a, inputs), (&b, outputs), experts);
    let pairs: Vec<RandomPair> = (0..experts)
        .map(|expert| RandomPair {
            target: format!("model.layers.1.mlp.experts.{expert}.up_proj.weight"),
            experts: 1,
            rank: RANK,
            outputs,
            inputs,
            a: a[expert * RANK * inputs..][..RANK * inputs].to_vec(),
            b: b[expert * outputs * RANK..][..outputs * RANK].to_vec(),
        })
        .collect();
    let config = serde_json::json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 4.0});
    write_peft_adapter(&at("peft"), &config, &pairs).unwrap();
    let model = ModelConfig::from_checkpoint(&base).unwrap();
    let circuit = Circuit::named(&model.circuit).unwrap();
    let names = AdapterNames::new(circuit, &model);
    let mut files = Vec::new();
    for adapter in ["a.gguf", "peft"] {
        let adapters = [(AdapterFile::open(&at(adapter)).unwrap(), 0.5)];
        let merged = MergedWeights::new(&base, &adapters, &names, false).unwrap();
        assert_eq!(merged.changed(), 1);
        let weights: &dyn Weights = &merged;
        let options = Options::new(Mix::from_name("F32").unwrap());
        let assignment = Assignment::new(weights, &options, None).unwrap();
        write(&assignment, &at("out.gguf"), 2, &mut |_, _| true).unwrap();
        files.push(std::fs::read(at("out.gguf")).unwrap());
        std::fs::remove_file(at("out.gguf")).unwrap();
    }
    assert!(files[0] == files[1], "the two forms differ");
    std::fs::write(at("out.gguf"), &files[0]).unwrap();
    let out = Checkpoint::open(&at("out.gguf")).unwrap();
    let (before, after) = (values(&base, TENSOR), values(&out, TENSOR));
    // The scale is 0.5 · alpha / rank.
    for (i, (before, after)) in before.iter().zip(&after).enumerate() {
        let (expert, row, column) = (i / (outputs * inputs), i / inputs % outputs, i % inputs);
        let product = (0..RANK)
            .map(|k| b[(expert * outputs + row) * RANK + k] * a[(expert * RANK + k) * inputs + column]);
        let wanted = before + 0.5 * 4.0 / RANK as f32 * product.sum::<f32>();
        assert!((wanted - after).abs() <= 1e-5 * (1.0 + wanted.abs()), "[{expert}, {row}, {column}]");
    }
    for info in base.tensors().iter().filter(|info| info.name != TENSOR) {
        assert!(
            base.tensor(&info.name).unwrap().data == out.tensor(&info.name).unwrap().data,
            "{}",
            info.name
        );
    }
    // Each format converts to the other.
    let form = AdapterBase { circuit, config: &model, name: "base" };
    let open = |name: &str| AdapterFile::open(&at(name)).unwrap();
    assert_eq!(convert_adapter(&open("a.gguf"), &form, &at("peft-of-gguf")).unwrap(), experts);
    assert_eq!(convert_adapter(&open("peft"), &form, &at("gguf-of-peft.gguf")).unwrap(), 1);
    let contents = |name: &str| {
        let adapter = open(name);
        let pair = |pair: &LowRankPair| {
            let [a, b] =
                [&pair.a, &pair.b].map(|matrix| (matrix.shape.clone(), adapter.data(matrix).to_vec()));
            (pair.target.clone(), pair.factor.to_bits(), a, b)
        };
        adapter.pairs.iter().map(pair).collect::<std::collections::BTreeSet<_>>()
    };
    assert!(contents("peft-of-gguf") == contents("peft"), "GGUF to PEFT");
    assert!(contents("gguf-of-peft.gguf") == contents("a.gguf"), "PEFT to GGUF");
    write_peft_adapter(&at("some"), &config, &pairs[1..]).unwrap();
    let error = convert_adapter(&open("some"), &form, &at("some.gguf")).unwrap_err().to_string();
    assert!(error.contains("all experts"), "{error}");
    assert!(!at("some.gguf").exists());
}
