//! A model folder as Hugging Face writes it: config.json, safetensors files, tokenizer.

use crate::error::FormatError;
use crate::index::Index;
use crate::sniff::PICKLE;
use crate::{json, limits};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// What a model folder says beside its tensors.
#[derive(Clone, Debug, Default)]
pub struct HfSource {
    /// config.json.
    pub config: Map<String, Value>,
    /// Path of tokenizer.json, where there is one.
    pub tokenizer_json: Option<PathBuf>,
    /// tokenizer_config.json.
    pub tokenizer_config: Option<Value>,
    /// The chat template: chat_template.jinja, or what tokenizer_config.json holds.
    pub chat_template: Option<String>,
    /// generation_config.json.
    pub generation_config: Option<Value>,
}

impl HfSource {
    /// Reads everything but the tensors.
    pub(crate) fn read(folder: &Path) -> Result<HfSource, FormatError> {
        let path = folder.join("config.json");
        let config = match json::read(&path)? {
            Some(Value::Object(config)) => config,
            Some(_) => return Err(FormatError::Json { path, problem: "it holds no JSON object".into() }),
            None => return Err(FormatError::NotAModel { path: folder.to_owned(), what: no_config(folder) }),
        };
        let tokenizer_config = json::read(&folder.join("tokenizer_config.json"))?;
        let tokenizer = folder.join("tokenizer.json");
        let template = folder.join("chat_template.jinja");
        let chat_template = match json::read_text(&template, limits::MAX_STRING_BYTES)? {
            Some(text) => Some(text),
            None => tokenizer_config.as_ref().and_then(template_in),
        };
        Ok(HfSource {
            config,
            tokenizer_json: tokenizer.is_file().then_some(tokenizer),
            chat_template,
            tokenizer_config,
            generation_config: json::read(&folder.join("generation_config.json"))?,
        })
    }
}

/// `chat_template` of tokenizer_config.json: a string, or a list of named ones of which `default` counts.
fn template_in(config: &Value) -> Option<String> {
    match config.get("chat_template")? {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => {
            let named = list.iter().find(|t| t.get("name").and_then(Value::as_str) == Some("default"));
            named?.get("template")?.as_str().map(str::to_owned)
        }
        _ => None,
    }
}

/// The safetensors files of a folder: those that the index names, or the only one there is.
pub(crate) fn tensor_files(folder: &Path) -> Result<(Vec<PathBuf>, Option<Index>), FormatError> {
    let path = folder.join("model.safetensors.index.json");
    if let Some(index) = Index::read(&path)? {
        return Ok((index.paths(&path, folder)?, Some(index)));
    }
    let single = folder.join("model.safetensors");
    if single.exists() {
        return Ok((vec![single], None));
    }
    let names = names_ending(folder, &[".safetensors"]);
    match names.as_slice() {
        [only] => Ok((vec![folder.join(only)], None)),
        [] => Err(FormatError::NotAModel { path: folder.to_owned(), what: no_tensors(folder) }),
        [first, .., last] => {
            let what = format!(
                "it holds {} .safetensors files ({first} to {last}) but no model.safetensors.index.json; the download is incomplete",
                names.len()
            );
            Err(FormatError::NotAModel { path: folder.to_owned(), what })
        }
    }
}

/// Names in a folder with one of these endings, sorted.
fn names_ending(folder: &Path, endings: &[&str]) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| endings.iter().any(|end| name.ends_with(end))).collect();
    names.sort_unstable();
    names
}

fn no_config(folder: &Path) -> String {
    if folder.join("params.json").is_file() {
        return "it holds params.json, the format of Mistral's own files; Latent reads the Hugging Face format (config.json) and GGUF: \
                convert it to one of them"
            .into();
    }
    match names_ending(folder, &[".gguf"]).first() {
        Some(name) => {
            format!("it holds no config.json, but GGUF files; give the path of one, such as {name}")
        }
        None => "it holds no config.json; a model folder has config.json and .safetensors files".into(),
    }
}

fn no_tensors(folder: &Path) -> String {
    match names_ending(folder, &[".bin", ".pt", ".pth"]).first() {
        Some(name) => format!("its weights are in {name}: {PICKLE}"),
        None => "it holds config.json, but no .safetensors file; the download is incomplete".into(),
    }
}
