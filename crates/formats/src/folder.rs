//! A model folder as Hugging Face writes it: config.json, safetensors files, tokenizer.

use crate::error::FormatError;
use crate::limits;
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

/// A small file as text.
fn read_text(path: &Path) -> Result<Option<String>, FormatError> {
    let io = |error| FormatError::Io { path: path.to_owned(), error };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
        Ok(metadata) if metadata.len() > limits::MAX_JSON_BYTES => {
            let problem = format!("{} bytes exceed the limit of {}", metadata.len(), limits::MAX_JSON_BYTES);
            return Err(FormatError::Json { path: path.to_owned(), problem });
        }
        Ok(_) => {}
    }
    std::fs::read_to_string(path).map(Some).map_err(io)
}

fn read_json(path: &Path) -> Result<Option<Value>, FormatError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    let parsed = serde_json::from_str(&text);
    parsed
        .map(Some)
        .map_err(|e| FormatError::Json { path: path.to_owned(), problem: format!("no valid JSON: {e}") })
}

impl HfSource {
    /// Reads everything but the tensors.
    pub(crate) fn read(folder: &Path) -> Result<HfSource, FormatError> {
        let path = folder.join("config.json");
        let config = match read_json(&path)? {
            Some(Value::Object(config)) => config,
            Some(_) => return Err(FormatError::Json { path, problem: "it holds no JSON object".into() }),
            None => return Err(FormatError::NotAModel { path: folder.to_owned(), what: no_config(folder) }),
        };
        let tokenizer_config = read_json(&folder.join("tokenizer_config.json"))?;
        let tokenizer = folder.join("tokenizer.json");
        let chat_template = match read_text(&folder.join("chat_template.jinja"))? {
            Some(text) => Some(text),
            None => tokenizer_config.as_ref().and_then(template_in),
        };
        Ok(HfSource {
            config,
            tokenizer_json: tokenizer.is_file().then_some(tokenizer),
            chat_template,
            tokenizer_config,
            generation_config: read_json(&folder.join("generation_config.json"))?,
        })
    }
}

fn no_config(folder: &Path) -> String {
    if folder.join("params.json").is_file() {
        return "it holds params.json, the format of Mistral's own files; convert it to the Hugging Face format or to GGUF".into();
    }
    let gguf = std::fs::read_dir(folder).ok().and_then(|entries| {
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.ends_with(".gguf")).min()
    });
    match gguf {
        Some(name) => {
            format!("it holds no config.json, but GGUF files; give the path of one, such as {name}")
        }
        None => "it holds no config.json; a model folder has config.json and .safetensors files".into(),
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

/// The safetensors files of a folder: those that the index names, or the one there is.
pub(crate) fn tensor_files(folder: &Path) -> Result<Vec<PathBuf>, FormatError> {
    let index = folder.join("model.safetensors.index.json");
    let Some(json) = read_json(&index)? else {
        let single = folder.join("model.safetensors");
        return if single.exists() { Ok(vec![single]) } else { Err(no_tensors(folder)) };
    };
    let wrong = |problem: String| FormatError::Json { path: index.clone(), problem };
    let map = json
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| wrong("it has no object weight_map".into()))?;
    let mut names: Vec<&str> = Vec::new();
    for (tensor, file) in map {
        let file = file.as_str().ok_or_else(|| wrong(format!("the file of tensor {tensor} is no string")))?;
        let plain = Path::new(file).file_name().is_some_and(|name| name == file);
        if !plain {
            return Err(wrong(format!(
                "the file {file:?} of tensor {tensor} is not the name of a file in this folder"
            )));
        }
        if !names.contains(&file) {
            names.push(file);
        }
        if names.len() > limits::MAX_SHARDS {
            return Err(wrong(format!("it names more than {} files", limits::MAX_SHARDS)));
        }
    }
    names.sort_unstable();
    for name in &names {
        if !folder.join(name).exists() {
            return Err(wrong(format!(
                "it names {name}, which is not in the folder; the download is incomplete"
            )));
        }
    }
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

fn no_tensors(folder: &Path) -> FormatError {
    let pickle = std::fs::read_dir(folder).ok().and_then(|entries| {
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| [".bin", ".pt", ".pth"].iter().any(|end| name.ends_with(end))).min()
    });
    let what = match pickle {
        Some(name) => format!(
            "it holds {name}, a pickle, which can run any program when it is read; Latent does not read pickles: convert the model to safetensors"
        ),
        None => "it holds neither model.safetensors nor model.safetensors.index.json".into(),
    };
    FormatError::NotAModel { path: folder.to_owned(), what }
}
