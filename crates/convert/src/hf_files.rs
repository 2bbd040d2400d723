//! JSON files of a model folder: index, tokenizer and generation settings.

use crate::error::ConvertError;
use crate::metadata::SAMPLING;
use crate::report::ConversionReport;
use crate::tensors::NewTensor;
use latent_formats::GgufSource;
use latent_text::{HfTokenizer, TextError};
use latent_types::TensorType;
use serde_json::{Map, Value, json};

/// Name and content of a file.
pub(crate) type TextFile = (String, String);

/// Indented JSON.
pub(crate) fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Names of the safetensors files, as transformers names shards.
pub(crate) fn names(count: usize) -> Vec<String> {
    if count == 1 {
        return vec!["model.safetensors".into()];
    }
    (1..=count).map(|number| format!("model-{number:05}-of-{count:05}.safetensors")).collect()
}

/// The index of a model in several files, or `None` for a single file.
pub(crate) fn index(files: &[&[NewTensor]], names: &[String], total: u64) -> Option<TextFile> {
    if files.len() == 1 {
        return None;
    }
    let of_file = |(file, name): (&&[NewTensor], &String)| -> Vec<(String, Value)> {
        file.iter().map(|tensor| (tensor.name.clone(), name.as_str().into())).collect()
    };
    let map: Map<String, Value> = files.iter().zip(names).flat_map(of_file).collect();
    let index = json!({"metadata": {"total_size": total}, "weight_map": map});
    Some(("model.safetensors.index.json".into(), pretty(&index)))
}

/// Sets `torch_dtype` in config.json.
pub(crate) fn name_type(config: &mut Map<String, Value>, ty: TensorType) {
    let name = match ty {
        TensorType::F16 => "float16",
        TensorType::BF16 => "bfloat16",
        _ => "float32",
    };
    config.insert("torch_dtype".into(), name.into());
}

/// Creates tokenizer.json, tokenizer_config.json and generation_config.json, as far as possible,
/// and adds BOS and EOS to config.json.
pub(crate) fn tokenizer(
    source: &GgufSource,
    config: &mut Map<String, Value>,
    report: &mut ConversionReport,
) -> Result<Vec<TextFile>, ConvertError> {
    let metadata = &source.metadata;
    let mut generation = Map::new();
    for (role, key) in [("bos", "bos"), ("eos", "eos"), ("pad", "padding")] {
        let id = metadata.u64(&format!("tokenizer.ggml.{key}_token_id"))?;
        for object in [&mut *config, &mut generation] {
            object.extend(id.map(|id| (format!("{role}_token_id"), id.into())));
        }
    }
    let mut sampled = false;
    for (setting, key, integer) in SAMPLING {
        if let Some(value) = metadata.f64(key)? {
            let value = if integer {
                json!(value as i64)
            } else {
                // GGUF stores f32: print 0.7 instead of 0.699999988079071.
                json!((value as f32).to_string().parse().unwrap_or(value))
            };
            generation.insert(setting.into(), value);
            sampled = true;
        }
    }
    if sampled {
        // transformers ignores temperature and top_p without it.
        generation.insert("do_sample".into(), true.into());
    }
    let mut files = Vec::new();
    match HfTokenizer::new(metadata) {
        Ok(mut tokenizer) => {
            // tokenizer_config.json has one EOS token; further ones belong to
            // generation_config.json.
            if tokenizer.ends.len() > 1 {
                generation.insert("eos_token_id".into(), json!(tokenizer.ends));
            }
            if let Some(template) = metadata.str("tokenizer.chat_template")? {
                tokenizer.config.insert("chat_template".into(), template.into());
            }
            files.push(("tokenizer.json".into(), tokenizer.tokenizer.to_string()));
            files.push(("tokenizer_config.json".into(), pretty(&tokenizer.config.into())));
        }
        Err(TextError::Missing) => {
            report.notes.push("the file has no tokenizer, so the folder has none".into())
        }
        // Not fatal: the folder is usable with another tokenizer.
        Err(error) => report.notes.push(format!("the folder has no tokenizer: {error}")),
    }
    if !generation.is_empty() {
        files.push(("generation_config.json".into(), pretty(&generation.into())));
    }
    Ok(files)
}
