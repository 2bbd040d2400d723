//! Quantized weights of model folders other than 4-bit ones: FP8 with its scales, and errors for
//! unsupported formats.

use crate::error::{FormatError, FourBitError};
use crate::folder::HfSource;
use crate::four_bit::{FourBitSettings, HeaderTensor, TensorLookup};
use crate::fp8::{Fp8Scales, is_fp8, scale_names, scales_of};
use crate::scales::SCALE_TYPES;
use latent_types::TensorType;
use serde_json::{Map, Value};
use std::path::Path;

/// The supported formats, for messages.
const READ: &str = "Latent reads FP8 with one scale per tensor, per output or per block of weight_block_size, NVFP4, and GPTQ, AWQ and \
     compressed-tensors of 4 bits; use a checkpoint of one of these kinds, or the original one";

/// The scales of all FP8 weights. Rejects weights of unsupported formats, and FP8 weights with
/// missing or wrong scales.
pub(crate) fn fp8_scales<'a>(
    folder: &Path,
    source: &HfSource,
    tensors: impl Iterator<Item = HeaderTensor<'a>>,
    find: &TensorLookup<'a>,
) -> Result<Vec<Fp8Scales>, FormatError> {
    let path = || folder.to_owned();
    // The reason from config.json is more exact than one from shapes. It is reported only if the
    // folder has quantized tensors.
    let (mut all, mut announced) = (Vec::new(), announced(source));
    for tensor in tensors {
        let damage = match tensor.ty {
            ty if is_fp8(ty) => {
                let unsupported = |problem| FormatError::WeightFormat { path: path(), problem };
                if let Some(problem) = announced.take() {
                    return Err(unsupported(problem));
                }
                match scales_of(&tensor, source.fp8_block().map_err(unsupported)?, find) {
                    Ok(scales) => {
                        all.push(scales);
                        continue;
                    }
                    Err(problem) => Some(problem),
                }
            }
            // Integers as weights are of an unsupported format, such as bitsandbytes.
            TensorType::I8 if tensor.name.ends_with(".weight") => None,
            _ => continue,
        };
        match (announced.take().or_else(|| named(&tensor, find)), damage) {
            (Some(problem), _) => return Err(FormatError::WeightFormat { path: path(), problem }),
            (None, Some(problem)) => return Err(FormatError::Set { path: path(), problem }),
            (None, None) => {}
        }
    }
    Ok(all)
}

/// The error for packed weights whose tensors do not fit together. If config.json announces an
/// unsupported format, that is the reason.
pub(crate) fn of_packed(folder: &Path, source: &HfSource, error: FourBitError) -> FormatError {
    let path = folder.to_owned();
    match announced(source) {
        Some(problem) => FormatError::WeightFormat { path, problem },
        None => FormatError::FourBit { path, error: Box::new(error) },
    }
}

/// The type of most weights of a folder, by its config.json alone; `None` if they are not
/// quantized.
///
/// # Errors
/// The reason why the weights are not supported, as when the folder is opened.
pub fn announced_type(source: &HfSource) -> Result<Option<TensorType>, String> {
    if let Some(problem) = announced(source) {
        return Err(problem);
    }
    let method = method(source);
    let fp8 = || {
        let keys = method.as_deref().is_some_and(|name| FP8_METHODS.contains(&name));
        let wide = || source.quantization_config().is_some_and(|keys| format_of(keys).starts_with("e5m2"));
        keys.then(|| if wide() { TensorType::F16 } else { TensorType::F8_E4M3 })
    };
    let settings = FourBitSettings::of(source).map_err(|error| error.to_string())?;
    Ok(settings.map(|settings| settings.usual_type()).or_else(fp8))
}

fn method(source: &HfSource) -> Option<String> {
    source.quantization_config()?.get("quant_method")?.as_str().map(str::to_ascii_lowercase)
}

/// The reason why the format that config.json announces is not supported; `None` if it is
/// supported, or if config.json announces none.
fn announced(source: &HfSource) -> Option<String> {
    let keys = source.quantization_config()?;
    match method(source)?.as_str() {
        name if FP8_METHODS.contains(&name) => announced_fp8(keys).or_else(|| source.fp8_block().err()),
        "compressed-tensors" => announced_kind(keys).or_else(|| source.fp8_block().err()),
        _ => None,
    }
}

/// Values of `quant_method` that mean FP8.
const FP8_METHODS: [&str; 2] = ["fp8", "fbgemm_fp8"];

/// `fmt`, by default E4M3.
fn format_of(keys: &Map<String, Value>) -> String {
    keys.get("fmt").and_then(Value::as_str).unwrap_or("e4m3").to_ascii_lowercase()
}

/// A key and its value, for a message.
fn stated(keys: &Map<String, Value>, key: &str) -> String {
    let value = keys.get(key).unwrap_or(&Value::Null).to_string();
    // A value of a file may have any length.
    format!("quantization_config: {key} is {}", value.chars().take(80).collect::<String>())
}

fn announced_fp8(keys: &Map<String, Value>) -> Option<String> {
    let format = format_of(keys);
    let known = ["e4m3", "e5m2"].iter().any(|known| format.starts_with(known));
    (!known).then(|| refused(&format!("FP8 of {}", format.to_ascii_uppercase()), &stated(keys, "fmt")))
}

/// The reason why weights of compressed-tensors are not supported. 4-bit weights are checked
/// elsewhere.
fn announced_kind(keys: &Map<String, Value>) -> Option<String> {
    let groups = keys.get("config_groups").and_then(Value::as_object)?;
    groups.values().find_map(|group| {
        let weights = group.get("weights")?.as_object()?;
        // 8 is the default of compressed-tensors.
        let bits = weights.get("num_bits").and_then(Value::as_u64).unwrap_or(8);
        if bits == 4 {
            return None;
        }
        let float = weights.get("type").and_then(Value::as_str) == Some("float");
        let strategy = weights.get("strategy").and_then(Value::as_str);
        if float && bits == 8 && strategy != Some("group") {
            return None;
        }
        let kind = match (float, bits) {
            (true, 8) => "FP8".to_owned(),
            (true, bits) => format!("floats of {bits} bits"),
            (false, bits) => format!("integers of {bits} bits"),
        };
        let scales = match strategy {
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

/// The reason why a quantized tensor is not supported, by its companion tensors.
fn named(tensor: &HeaderTensor<'_>, find: &TensorLookup<'_>) -> Option<String> {
    let name = tensor.name;
    let stem = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".weight_scale")).unwrap_or(name);
    let companion = |end: &str| find(&format!("{stem}{end}"));
    for (end, format) in
        [(".weight.absmax", "4-bit weights of bitsandbytes"), (".SCB", "8-bit integers of bitsandbytes")]
    {
        if let Some(sign) = companion(end) {
            return Some(refused(format, sign.name));
        }
    }
    let fp8 = is_fp8(tensor.ty);
    let scale =
        if fp8 { scale_names(name).iter().find_map(|name| find(name)) } else { companion(".weight_scale") }?;
    // The tensor itself holds scales, which have no companion.
    if scale.name == name {
        return None;
    }
    let kind = if fp8 { "FP8" } else { "8-bit integers" };
    let scales = match *scale.shape {
        _ if fp8 && !SCALE_TYPES.contains(&scale.ty) => format!("with scales of {}", scale.ty),
        // Scales of blocks. The error is about their shape, not about the format.
        _ if fp8 && scale.name.ends_with("_inv") => return None,
        [outputs] | [outputs, 1] if !fp8 && outputs > 1 && tensor.shape.first() == Some(&outputs) => {
            "with one scale per output".to_owned()
        }
        _ if !fp8 && scale.shape.iter().product::<usize>() == 1 => "with one scale per tensor".to_owned(),
        _ => format!("with scales of shape {:?}", scale.shape),
    };
    let inputs = [".input_scale", ".activation_scale"].iter().find_map(|end| companion(end));
    let fixed = if inputs.is_some() { " and static scales of inputs" } else { "" };
    Some(refused(&format!("{kind} {scales}{fixed}"), scale.name))
}

fn refused(format: &str, sign: &str) -> String {
    format!("the weights are {format} ({sign}), which is not supported; {READ}")
}
