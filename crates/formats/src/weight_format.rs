//! Quantized weights of model folders other than those of four bits: FP8 with scales of blocks, and the names of what is not read.

use crate::error::{FormatError, FourBitError};
use crate::folder::HfSource;
use crate::four_bit::{FourBitSettings, HeaderTensor};
use latent_types::TensorType;
use serde_json::{Map, Value};
use std::path::Path;

/// What is read, for messages.
const READ: &str = "Latent reads FP8 with a weight_scale_inv for each block of weight_block_size, and GPTQ, AWQ and compressed-tensors of 4 bits; \
     use a checkpoint of one of these kinds, or the original one";

/// Finds a tensor by its name.
pub(crate) type TensorLookup<'a> = dyn Fn(&str) -> Option<HeaderTensor<'a>> + 'a;

/// Refuses weights whose format is not read, and FP8 weights without their scales.
pub(crate) fn check<'a>(
    folder: &Path,
    source: &HfSource,
    mut tensors: impl Iterator<Item = HeaderTensor<'a>>,
    find: &TensorLookup<'a>,
) -> Result<(), FormatError> {
    let path = || folder.to_owned();
    tensors.try_for_each(|tensor| {
        let damage = match tensor.ty {
            TensorType::F8_E4M3 => {
                let unsupported = |problem| FormatError::WeightFormat { path: path(), problem };
                match check_scales(&tensor, source.fp8_block().map_err(unsupported)?, find) {
                    Ok(()) => return Ok(()),
                    Err(problem) => Some(problem),
                }
            }
            TensorType::I8 if tensor.name.ends_with(".weight") => None,
            _ => return Ok(()),
        };
        match (announced(source).or_else(|| named(&tensor, find)), damage) {
            (Some(problem), _) => Err(FormatError::WeightFormat { path: path(), problem }),
            (None, Some(problem)) => Err(FormatError::Set { path: path(), problem }),
            (None, None) => Ok(()),
        }
    })
}

/// The error of packed weights that do not fit together: if config.json announces a format that is not read, they are of that.
pub(crate) fn of_packed(folder: &Path, source: &HfSource, error: FourBitError) -> FormatError {
    let path = folder.to_owned();
    match announced(source) {
        Some(problem) => FormatError::WeightFormat { path, problem },
        None => FormatError::FourBit { path, error: Box::new(error) },
    }
}

/// The type that most weights of a folder are shown as, by its config.json alone; none if they are not quantized.
///
/// # Errors
/// The reason why such weights are not read, as opening the folder gives it.
pub fn announced_type(source: &HfSource) -> Result<Option<TensorType>, String> {
    if let Some(problem) = announced(source) {
        return Err(problem);
    }
    let fp8 = || method(source).filter(|method| method == "fp8").map(|_| TensorType::F8_E4M3);
    let settings = FourBitSettings::of(source).map_err(|error| error.to_string())?;
    Ok(settings.map(|settings| settings.usual_type()).or_else(fp8))
}

fn method(source: &HfSource) -> Option<String> {
    source.quantization_config()?.get("quant_method")?.as_str().map(str::to_ascii_lowercase)
}

/// The format that config.json announces, as the reason why it is not read; none if it is read, or if config.json announces none.
fn announced(source: &HfSource) -> Option<String> {
    let keys = source.quantization_config()?;
    match method(source)?.as_str() {
        "fp8" => announced_fp8(keys).or_else(|| source.fp8_block().err()),
        "compressed-tensors" => announced_kind(keys),
        _ => None,
    }
}

/// A key as a message shows it.
fn stated(keys: &Map<String, Value>, key: &str) -> String {
    let value = keys.get(key).unwrap_or(&Value::Null).to_string();
    format!("quantization_config: {key} is {}", value.chars().take(80).collect::<String>())
}

fn announced_fp8(keys: &Map<String, Value>) -> Option<String> {
    let text = |key: &str| keys.get(key).and_then(Value::as_str);
    if let Some(format) = text("fmt").filter(|format| !format.to_ascii_lowercase().starts_with("e4m3")) {
        return Some(refused(&format!("FP8 of {}", format.to_ascii_uppercase()), &stated(keys, "fmt")));
    }
    // a missing key means blocks of 128 × 128 to Transformers; files with static scales of inputs have one scale per tensor
    let block = keys.get("weight_block_size");
    match (block, text("activation_scheme")) {
        (Some(Value::Null), Some("static")) | (None, Some("static")) => {
            let why = format!("{}, and no weight_block_size", stated(keys, "activation_scheme"));
            Some(refused("FP8 with one scale per tensor and static scales of inputs", &why))
        }
        (Some(Value::Null), _) => {
            Some(refused("FP8 with one scale per tensor", &stated(keys, "weight_block_size")))
        }
        _ => None,
    }
}

/// Weights of compressed-tensors other than those of four bits.
fn announced_kind(keys: &Map<String, Value>) -> Option<String> {
    let groups = keys.get("config_groups").and_then(Value::as_object)?;
    groups.values().find_map(|group| {
        let weights = group.get("weights")?.as_object()?;
        let bits = weights.get("num_bits").and_then(Value::as_u64).unwrap_or(8);
        if bits == 4 {
            return None;
        }
        let float = weights.get("type").and_then(Value::as_str) == Some("float");
        let kind = match (float, bits) {
            (true, 8) => "FP8".to_owned(),
            (true, bits) => format!("floats of {bits} bits"),
            (false, bits) => format!("integers of {bits} bits"),
        };
        let scales = match weights.get("strategy").and_then(Value::as_str) {
            Some("tensor") => " with one scale per tensor",
            Some("channel") => " with one scale per output",
            Some("block") => " with one weight_scale per block",
            Some("group") => " with one scale per group",
            _ => "",
        };
        let format = keys.get("format").and_then(Value::as_str).unwrap_or("config_groups");
        Some(refused(&format!("{kind}{scales}"), &format!("compressed-tensors, {format}")))
    })
}

/// Why a quantized tensor is not supported: its format, recognized by its companion tensors.
fn named(tensor: &HeaderTensor<'_>, find: &TensorLookup<'_>) -> Option<String> {
    let name = tensor.name;
    let stem = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".weight_scale")).unwrap_or(name);
    let companion = |end: &str| find(&format!("{stem}{end}"));
    for (end, format) in [
        (".weight_scale_2", "NVFP4 of NVIDIA's ModelOpt"),
        (".weight.absmax", "4-bit weights of bitsandbytes"),
        (".SCB", "8-bit integers of bitsandbytes"),
    ] {
        if let Some(sign) = companion(end) {
            return Some(refused(format, sign.name));
        }
    }
    let fp8 = tensor.ty == TensorType::F8_E4M3;
    if fp8 && tensor.shape.len() > 2 {
        return Some(refused("FP8 with several matrices in one tensor", name));
    }
    let scale = companion(".weight_scale_inv").or_else(|| companion(".weight_scale"))?;
    if scale.name == name {
        return None;
    }
    let kind = if fp8 { "FP8" } else { "8-bit integers" };
    let block = fp8 && scale.name.ends_with("_inv");
    let scales = match *scale.shape {
        _ if block && !SCALES.contains(&scale.ty) => format!("with scales of {}", scale.ty),
        [outputs] | [outputs, 1] if outputs > 1 && tensor.shape.first() == Some(&outputs) => {
            "with one scale per output".to_owned()
        }
        // of several blocks
        [_, _] if block => return None,
        _ if scale.shape.iter().product::<usize>() == 1 => "with one scale per tensor".to_owned(),
        _ => format!("with scales of shape {:?}", scale.shape),
    };
    let inputs = [".input_scale", ".activation_scale"].iter().find_map(|end| companion(end));
    let fixed = if inputs.is_some() { " and static scales of inputs" } else { "" };
    Some(refused(&format!("{kind} {scales}{fixed}"), scale.name))
}

fn refused(format: &str, sign: &str) -> String {
    format!("the weights are {format} ({sign}), which is not supported; {READ}")
}

/// An FP8 matrix needs a scale for each block of `block` elements.
fn check_scales(
    tensor: &HeaderTensor<'_>,
    block: (usize, usize),
    find: &TensorLookup<'_>,
) -> Result<(), String> {
    let HeaderTensor { name, shape, .. } = *tensor;
    let scale = format!("{name}_scale_inv");
    let &[rows, cols] = shape else {
        return Err(format!(
            "FP8 tensor {name} has shape {shape:?}; only matrices can have scales for blocks of numbers"
        ));
    };
    let expected = [rows.div_ceil(block.0), cols.div_ceil(block.1)];
    match find(&scale) {
        None => Err(format!("FP8 tensor {name} lacks its scales {scale}")),
        Some(found) if !SCALES.contains(&found.ty) => {
            Err(format!("the scales {scale} are {}, expected F32, BF16 or F16", found.ty))
        }
        Some(found) if found.shape != expected => {
            Err(format!("{scale} has shape {:?}, expected {expected:?} for {name} of {shape:?}", found.shape))
        }
        Some(_) => Ok(()),
    }
}

/// Types of scales of blocks. Those of 16 bits widen exactly.
const SCALES: [TensorType; 3] = [TensorType::F32, TensorType::BF16, TensorType::F16];
