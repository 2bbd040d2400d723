//! LoRA adapters from GGUF to PEFT and back. Matrices stay as they are; where one alpha cannot say all factors, B is multiplied by what is left.

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

/// The model that an adapter is for.
pub struct AdapterBase<'a> {
    pub circuit: &'a Circuit,
    pub config: &'a ModelConfig,
    /// What adapter_config.json calls it.
    pub name: &'a str,
}

/// One matrix of the new file.
struct NewMatrix {
    name: String,
    ty: TensorType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// Writes an adapter in the other form: a GGUF file of one of PEFT, a folder of PEFT of a GGUF file. Returns the number of adapted tensors.
///
/// # Errors
/// [`ConvertError::Adapter`] for a tensor that the base model does not have under both namings; errors of files.
pub fn convert_adapter(
    adapter: &AdapterFile,
    base: &AdapterBase<'_>,
    out: &Path,
) -> Result<usize, ConvertError> {
    let names: BTreeMap<String, String> = base
        .circuit
        .adapter_names(base.config)
        .into_iter()
        .map(|(gguf, hf)| if adapter.naming == AdapterNaming::Gguf { (gguf, hf) } else { (hf, gguf) })
        .collect();
    let renamed = |pair: &LowRankPair| {
        names.get(pair.plain_target()).cloned().ok_or_else(|| ConvertError::Adapter {
            path: adapter.path().to_owned(),
            tensor: pair.target.clone(),
            problem: "the base model has no tensor of this name that has one in the other form too".into(),
        })
    };
    let targets = adapter.pairs.iter().map(renamed).collect::<Result<Vec<_>, _>>()?;
    match adapter.naming {
        AdapterNaming::HuggingFace => into_gguf(adapter, base, &targets, out)?,
        AdapterNaming::Gguf => into_peft(adapter, base, &targets, out)?,
    }
    Ok(targets.len())
}

fn into_gguf(
    adapter: &AdapterFile,
    base: &AdapterBase<'_>,
    targets: &[String],
    out: &Path,
) -> Result<(), ConvertError> {
    // an alpha of 0 leaves B · A as it is
    let alpha = if adapter.alpha == 0.0 { 1.0 } else { adapter.alpha as f32 };
    let mut writer = gguf::Writer::new();
    writer.key("general.architecture", WriterValue::String(base.config.architecture.clone()));
    writer.key("general.type", WriterValue::String("adapter".into()));
    writer.key("adapter.type", WriterValue::String("lora".into()));
    writer.key("adapter.lora.alpha", WriterValue::F32(alpha));
    let mut matrices = Vec::new();
    for (pair, target) in adapter.pairs.iter().zip(targets) {
        let rest = pair.factor * pair.rank() as f64 / f64::from(alpha);
        matrices.push(matrix(adapter, &pair.a, format!("{target}.lora_a"), 1.0, true)?);
        matrices.push(matrix(adapter, &pair.b, format!("{target}.lora_b"), rest, true)?);
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
    targets: &[String],
    out: &Path,
) -> Result<(), ConvertError> {
    let module = |target: &str| target.strip_suffix(".weight").unwrap_or(target).to_owned();
    let rank = adapter.pairs.first().map_or(1, LowRankPair::rank);
    let (mut ranks, mut alphas, mut modules) = (Map::new(), Map::new(), BTreeSet::new());
    let mut writer = safetensors::Writer::new();
    let mut matrices = Vec::new();
    let folder = OutputFolder::create(out)?;
    let mut file = OutputFile::create(&out.join("adapter_model.safetensors"))?;
    for (pair, target) in adapter.pairs.iter().zip(targets) {
        let module = module(target);
        modules.insert(module.rsplit('.').next().unwrap_or_default().to_owned());
        let alpha = pair.factor * pair.rank() as f64;
        if pair.rank() != rank {
            ranks.insert(module.clone(), pair.rank().into());
        }
        if alpha != adapter.alpha {
            alphas.insert(module, alpha.into());
        }
        for (is_a, info) in [(true, &pair.a), (false, &pair.b)] {
            let matrix = matrix(adapter, info, peft_module(target, is_a), 1.0, false)?;
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
    file.finish()?;
    let mut file = OutputFile::create(&out.join("adapter_config.json"))?;
    let text = serde_json::to_string_pretty(&config).unwrap_or_default();
    let written = writeln!(file, "{text}");
    written.map_err(|error| file.failed(error))?;
    file.finish()?;
    folder.keep();
    Ok(())
}

/// A matrix times a factor: as it is stored if nothing has to be computed.
fn matrix(
    adapter: &AdapterFile,
    info: &TensorInfo,
    name: String,
    factor: f64,
    quantized: bool,
) -> Result<NewMatrix, ConvertError> {
    let bytes = adapter.data(info);
    let shape = info.shape.clone();
    // alpha / rank is rounded
    if (factor - 1.0).abs() < 1e-6 && (quantized || !info.ty.is_quantized()) {
        return Ok(NewMatrix { name, ty: info.ty, shape, bytes: bytes.to_vec() });
    }
    let mut numbers = vec![0.0f32; info.shape.iter().product()];
    latent_quant::decode(info.ty, bytes, &mut numbers).map_err(|error| ConvertError::Adapter {
        path: adapter.path().to_owned(),
        tensor: info.name.clone(),
        problem: error.to_string(),
    })?;
    let scaled = numbers.iter().map(|number| (f64::from(*number) * factor) as f32);
    let bytes = scaled.flat_map(f32::to_le_bytes).collect();
    Ok(NewMatrix { name, ty: TensorType::F32, shape, bytes })
}
