//! Conversion of LoRA adapters between GGUF and PEFT. Matrices are copied. GGUF has one alpha for
//! all pairs; if it cannot express a pair's factor, B is multiplied by the rest.

use crate::error::ConvertError;
use latent_formats::gguf::{self, WriterValue};
use latent_formats::{
    AdapterFile, AdapterNaming, LowRankPair, OutputFile, OutputFolder, TensorInfo, peft_module, safetensors,
};
use latent_graph::{Circuit, ModelConfig};
use latent_types::TensorType;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;

/// The base model of an adapter.
pub struct AdapterBase<'a> {
    pub circuit: &'a Circuit,
    pub config: &'a ModelConfig,
    /// Value of `base_model_name_or_path` in adapter_config.json.
    pub name: &'a str,
}

/// A matrix of the new file.
struct NewMatrix {
    name: String,
    ty: TensorType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// Writes an adapter in the other form: PEFT as a GGUF file, or GGUF as a PEFT folder. Returns the
/// number of adapted tensors.
///
/// # Errors
/// [`ConvertError::Adapter`] for a tensor that the base model does not have in both namings, and
/// I/O errors.
pub fn convert_adapter(
    adapter: &AdapterFile,
    base: &AdapterBase<'_>,
    out: &Path,
) -> Result<usize, ConvertError> {
    let pairs = renamed(adapter, base)?;
    match adapter.naming {
        AdapterNaming::HuggingFace => into_gguf(adapter, base, &pairs, out)?,
        AdapterNaming::Gguf => into_peft(adapter, base, &pairs, out)?,
    }
    Ok(pairs.len())
}

/// A and B with the target's name in the other form.
struct RenamedPair {
    target: String,
    rank: usize,
    factor: f64,
    a: StoredMatrix,
    b: StoredMatrix,
}

/// A matrix as the adapter stores it, or a stack with one matrix per expert.
struct StoredMatrix {
    ty: TensorType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl StoredMatrix {
    fn new(adapter: &AdapterFile, info: &TensorInfo) -> StoredMatrix {
        StoredMatrix { ty: info.ty, shape: info.shape.clone(), bytes: adapter.data(info).to_vec() }
    }

    /// The matrix of each expert.
    fn split(&self) -> Vec<StoredMatrix> {
        let each = self.bytes.len() / self.shape[0].max(1);
        let of = |bytes: &[u8]| StoredMatrix {
            ty: self.ty,
            shape: self.shape[1..].to_vec(),
            bytes: bytes.to_vec(),
        };
        self.bytes.chunks_exact(each.max(1)).map(of).collect()
    }
}

/// Renames the pairs. GGUF stores the experts of a layer in one tensor, PEFT in one tensor per
/// expert, so matrices are stacked or split.
fn renamed(adapter: &AdapterFile, base: &AdapterBase<'_>) -> Result<Vec<RenamedPair>, ConvertError> {
    let from_gguf = adapter.naming == AdapterNaming::Gguf;
    let swapped = |names: Vec<(String, String)>| -> BTreeMap<String, String> {
        names.into_iter().map(|(gguf, hf)| if from_gguf { (gguf, hf) } else { (hf, gguf) }).collect()
    };
    let plain = swapped(base.circuit.adapter_names(base.config));
    let experts = swapped(base.circuit.expert_adapter_names(base.config));
    let count = base.config.moe.map_or(0, |moe| moe.experts);
    let refused = |tensor: &str, problem: &str| ConvertError::Adapter {
        path: adapter.path().to_owned(),
        tensor: tensor.to_owned(),
        problem: problem.to_owned(),
    };
    // PEFT names every expert, so all names are listed.
    let single: BTreeMap<String, (&String, usize)> = experts
        .iter()
        .filter(|_| !from_gguf)
        .flat_map(|(hf, gguf)| {
            (0..count).map(move |expert| (hf.replace("{expert}", &expert.to_string()), (gguf, expert)))
        })
        .collect();
    let mut pairs: Vec<RenamedPair> = Vec::new();
    let mut stacks: BTreeMap<&String, Vec<Option<&LowRankPair>>> = BTreeMap::new();
    for pair in &adapter.pairs {
        let name = pair.plain_target();
        let (a, b) = (StoredMatrix::new(adapter, &pair.a), StoredMatrix::new(adapter, &pair.b));
        let (rank, factor) = (pair.rank(), pair.factor);
        if let Some(target) = plain.get(name) {
            pairs.push(RenamedPair { target: target.clone(), rank, factor, a, b });
        } else if let Some((target, expert)) = single.get(name) {
            // By index, whatever the order of the experts in the file.
            stacks.entry(target).or_insert_with(|| vec![None; count])[*expert] = Some(pair);
        } else if let Some(target) = experts.get(name).filter(|target| target.contains("{expert}")) {
            // `split` assumes one matrix per expert.
            if pair.a.shape.len() != 3 || pair.a.shape[0] != count {
                return Err(refused(&pair.target, &format!("it must have matrices of {count} experts")));
            }
            for (expert, (a, b)) in a.split().into_iter().zip(b.split()).enumerate() {
                let target = target.replace("{expert}", &expert.to_string());
                pairs.push(RenamedPair { target, rank, factor, a, b });
            }
        } else {
            let problem = "the base model has no tensor of this name with an equivalent in the other format";
            return Err(refused(&pair.target, problem));
        }
    }
    // GGUF has one tensor, rank and factor for all experts of a layer. A missing expert has no form
    // there.
    for (target, of_experts) in stacks {
        let Some(first) = of_experts.iter().flatten().next() else { continue };
        let mut stack = RenamedPair {
            target: target.clone(),
            rank: first.rank(),
            factor: first.factor,
            a: StoredMatrix { ty: first.a.ty, shape: vec![count], bytes: Vec::new() },
            b: StoredMatrix { ty: first.b.ty, shape: vec![count], bytes: Vec::new() },
        };
        stack.a.shape.extend(&first.a.shape);
        stack.b.shape.extend(&first.b.shape);
        for pair in &of_experts {
            let alike = |pair: &&&LowRankPair| {
                (pair.factor, pair.a.ty, pair.b.ty) == (first.factor, first.a.ty, first.b.ty)
                    && (&pair.a.shape, &pair.b.shape) == (&first.a.shape, &first.b.shape)
            };
            let Some(pair) = pair.as_ref().filter(alike) else {
                let problem = "a GGUF adapter needs matrices of all experts of a layer, with equal rank, \
                               alpha and type";
                return Err(refused(&first.target, problem));
            };
            stack.a.bytes.extend_from_slice(adapter.data(&pair.a));
            stack.b.bytes.extend_from_slice(adapter.data(&pair.b));
        }
        pairs.push(stack);
    }
    Ok(pairs)
}

fn into_gguf(
    adapter: &AdapterFile,
    base: &AdapterBase<'_>,
    pairs: &[RenamedPair],
    out: &Path,
) -> Result<(), ConvertError> {
    // llama.cpp ignores an alpha of 0 and does not scale. Write 1 and move the factor into B.
    let alpha = if adapter.alpha == 0.0 { 1.0 } else { adapter.alpha as f32 };
    let mut writer = gguf::Writer::new();
    writer.key("general.architecture", WriterValue::String(base.config.architecture.clone()));
    writer.key("general.type", WriterValue::String("adapter".into()));
    writer.key("adapter.type", WriterValue::String("lora".into()));
    writer.key("adapter.lora.alpha", WriterValue::F32(alpha));
    let mut matrices = Vec::new();
    for RenamedPair { target, rank, factor, a, b } in pairs {
        // llama.cpp scales each pair by alpha / rank.
        let rest = factor * *rank as f64 / f64::from(alpha);
        matrices.push(matrix(adapter, a, format!("{target}.lora_a"), 1.0, true)?);
        matrices.push(matrix(adapter, b, format!("{target}.lora_b"), rest, true)?);
    }
    let mut file = OutputFile::create(out)?;
    for matrix in &matrices {
        let declared = writer.tensor(matrix.name.clone(), matrix.ty, &matrix.shape);
        declared.map_err(|error| file.failed(error))?;
    }
    let written = writer.write(&mut file, |i, out| out.write_all(&matrices[i].bytes));
    written.map_err(|error| file.failed(error))?;
    file.finish()?;
    Ok(())
}

fn into_peft(
    adapter: &AdapterFile,
    base: &AdapterBase<'_>,
    pairs: &[RenamedPair],
    out: &Path,
) -> Result<(), ConvertError> {
    let module = |target: &str| target.strip_suffix(".weight").unwrap_or(target).to_owned();
    let rank = pairs.first().map_or(1, |pair| pair.rank);
    let (mut ranks, mut alphas, mut modules) = (Map::new(), Map::new(), BTreeSet::new());
    let mut writer = safetensors::Writer::new();
    let mut matrices = Vec::new();
    let folder = OutputFolder::create(out)?;
    let mut file = OutputFile::create(&out.join("adapter_model.safetensors"))?;
    for pair in pairs {
        let module = module(&pair.target);
        modules.insert(module.rsplit('.').next().unwrap_or_default().to_owned());
        let alpha = pair.factor * pair.rank as f64;
        if pair.rank != rank {
            ranks.insert(module.clone(), pair.rank.into());
        }
        // PEFT has a rank and an alpha per module, so B need not be scaled.
        if alpha != adapter.alpha {
            alphas.insert(module, alpha.into());
        }
        for (is_a, stored) in [(true, &pair.a), (false, &pair.b)] {
            let matrix = matrix(adapter, stored, peft_module(&pair.target, is_a), 1.0, false)?;
            let declared = writer.tensor(matrix.name.clone(), matrix.ty, &matrix.shape);
            declared.map_err(|error| file.failed(error))?;
            matrices.push(matrix);
        }
    }
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "inference_mode": true,
        "r": rank,
        "lora_alpha": adapter.alpha,
        "rank_pattern": Value::Object(ranks),
        "alpha_pattern": Value::Object(alphas),
        "target_modules": modules,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": false,
        "use_dora": false,
        "fan_in_fan_out": false,
        "modules_to_save": null,
    });
    let written = writer.write(&mut file, |i, out| out.write_all(&matrices[i].bytes));
    written.map_err(|error| file.failed(error))?;
    // The config last: without it, PEFT does not take the folder for an adapter.
    file.finish()?;
    let mut file = OutputFile::create(&out.join("adapter_config.json"))?;
    let text = serde_json::to_string_pretty(&config).unwrap_or_default();
    let written = writeln!(file, "{text}");
    written.map_err(|error| file.failed(error))?;
    file.finish()?;
    folder.keep();
    Ok(())
}

/// A matrix times a factor. If nothing must be computed, the stored bytes.
fn matrix(
    adapter: &AdapterFile,
    stored: &StoredMatrix,
    name: String,
    factor: f64,
    quantized: bool,
) -> Result<NewMatrix, ConvertError> {
    let StoredMatrix { ty, shape, bytes } = stored;
    let (ty, shape) = (*ty, shape.clone());
    // The factor is alpha / rank in f32, so it may differ from 1 by rounding. safetensors cannot
    // hold quantized types.
    if (factor - 1.0).abs() < 1e-6 && (quantized || !ty.is_quantized()) {
        return Ok(NewMatrix { name, ty, shape, bytes: bytes.clone() });
    }
    let mut numbers = vec![0.0f32; shape.iter().product()];
    latent_quant::decode(ty, bytes, &mut numbers).map_err(|error| ConvertError::Adapter {
        path: adapter.path().to_owned(),
        tensor: name.clone(),
        problem: error.to_string(),
    })?;
    // In f64, so that the product is rounded once.
    let scaled = numbers.iter().map(|number| (f64::from(*number) * factor) as f32);
    let bytes = scaled.flat_map(f32::to_le_bytes).collect();
    Ok(NewMatrix { name, ty: TensorType::F32, shape, bytes })
}
