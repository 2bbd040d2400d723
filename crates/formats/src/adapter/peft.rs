//! Adapters in PEFT folders: `adapter_config.json` and `adapter_model.safetensors`.

use super::file::{AdapterFile, hash_of, placed};
use crate::attached::AdapterNaming;
use crate::builder::PlacedTensor;
use crate::error::{AdapterError, FormatError};
use crate::json;
use crate::map::FileBytes;
use crate::safetensors::Header;
use crate::tensor::TensorInfo;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
/// Prefix of the base model's modules in PEFT's tensor names.
const PREFIX: &str = "base_model.model.";

/// Unsupported keys that change what the adapter computes, with a description and advice. Ignoring
/// one would give wrong results silently.
const REFUSED: &[(&str, &str, &str)] = &[
    ("use_dora", "DoRA (use_dora)", "merge the adapter into the model with PEFT and convert the result"),
    (
        "modules_to_save",
        "a fully trained module (modules_to_save)",
        "merge the adapter into the model with PEFT and convert the result",
    ),
    (
        "lora_bias",
        "a bias of B (lora_bias)",
        "merge the adapter into the model with PEFT and convert the result",
    ),
    ("fan_in_fan_out", "transposed weights (fan_in_fan_out)", "supported models do not use them"),
    (
        "target_parameters",
        "adapting parameters (target_parameters)",
        "convert the adapter to GGUF with llama.cpp's convert_lora_to_gguf.py",
    ),
    ("layer_replication", "layer_replication", "use an adapter without it"),
    (
        "trainable_token_indices",
        "training of single tokens (trainable_token_indices)",
        "merge the adapter into the model with PEFT and convert the result",
    ),
    ("alora_invocation_tokens", "activation at invocation tokens (aLoRA)", "use an adapter without it"),
    ("use_qalora", "QA-LoRA (use_qalora)", "use an adapter without it"),
];

/// Initializations that change the base model's weights too.
const RESIDUAL_INIT: &[&str] = &["pissa", "olora", "corda", "loftq"];

pub(super) fn open(folder: &Path) -> Result<AdapterFile, FormatError> {
    let refuse = |error| FormatError::adapter(folder, error);
    let config_path = folder.join(CONFIG);
    let text = json::read_text(&config_path, crate::limits::MAX_JSON_BYTES)?.ok_or_else(|| {
        let text = format!("the folder has no {CONFIG}; pass a folder written by PEFT, or a GGUF file");
        refuse(AdapterError::NotAnAdapter(text))
    })?;
    let config = json::parse(&text).map_err(|problem| json::failed(&config_path, &text, problem))?;
    let Value::Object(config) = config else {
        return Err(json::failed(&config_path, &text, "expected an object".into()));
    };
    check(&config).map_err(refuse)?;
    let path = folder.join(TENSORS);
    let bytes = FileBytes::map(&path)?;
    let parsed = Header::parse(bytes.get(), bytes.get().len() as u64);
    let header = parsed.map_err(|error| FormatError::Safetensors { path, error })?;
    let settings = PeftSettings::of(&config).map_err(refuse)?;
    // Sorted, so that the order of pairs is the same in every process.
    let mut found: BTreeMap<String, (Option<TensorInfo>, Option<TensorInfo>)> = BTreeMap::new();
    for tensor in header.tensors {
        let info = placed(PlacedTensor::from(tensor));
        let (module, is_a) = module_of(&info.name).map_err(refuse)?;
        let pair = found.entry(module.to_owned()).or_default();
        let matrix = if is_a { &mut pair.0 } else { &mut pair.1 };
        // Safetensors names are unique, but the prefix is optional.
        if matrix.is_some() {
            return Err(refuse(AdapterError::Duplicate { tensor: info.name }));
        }
        *matrix = Some(info);
    }
    let mut pairs = Vec::with_capacity(found.len());
    for (module, pair) in found {
        let factor = |rank: usize| settings.factor(&module, rank);
        let pair = AdapterFile::pair(folder, format!("{module}.weight"), pair, factor)?;
        let (target, found, stated) = (pair.target.clone(), pair.rank(), settings.rank(&module));
        // The factor depends on the rank, so a wrong one would scale the adapter wrongly.
        if stated != found as f64 {
            return Err(refuse(AdapterError::OtherRank { target, found, stated: stated as u64 }));
        }
        pairs.push(pair);
    }
    if pairs.is_empty() {
        return Err(refuse(AdapterError::Empty));
    }
    Ok(AdapterFile {
        path: folder.to_owned(),
        naming: AdapterNaming::HuggingFace,
        architecture: None,
        alpha: settings.alpha,
        pairs,
        hash: hash_of(text.as_bytes(), bytes.get()),
        header: (TENSORS.to_owned(), header.data_start as usize),
        bytes: bytes.into(),
    })
}

/// The module of the base model for a matrix in a PEFT file, and whether the matrix is A.
fn module_of(name: &str) -> Result<(&str, bool), AdapterError> {
    let refuse = |advice| Err(AdapterError::Tensor { tensor: name.to_owned(), advice });
    if name.contains("lora_embedding_") {
        return refuse(
            "adapters of the embedding are not supported; train the adapter without embed_tokens in target_modules",
        );
    }
    if name.contains("lora_magnitude_vector") {
        return refuse("DoRA is not supported; merge the adapter into the model with PEFT");
    }
    // The prefix is optional.
    let module = name.strip_prefix(PREFIX).unwrap_or(name);
    match (module.strip_suffix(".lora_A.weight"), module.strip_suffix(".lora_B.weight")) {
        (Some(module), _) => Ok((module, true)),
        (_, Some(module)) => Ok((module, false)),
        _ => refuse(
            "its name must end in .lora_A.weight or .lora_B.weight; merge the adapter into the model with \
             PEFT",
        ),
    }
}

/// The name in a PEFT file of the matrix A or B for the module of the tensor `target`.
pub fn peft_module(target: &str, is_a: bool) -> String {
    let module = target.strip_suffix(".weight").unwrap_or(target);
    format!("{PREFIX}{module}.lora_{}.weight", if is_a { "A" } else { "B" })
}

/// Rejects adapters that compute anything other than W + factor · B · A.
fn check(config: &Map<String, Value>) -> Result<(), AdapterError> {
    let kind = config.get("peft_type").and_then(Value::as_str).unwrap_or("LORA");
    if !kind.eq_ignore_ascii_case("lora") {
        let what = format!("the method {kind} (peft_type)");
        return Err(AdapterError::Unsupported { what, advice: "only LORA is" });
    }
    for (key, what, advice) in REFUSED {
        // PEFT writes all keys, unused ones with null, false or an empty list.
        let set = match config.get(*key) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Array(items)) => !items.is_empty(),
            Some(Value::Object(items)) => !items.is_empty(),
            Some(_) => true,
        };
        if set {
            return Err(AdapterError::Unsupported { what: (*what).to_owned(), advice });
        }
    }
    if let Some(bias) = config.get("bias").and_then(Value::as_str)
        && bias != "none"
    {
        let what = format!("trained biases (bias: {bias:?})");
        return Err(AdapterError::Unsupported { what, advice: "merge the adapter into the model with PEFT" });
    }
    // These initializations change the base weights, so the adapter does not fit the published base
    // model.
    if let Some(init) = config.get("init_lora_weights").and_then(Value::as_str)
        && RESIDUAL_INIT.iter().any(|name| init.to_ascii_lowercase().starts_with(name))
    {
        let what = format!("a modified base model (init_lora_weights: {init:?})");
        let advice = "save it as a plain adapter with PEFT's path_initial_model_for_weight_conversion";
        return Err(AdapterError::Unsupported { what, advice });
    }
    Ok(())
}

/// Ranks and alphas of an adapter's config.
struct PeftSettings {
    rank: f64,
    alpha: f64,
    rslora: bool,
    ranks: Vec<(String, f64)>,
    alphas: Vec<(String, f64)>,
}

impl PeftSettings {
    fn of(config: &Map<String, Value>) -> Result<PeftSettings, AdapterError> {
        let number = |key: &str, value: Option<&Value>| {
            let found = value.map_or("missing".to_owned(), Value::to_string);
            let number = value.and_then(Value::as_f64).filter(|number| number.is_finite());
            number.ok_or(AdapterError::Key { key: key.to_owned(), found, expected: "a number" })
        };
        let pattern = |key: &str| -> Result<Vec<(String, f64)>, AdapterError> {
            let Some(Value::Object(items)) = config.get(key) else { return Ok(Vec::new()) };
            let read = |(name, value): (&String, &Value)| {
                // PEFT accepts regular expressions here. Module names are supported.
                if !name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) {
                    let what = format!("the regular expression {name:?} in {key}");
                    let advice = "use module names instead";
                    return Err(AdapterError::Unsupported { what, advice });
                }
                Ok((name.clone(), number(&format!("{key}.{name}"), Some(value))?))
            };
            items.iter().map(read).collect()
        };
        Ok(PeftSettings {
            rank: number("r", config.get("r"))?,
            alpha: number("lora_alpha", config.get("lora_alpha"))?,
            rslora: config.get("use_rslora").and_then(Value::as_bool).unwrap_or(false),
            ranks: pattern("rank_pattern")?,
            alphas: pattern("alpha_pattern")?,
        })
    }

    fn rank(&self, module: &str) -> f64 {
        of_module(&self.ranks, module).unwrap_or(self.rank)
    }

    fn factor(&self, module: &str, rank: usize) -> f64 {
        let (alpha, rank) = (of_module(&self.alphas, module).unwrap_or(self.alpha), rank as f64);
        // rsLoRA divides by the root, so that adapters of high rank are not scaled to almost 0.
        alpha / if self.rslora { rank.sqrt() } else { rank }
    }
}

// The rule of PEFT's `get_pattern_key`.
/// The value of the first pattern that equals the module's name or a suffix of it after a dot.
fn of_module(pattern: &[(String, f64)], module: &str) -> Option<f64> {
    let fits =
        |name: &str| module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    pattern.iter().find(|(name, _)| fits(name)).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_and_matrices_are_read_from_names() {
        let name = "base_model.model.model.layers.3.self_attn.q_a_proj.lora_A.weight";
        assert_eq!(module_of(name).unwrap(), ("model.layers.3.self_attn.q_a_proj", true));
        assert_eq!(peft_module("model.layers.3.self_attn.q_a_proj.weight", true), name);
        let dora = module_of("base_model.model.x.lora_magnitude_vector.weight").unwrap_err().to_string();
        assert!(dora.contains("DoRA"), "{dora}");
    }

    #[test]
    fn patterns_fit_whole_names_of_modules() {
        let pattern = [("q_proj".to_owned(), 4.0), ("layers.1.mlp.up_proj".to_owned(), 2.0)];
        assert_eq!(of_module(&pattern, "model.layers.0.self_attn.q_proj"), Some(4.0));
        assert_eq!(of_module(&pattern, "model.layers.0.self_attn.eq_proj"), None);
        assert_eq!(of_module(&pattern, "model.layers.1.mlp.up_proj"), Some(2.0));
        assert_eq!(of_module(&pattern, "model.layers.11.mlp.up_proj"), None);
    }
}
