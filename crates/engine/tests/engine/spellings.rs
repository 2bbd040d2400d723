//! Kimi-Linear and Ling-3.0 in folders whose tensor names differ from the published files: as
//! Transformers holds them, and joined further.

use crate::support::{all_logits, checkpoint, engine, error, fixture, folder, tiers};
use latent_engine::{Engine, EngineOptions};
use latent_formats::{Checkpoint, Outline};
use latent_graph::passes::Precision;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;

/// Maximum error of a row in exact precision.
const EXACT: f64 = 1e-9;

/// Folders as `save_pretrained` writes them with `save_original_format=False`. Their sizes differ
/// from those of other fixtures: convolutions of three and two tokens, fewer heads with a state
/// than with latents, latent attention in the first layer and a state in the last, low-rank
/// queries, ε = 1e-5 except for latents, a tied embedding, one group of experts, and a partial last
/// group.
const JOINED: [&str; 2] = ["kimi-linear-joined", "ling-3-joined"];

fn options() -> EngineOptions {
    EngineOptions {
        context: Some(256),
        precision: Precision::Exact,
        threads: Some(1),
        ..EngineOptions::default()
    }
}

/// Checks that the error of every row is within the bound.
fn agrees(engine: &mut Engine, case: &str, what: &str) {
    let expected = fixture(case);
    for chunk in [usize::MAX, 1, 2, 5, 16, 31] {
        let logits = all_logits(engine, &expected.tokens, chunk);
        for (&row, truth) in expected.rows.iter().zip(&expected.logits) {
            let error = error(&logits[row], truth);
            assert!(error <= EXACT, "{case} {what}, row {row} in chunks of {chunk}: {error:e}");
        }
    }
}

#[test]
fn joined_tensors_are_those_of_the_three() {
    for case in JOINED {
        let file = checkpoint(&folder(case));
        for tier in tiers() {
            let options = EngineOptions { tier: Some(tier), ..options() };
            agrees(&mut engine(&file, &options), case, tier.name());
        }
        let backend = latent_backends::reference();
        let mut reference = Engine::load(&*backend, &file, &options(), &mut |_, _| {}).unwrap();
        agrees(&mut reference, case, "reference");
        // The tensors that `latent check` finds from headers without data.
        let names = |tensors: &mut dyn Iterator<Item = (String, Vec<usize>)>| {
            let mut all: Vec<_> = tensors.collect();
            all.sort();
            all
        };
        let headers = without_data(&folder(case));
        let outline = Outline::open(headers.path()).unwrap();
        let here = names(&mut outline.tensors().iter().map(|t| (t.name.clone(), t.shape.clone())));
        let opened = names(&mut file.tensors().iter().map(|t| (t.name.clone(), t.shape.clone())));
        assert_eq!(here, opened, "{case}");
        assert!(opened.iter().any(|(name, _)| name.ends_with(".k_conv1d.weight")), "{case}");
    }
}

/// A tensor of a safetensors file.
#[derive(Clone)]
struct StoredTensor {
    name: String,
    ty: String,
    shape: Vec<usize>,
    data: Vec<u8>,
}

fn read(folder: &Path) -> Vec<StoredTensor> {
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let (len, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let header: Map<String, Value> = serde_json::from_slice(header).unwrap();
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    let of = |(name, entry): (&String, &Value)| StoredTensor {
        name: name.clone(),
        ty: entry["dtype"].as_str().unwrap().to_owned(),
        shape: entry["shape"].as_array().unwrap().iter().map(number).collect(),
        data: data[number(&entry["data_offsets"][0])..number(&entry["data_offsets"][1])].to_vec(),
    };
    tensors.map(of).collect()
}

fn write(tensors: &[StoredTensor], path: &Path) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for tensor in tensors {
        let start = data.len();
        data.extend_from_slice(&tensor.data);
        let entry = json!({"dtype": tensor.ty, "shape": tensor.shape, "data_offsets": [start, data.len()]});
        header.insert(tensor.name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(data);
    std::fs::write(path, bytes).unwrap();
}

/// A copy of a folder with config.json and the header of the tensors, without their data.
fn without_data(from: &Path) -> tempfile::TempDir {
    let made = tempfile::tempdir().unwrap();
    std::fs::copy(from.join("config.json"), made.path().join("config.json")).unwrap();
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let end = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    std::fs::write(made.path().join("model.safetensors"), &bytes[..end]).unwrap();
    made
}

/// Joins the three named tensors of each layer that has them all.
fn joined(mut tensors: Vec<StoredTensor>, [q, k, v]: [&str; 3], to: &str) -> Vec<StoredTensor> {
    let find = |tensors: &[StoredTensor], name: &str| tensors.iter().position(|t| t.name == name);
    while let Some((first, start)) = tensors.iter().enumerate().find_map(|(i, tensor)| {
        let start = tensor.name.strip_suffix(q)?.to_owned();
        [k, v].iter().all(|end| find(&tensors, &format!("{start}{end}")).is_some()).then_some((i, start))
    }) {
        let mut one = tensors.swap_remove(first);
        one.name = format!("{start}{to}");
        for end in [k, v] {
            let at = find(&tensors, &format!("{start}{end}")).unwrap();
            let other = tensors.swap_remove(at);
            one.shape[0] += other.shape[0];
            one.data.extend(other.data);
        }
        tensors.push(one);
    }
    tensors
}

const CONVOLUTIONS: [&str; 3] = [".q_conv1d.weight", ".k_conv1d.weight", ".v_conv1d.weight"];
const PROJECTIONS: [&str; 3] = [".q_proj.weight", ".k_proj.weight", ".v_proj.weight"];

/// Published names with joined tensors, flat vectors and other types, in one file and in two.
#[test]
fn published_names_may_be_joined_and_flat() {
    for case in ["kimi-linear-kda", "ling-3-kda"] {
        let tensors = read(&folder(case));
        let plain = |tensors: Vec<StoredTensor>| tensors;
        let vllm = |tensors| {
            joined(joined(tensors, CONVOLUTIONS, ".qkv_conv1d.weight"), PROJECTIONS, ".qkv_proj.weight")
        };
        let merged = |tensors| {
            joined(joined(tensors, CONVOLUTIONS, ".conv1d.weight"), PROJECTIONS, ".query_key_value.weight")
        };
        // Tensors without their dimensions of size 1.
        let flat = |mut tensors: Vec<StoredTensor>| {
            for tensor in &mut tensors {
                if tensor.name.contains("conv1d") || tensor.name.ends_with("A_log") {
                    tensor.shape.retain(|size| *size != 1);
                }
                // The name in published files of Ling-3.0, in layers with a state.
                let start = tensor.name.strip_suffix(".dense.weight").map(str::to_owned);
                if let Some(start) = start.filter(|_| tensor.shape[1] == 64) {
                    tensor.name = format!("{start}.o_proj.weight");
                }
            }
            tensors
        };
        let wide = |mut tensors: Vec<StoredTensor>| {
            for tensor in tensors.iter_mut().filter(|tensor| tensor.ty == "BF16") {
                tensor.ty = "F32".into();
                tensor.data = tensor.data.chunks_exact(2).flat_map(|x| [0, 0, x[0], x[1]]).collect();
            }
            tensors
        };
        type Spell<'s> = &'s dyn Fn(Vec<StoredTensor>) -> Vec<StoredTensor>;
        let spellings: [(&str, Spell<'_>); 5] =
            [("plain", &plain), ("vLLM", &vllm), ("merged", &merged), ("flat", &flat), ("F32", &wide)];
        for (what, spell) in spellings {
            let made = tempfile::tempdir().unwrap();
            std::fs::copy(folder(case).join("config.json"), made.path().join("config.json")).unwrap();
            let spelled = spell(tensors.clone());
            assert_eq!(spelled.len() < tensors.len(), matches!(what, "vLLM" | "merged"), "{case} {what}");
            write(&spelled, &made.path().join("model.safetensors"));
            agrees(&mut engine(&checkpoint(made.path()), &options()), case, what);
            // The same tensors in two files.
            std::fs::remove_file(made.path().join("model.safetensors")).unwrap();
            let halves = spelled.split_at(spelled.len() / 2);
            let mut map = Map::new();
            for (number, half) in [halves.0, halves.1].into_iter().enumerate() {
                let name = format!("model-{:05}-of-00002.safetensors", number + 1);
                write(half, &made.path().join(&name));
                map.extend(half.iter().map(|tensor| (tensor.name.clone(), Value::from(name.clone()))));
            }
            let index = json!({"metadata": {}, "weight_map": map}).to_string();
            std::fs::write(made.path().join("model.safetensors.index.json"), index).unwrap();
            let file = Arc::new(Checkpoint::open(made.path()).unwrap());
            agrees(&mut engine(&file, &options()), case, what);
        }
    }
}
