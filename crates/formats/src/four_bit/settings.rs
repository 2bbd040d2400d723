//! Settings of 4-bit weights from `quantization_config` of config.json.

use super::form::type_of_integers;
use crate::error::FourBitError;
use crate::folder::HfSource;
use latent_types::TensorType;
use serde_json::{Map, Value};

/// The program and settings that made the 4-bit weights of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FourBitSettings {
    /// AutoGPTQ, GPTQModel.
    Gptq(GptqSettings),
    /// AutoAWQ.
    Awq {
        /// Inputs per group; `None` for whole rows.
        group: Option<usize>,
    },
    /// compressed-tensors, with the announced kinds of weights.
    Compressed(Vec<CompressedScheme>),
    /// ModelOpt, whose weights are recognized by their tensors; with the type of most of them.
    ModelOpt(TensorType),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GptqSettings {
    /// Inputs per group; `None` for whole rows, or if modules differ.
    pub(crate) group: Option<usize>,
    /// Whether some modules have their own settings (`dynamic` of GPTQModel).
    pub(crate) varies: bool,
    pub(crate) symmetric: bool,
    /// Whether inputs were quantized in another order (`desc_act`).
    pub(crate) ordered: bool,
    /// Whether zero points are stored without subtracting one (`gptq_v2`).
    pub(crate) second: bool,
}

/// A kind of weights of compressed-tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompressedScheme {
    pub(crate) bits: u64,
    pub(crate) float: bool,
    pub(crate) symmetric: bool,
    /// Inputs per group; `None` for whole rows.
    pub(crate) group: Option<usize>,
}

impl std::fmt::Display for CompressedScheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, symmetric) = (
            if self.float { "float" } else { "int" },
            if self.symmetric { "symmetric" } else { "asymmetric" },
        );
        write!(f, "{symmetric} {kind}{}", self.bits)?;
        match self.group {
            Some(group) => write!(f, " in groups of {group}"),
            None => write!(f, " with a scale per row"),
        }
    }
}

/// Supported formats of compressed-tensors. Those with "pack" are 4-bit, `mixed-precision` may
/// contain such weights, and weights of the others are read as stored.
const FORMATS: [&str; 8] = [
    "dense",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
    "float-quantized",
    "naive-quantized",
    "int-quantized",
];

/// Supported methods and algorithms of ModelOpt, with the type of most weights.
const MODELOPT: [(&str, TensorType); 10] = [
    ("modelopt nvfp4", TensorType::NVFP4),
    ("modelopt w4a16_nvfp4", TensorType::NVFP4),
    ("modelopt w4a8_nvfp4_fp8", TensorType::NVFP4),
    ("modelopt_fp4 nvfp4", TensorType::NVFP4),
    ("modelopt_fp4", TensorType::NVFP4),
    ("modelopt fp8", TensorType::F8_E4M3),
    ("modelopt fp8_per_channel_per_token", TensorType::F8_E4M3),
    ("modelopt fp8_pb_wo", TensorType::F8_E4M3),
    ("modelopt mixed_precision", TensorType::F8_E4M3),
    ("modelopt", TensorType::F8_E4M3),
];

impl FourBitSettings {
    /// The type of most weights, by the settings alone.
    pub(crate) fn usual_type(&self) -> TensorType {
        // Whole rows are assumed to be whole blocks.
        let integers = |symmetric, group: Option<usize>| type_of_integers(symmetric, group.unwrap_or(32));
        match self {
            FourBitSettings::Gptq(gptq) if gptq.ordered && !gptq.varies => TensorType::F16,
            FourBitSettings::Gptq(gptq) => integers(gptq.symmetric, gptq.group),
            FourBitSettings::Awq { group } => integers(false, *group),
            FourBitSettings::Compressed(kinds) => match kinds.iter().find(|kind| kind.bits == 4) {
                Some(CompressedScheme { float: true, group: Some(32), .. }) => TensorType::MXFP4,
                Some(CompressedScheme { float: true, .. }) => TensorType::NVFP4,
                Some(kind) => integers(kind.symmetric, kind.group),
                // 8-bit weights.
                None if kinds.iter().any(|kind| kind.float) => TensorType::F8_E4M3,
                None => TensorType::BF16,
            },
            FourBitSettings::ModelOpt(ty) => *ty,
        }
    }

    /// The settings of a folder; `None` if its weights are not quantized or are FP8.
    pub(crate) fn of(source: &HfSource) -> Result<Option<FourBitSettings>, FourBitError> {
        let Some(keys) = source.quantization_config() else { return Ok(None) };
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_ascii_lowercase);
        // ModelOpt has the algorithm in `quant_algo`. Older files have no `quant_method`.
        let kind = keys.get("quant_algo").filter(|kind| !kind.is_null());
        let method = match (keys.get("quant_method").filter(|method| !method.is_null()), kind) {
            (None, None) => return Ok(None),
            (None, Some(kind)) => format!("modelopt {}", text(kind)),
            (Some(method), Some(kind)) => format!("{} {}", text(method), text(kind)),
            (Some(method), None) => text(method),
        };
        if let Some((_, ty)) = MODELOPT.iter().find(|(name, _)| method == *name) {
            return Ok(Some(FourBitSettings::ModelOpt(*ty)));
        }
        match method.as_str() {
            "fp8" | "fbgemm_fp8" => Ok(None),
            "gptq" => gptq(keys).map(Some),
            "awq" => awq(keys).map(Some),
            "compressed-tensors" => compressed(keys).map(Some),
            // A value of a file may have any length.
            _ => Err(FourBitError::Method { method: method.chars().take(80).collect() }),
        }
    }
}

fn setting(key: &str, found: &Value, expected: &'static str) -> FourBitError {
    let found = found.to_string().chars().take(80).collect();
    FourBitError::Setting { key: key.to_owned(), found, expected }
}

/// The first of these keys that has a value.
fn value<'v>(keys: &'v Map<String, Value>, names: &[&'static str]) -> Option<(&'static str, &'v Value)> {
    names.iter().find_map(|name| Some((*name, keys.get(*name).filter(|value| !value.is_null())?)))
}

fn flag(keys: &Map<String, Value>, name: &'static str) -> Result<bool, FourBitError> {
    match value(keys, &[name]) {
        None => Ok(false),
        Some((_, value)) => value.as_bool().ok_or_else(|| setting(name, value, "expected true or false")),
    }
}

/// Rejects weights of other than four bits.
fn four_bits(keys: &Map<String, Value>, names: &[&'static str]) -> Result<(), FourBitError> {
    match value(keys, names) {
        Some((_, bits)) if bits.as_u64() == Some(4) => Ok(()),
        Some((name, bits)) => Err(setting(name, bits, "only 4 is supported")),
        None => Err(setting(names[0], &Value::Null, "only 4 is supported")),
    }
}

/// Inputs per group; -1 and null mean whole rows.
fn group(keys: &Map<String, Value>, names: &[&'static str]) -> Result<Option<usize>, FourBitError> {
    match value(keys, names) {
        None => Ok(None),
        Some((_, size)) if size.as_i64() == Some(-1) => Ok(None),
        Some((name, size)) => {
            let positive = size.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
            positive.map(Some).ok_or_else(|| setting(name, size, "expected a positive number or -1"))
        }
    }
}

fn gptq(keys: &Map<String, Value>) -> Result<FourBitSettings, FourBitError> {
    four_bits(keys, &["bits"])?;
    let second = match value(keys, &["checkpoint_format", "format"]) {
        None => false,
        Some((name, format)) => match format.as_str() {
            Some("gptq") => false,
            Some("gptq_v2") => true,
            _ => return Err(setting(name, format, "expected gptq or gptq_v2")),
        },
    };
    // GPTQModel can pack into words of other widths.
    if let Some((name, dtype)) = value(keys, &["pack_dtype"])
        && dtype.as_str() != Some("int32")
    {
        return Err(setting(name, dtype, "only int32 is supported"));
    }
    // Modules with their own rules may be asymmetric or have another order of inputs, so neither is
    // excluded then.
    let varies = keys.get("dynamic").and_then(Value::as_object).is_some_and(|rules| !rules.is_empty());
    Ok(FourBitSettings::Gptq(GptqSettings {
        group: group(keys, &["group_size"])?,
        varies,
        // Without the key, asymmetric: that represents symmetric weights too.
        symmetric: flag(keys, "sym")? && !varies,
        ordered: flag(keys, "desc_act")? || varies,
        second,
    }))
}

fn awq(keys: &Map<String, Value>) -> Result<FourBitSettings, FourBitError> {
    four_bits(keys, &["bits", "w_bit"])?;
    // Other versions of AutoAWQ (GEMV, Marlin) have the words in another order.
    if let Some((name, version)) = value(keys, &["version"])
        && !version.as_str().is_some_and(|version| version.eq_ignore_ascii_case("gemm"))
    {
        return Err(setting(name, version, "only gemm is supported"));
    }
    Ok(FourBitSettings::Awq { group: group(keys, &["group_size", "q_group_size"])? })
}

fn compressed(keys: &Map<String, Value>) -> Result<FourBitSettings, FourBitError> {
    let groups = keys.get("config_groups").and_then(Value::as_object);
    let mut kinds = Vec::new();
    let known = |keys: &Map<String, Value>| match value(keys, &["format"]) {
        Some((name, format)) if !format.as_str().is_some_and(|format| FORMATS.contains(&format)) => Err(
            setting(name, format, "expected pack-quantized, nvfp4-pack-quantized or mxfp4-pack-quantized"),
        ),
        _ => Ok(()),
    };
    known(keys)?;
    for scheme in groups.into_iter().flat_map(Map::values).filter_map(Value::as_object) {
        known(scheme)?;
        let Some(weights) = scheme.get("weights").and_then(Value::as_object) else { continue };
        // The defaults are those of `QuantizationArgs` of compressed-tensors.
        kinds.push(CompressedScheme {
            bits: weights.get("num_bits").and_then(Value::as_u64).unwrap_or(8),
            float: weights.get("type").and_then(Value::as_str) == Some("float"),
            symmetric: weights.get("symmetric").and_then(Value::as_bool).unwrap_or(true),
            group: group(weights, &["group_size"])?,
        });
    }
    Ok(FourBitSettings::Compressed(kinds))
}
